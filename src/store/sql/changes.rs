//! A change and its audit row, inside the transaction under way.

use super::{Conn, audit, cas, devices, interfaces, realms, registration, removal};
use crate::store::{AuditEntry, Change, StoreError, cache::Caches};

/// Makes one change and notes it.
pub(super) async fn apply(
    conn: &mut Conn,
    caches: &mut Caches,
    change: &Change,
    entry: &AuditEntry,
) -> Result<(), StoreError> {
    make(conn, caches, change).await?;
    audit::add(conn, entry).await
}

async fn make(conn: &mut Conn, caches: &mut Caches, change: &Change) -> Result<(), StoreError> {
    match change {
        Change::CreateRealm(realm, ca) => {
            realms::create(conn, realm).await?;
            cas::add(conn, ca).await
        }
        Change::UpdateRealm { .. } => realms::update(conn, change).await,
        Change::DeleteRealm(realm) => removal::realm(conn, caches, realm).await,
        Change::AddCa(ca) => cas::add(conn, ca).await,
        Change::RemoveCa(realm, fingerprint) => cas::remove(conn, realm, fingerprint).await,
        Change::RegisterDevice {
            identity,
            secret,
            introspection,
            at,
        } => {
            let device = registration::register(conn, identity, secret, *at).await?;
            match introspection {
                Some(new) => devices::declare(conn, device, new).await,
                None => Ok(()),
            }
        }
        Change::UnregisterDevice(identity) => registration::unregister(conn, identity).await,
        Change::ReplaceSecret(identity, secret) => {
            registration::replace_secret(conn, identity, secret).await
        }
        Change::RecordCertificate { .. } => registration::record_certificate(conn, change).await,
        Change::Revoke(revocation) => cas::revoke(conn, revocation).await,
        Change::PatchDevice { .. } => devices::patch(conn, change).await,
        Change::BeginDeviceDeletion(identity) => removal::begin(conn, identity).await,
        Change::DeleteDevice(identity) => removal::device(conn, caches, identity).await,
        Change::InstallInterface(interface) => interfaces::install(conn, interface).await,
        Change::UpdateInterface(interface) => interfaces::update(conn, interface).await,
        Change::DeleteInterface(realm, key) => {
            interfaces::remove(conn, realm, key).await?;
            removal::interface(conn, caches, realm, key).await
        }
        Change::Note => Ok(()),
    }
}
