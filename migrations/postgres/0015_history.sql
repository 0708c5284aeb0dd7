-- The newest 100 presence events of each device: a ring, slot = sequence modulo 100.
CREATE TABLE history (
    device BIGINT NOT NULL,
    slot BIGINT NOT NULL,
    sequence BIGINT NOT NULL,
    occurred_at BIGINT NOT NULL,
    event TEXT NOT NULL,
    ip TEXT,
    reason TEXT,
    PRIMARY KEY (device, slot)
);
