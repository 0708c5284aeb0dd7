-- Free attributes of devices.
CREATE TABLE attribute (
    device INTEGER NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (device, name)
) WITHOUT ROWID;
