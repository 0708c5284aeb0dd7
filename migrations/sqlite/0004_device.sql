-- Devices. The number is never used again: what remembers one must not meet another device under it.
CREATE TABLE device (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    realm TEXT NOT NULL REFERENCES realm (name),
    device_id BLOB NOT NULL,
    secret_hmac BLOB,
    secret_bcrypt TEXT,
    credentials_inhibited BOOLEAN NOT NULL DEFAULT FALSE,
    deletion_in_progress BOOLEAN NOT NULL DEFAULT FALSE,
    first_registration INTEGER NOT NULL,
    first_credentials_request INTEGER,
    last_credentials_request_ip TEXT,
    certificate_serial TEXT,
    certificate_aki TEXT,
    certificate_not_after INTEGER,
    connected BOOLEAN NOT NULL DEFAULT FALSE,
    presence_sequence INTEGER NOT NULL DEFAULT 0,
    last_connection INTEGER,
    last_disconnection INTEGER,
    last_seen_ip TEXT,
    pending_empty_cache BOOLEAN NOT NULL DEFAULT FALSE,
    error_sequence INTEGER NOT NULL DEFAULT 0,
    UNIQUE (realm, device_id)
);
CREATE INDEX device_connected ON device (realm) WHERE connected;
CREATE INDEX device_certificate_end ON device (realm, certificate_not_after)
WHERE certificate_not_after IS NOT NULL;
