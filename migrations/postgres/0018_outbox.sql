-- Server-owned messages that are stored and not yet surely queued for their device.
CREATE TABLE outbox (
    position BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id BYTEA NOT NULL UNIQUE,
    device BIGINT NOT NULL,
    topic TEXT NOT NULL,
    payload BYTEA NOT NULL,
    qos BIGINT NOT NULL,
    expires_at BIGINT,
    property BOOLEAN NOT NULL
);
CREATE INDEX outbox_device ON outbox (device);
