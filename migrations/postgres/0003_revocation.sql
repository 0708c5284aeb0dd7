-- Revoked certificates. They outlive their device: a new registration of the same id must not bring
-- an old certificate back.
CREATE TABLE revocation (
    realm TEXT COLLATE "C" NOT NULL REFERENCES realm (name),
    device_id BYTEA NOT NULL,
    serial TEXT COLLATE "C" NOT NULL,
    revoked_at BIGINT NOT NULL,
    PRIMARY KEY (realm, device_id, serial)
);
