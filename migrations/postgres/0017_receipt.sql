-- QoS 2 messages that are committed and not yet released. The epoch is 64 bits, written as signed.
CREATE TABLE receipt (
    device BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    packet_id BIGINT NOT NULL,
    PRIMARY KEY (device, epoch, packet_id)
);
