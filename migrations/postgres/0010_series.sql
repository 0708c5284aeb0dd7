-- Places where a device stores values. The number is never used again.
CREATE TABLE series (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    device BIGINT NOT NULL,
    interface BIGINT NOT NULL,
    path TEXT COLLATE "C" NOT NULL,
    UNIQUE (device, interface, path)
);
