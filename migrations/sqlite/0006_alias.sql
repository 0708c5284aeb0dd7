-- Names of devices, unique in their realm.
CREATE TABLE alias (
    device INTEGER NOT NULL,
    tag TEXT NOT NULL,
    realm TEXT NOT NULL,
    alias TEXT NOT NULL,
    PRIMARY KEY (device, tag),
    UNIQUE (realm, alias)
) WITHOUT ROWID;
