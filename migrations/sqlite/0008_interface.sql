-- Installed interfaces; the document is canonical JSON.
CREATE TABLE interface (
    realm TEXT NOT NULL REFERENCES realm (name),
    name TEXT NOT NULL,
    major INTEGER NOT NULL,
    minor INTEGER NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (realm, name, major)
);
