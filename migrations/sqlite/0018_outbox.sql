-- Server-owned messages that are stored and not yet surely queued for their device.
CREATE TABLE outbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE,
    device INTEGER NOT NULL,
    topic TEXT NOT NULL,
    payload BLOB NOT NULL,
    qos INTEGER NOT NULL,
    expires_at INTEGER,
    property BOOLEAN NOT NULL
);
CREATE INDEX outbox_device ON outbox (device);
