-- Values of datastreams, in the order in which they are read.
CREATE TABLE sample (
    series INTEGER NOT NULL,
    value_at INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    expires_at INTEGER,
    value BLOB NOT NULL,
    PRIMARY KEY (series, value_at, received_at)
) WITHOUT ROWID;
