-- Errors (kind 0, by name) and connects (kind 1) of devices, counted by the minute and kept for a day:
-- the rings above forget, and would lie about a device that fails 5,000 times an hour.
CREATE TABLE tally (
    device BIGINT NOT NULL,
    kind BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    minute BIGINT NOT NULL,
    occurrences BIGINT NOT NULL,
    PRIMARY KEY (device, kind, name, minute)
);
CREATE INDEX tally_minute ON tally (minute, kind);
