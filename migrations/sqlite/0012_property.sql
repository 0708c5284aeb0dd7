-- Properties that are set, of either owner.
CREATE TABLE property (
    series INTEGER NOT NULL PRIMARY KEY,
    value BLOB NOT NULL,
    set_at INTEGER NOT NULL
);
