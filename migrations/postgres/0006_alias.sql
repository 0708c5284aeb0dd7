-- Names of devices, unique in their realm.
CREATE TABLE alias (
    device BIGINT NOT NULL,
    tag TEXT COLLATE "C" NOT NULL,
    realm TEXT COLLATE "C" NOT NULL,
    alias TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (device, tag),
    UNIQUE (realm, alias)
);
