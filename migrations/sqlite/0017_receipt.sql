-- QoS 2 messages that are committed and not yet released. The epoch is 64 bits, written as signed.
CREATE TABLE receipt (
    device INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    packet_id INTEGER NOT NULL,
    PRIMARY KEY (device, epoch, packet_id)
) WITHOUT ROWID;
