-- Messages and bytes of devices by interface; interface 0 holds those of none.
CREATE TABLE exchanged (
    device BIGINT NOT NULL,
    interface BIGINT NOT NULL,
    messages BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (device, interface)
);
