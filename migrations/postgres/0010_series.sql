-- Places where a device stores values. The number is never used again. A path may be longer than an
-- index takes, so it is found by its hash; the one writer sees to it that a place has one row.
CREATE TABLE series (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    device BIGINT NOT NULL,
    interface BIGINT NOT NULL,
    path TEXT COLLATE "C" NOT NULL
);
CREATE INDEX series_place ON series (device, interface, hashtextextended(path, 0));
