-- Realms. Times are microseconds since 1970; durations are seconds.
CREATE TABLE realm (
    name TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    jwt_public_key_pem TEXT NOT NULL,
    jwt_private_key_sealed BYTEA,
    device_registration_limit BIGINT,
    datastream_maximum_storage_retention BIGINT NOT NULL,
    created_at BIGINT NOT NULL
);
