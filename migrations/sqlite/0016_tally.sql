-- Errors (kind 0, by name) and connects (kind 1) of devices, counted by the minute and kept for a day:
-- the rings above forget, and would lie about a device that fails 5,000 times an hour.
CREATE TABLE tally (
    device INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    name TEXT NOT NULL,
    minute INTEGER NOT NULL,
    occurrences INTEGER NOT NULL,
    PRIMARY KEY (device, kind, name, minute)
) WITHOUT ROWID;
CREATE INDEX tally_minute ON tally (minute, kind);
