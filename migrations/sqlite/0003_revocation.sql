-- Revoked certificates. They outlive their device: a new registration of the same id must not bring
-- an old certificate back.
CREATE TABLE revocation (
    realm TEXT NOT NULL REFERENCES realm (name),
    device_id BLOB NOT NULL,
    serial TEXT NOT NULL,
    revoked_at INTEGER NOT NULL,
    PRIMARY KEY (realm, device_id, serial)
);
