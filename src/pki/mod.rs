//! Realm CAs and what is signed with them; who is let in by which certificate.
