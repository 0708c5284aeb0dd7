-- Properties that are set, of either owner.
CREATE TABLE property (
    series BIGINT NOT NULL PRIMARY KEY,
    value BYTEA NOT NULL,
    set_at BIGINT NOT NULL
);
