-- The newest 100 presence events of each device: a ring, slot = sequence modulo 100.
CREATE TABLE history (
    device INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    occurred_at INTEGER NOT NULL,
    event TEXT NOT NULL,
    ip TEXT,
    reason TEXT,
    PRIMARY KEY (device, slot)
) WITHOUT ROWID;
