-- Messages and bytes of devices by interface; interface 0 holds those of none.
CREATE TABLE exchanged (
    device INTEGER NOT NULL,
    interface INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (device, interface)
) WITHOUT ROWID;
