-- Values of datastreams, in the order in which they are read.
CREATE TABLE sample (
    series BIGINT NOT NULL,
    value_at BIGINT NOT NULL,
    received_at BIGINT NOT NULL,
    expires_at BIGINT,
    value BYTEA NOT NULL,
    PRIMARY KEY (series, value_at, received_at)
);
