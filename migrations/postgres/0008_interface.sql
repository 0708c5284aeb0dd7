-- Installed interfaces; the document is canonical JSON.
CREATE TABLE interface (
    realm TEXT COLLATE "C" NOT NULL REFERENCES realm (name),
    name TEXT COLLATE "C" NOT NULL,
    major BIGINT NOT NULL,
    minor BIGINT NOT NULL,
    document TEXT NOT NULL,
    PRIMARY KEY (realm, name, major)
);
