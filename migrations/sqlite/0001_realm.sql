-- Realms. Times are microseconds since 1970; durations are seconds.
CREATE TABLE realm (
    name TEXT NOT NULL PRIMARY KEY,
    jwt_public_key_pem TEXT NOT NULL,
    jwt_private_key_sealed BLOB,
    device_registration_limit INTEGER,
    datastream_maximum_storage_retention INTEGER NOT NULL,
    created_at INTEGER NOT NULL
);
