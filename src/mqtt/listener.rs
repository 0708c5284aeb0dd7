//! Accept loop, handshake deadline, permits, identity from the certificate.
