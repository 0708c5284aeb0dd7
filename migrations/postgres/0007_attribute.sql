-- Free attributes of devices.
CREATE TABLE attribute (
    device BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (device, name)
);
