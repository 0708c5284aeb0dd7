-- Places where a device stores values. The number is never used again.
CREATE TABLE series (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    device INTEGER NOT NULL,
    interface INTEGER NOT NULL,
    path TEXT NOT NULL,
    UNIQUE (device, interface, path)
);
