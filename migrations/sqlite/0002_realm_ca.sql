-- The pool of CAs of a realm; new certificates are issued by one of them at most.
CREATE TABLE realm_ca (
    realm TEXT NOT NULL REFERENCES realm (name),
    fingerprint TEXT NOT NULL,
    certificate_pem TEXT NOT NULL,
    key_sealed BLOB,
    issuing BOOLEAN NOT NULL,
    added_at INTEGER NOT NULL,
    PRIMARY KEY (realm, fingerprint)
);
CREATE UNIQUE INDEX realm_ca_issuing ON realm_ca (realm) WHERE issuing;
