-- Devices. The number is never used again: what remembers one must not meet another device under it.
CREATE TABLE device (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    realm TEXT COLLATE "C" NOT NULL REFERENCES realm (name),
    device_id BYTEA NOT NULL,
    secret_hmac BYTEA,
    secret_bcrypt TEXT,
    credentials_inhibited BOOLEAN NOT NULL DEFAULT FALSE,
    deletion_in_progress BOOLEAN NOT NULL DEFAULT FALSE,
    first_registration BIGINT NOT NULL,
    first_credentials_request BIGINT,
    last_credentials_request_ip TEXT,
    certificate_serial TEXT,
    certificate_aki TEXT,
    certificate_not_after BIGINT,
    connected BOOLEAN NOT NULL DEFAULT FALSE,
    presence_sequence BIGINT NOT NULL DEFAULT 0,
    last_connection BIGINT,
    last_disconnection BIGINT,
    last_seen_ip TEXT,
    pending_empty_cache BOOLEAN NOT NULL DEFAULT FALSE,
    error_sequence BIGINT NOT NULL DEFAULT 0,
    UNIQUE (realm, device_id)
);
CREATE INDEX device_connected ON device (realm) WHERE connected;
CREATE INDEX device_certificate_end ON device (realm, certificate_not_after)
WHERE certificate_not_after IS NOT NULL;
