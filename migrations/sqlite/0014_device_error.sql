-- The newest 100 errors of each device: a ring, slot = sequence modulo 100.
CREATE TABLE device_error (
    device INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    occurred_at INTEGER NOT NULL,
    error_name TEXT NOT NULL,
    interface TEXT,
    path TEXT,
    base64_payload TEXT,
    detail TEXT,
    PRIMARY KEY (device, slot)
) WITHOUT ROWID;
