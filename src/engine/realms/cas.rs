//! The CAs of a realm: listed, rotated, imported, removed.

use serde::Serialize;

use super::{RealmError, Realms};
use crate::{
    clock::Timestamp,
    engine::actor::Actor,
    identity::RealmName,
    pki::RealmCa,
    store::{CaRow, Change},
};

/// A CA of a realm's pool, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CaView {
    /// Hexadecimal SHA-256 of its DER; names it within the realm.
    pub fingerprint: String,
    /// Its subject.
    pub subject: String,
    /// End of its validity.
    pub not_after: Timestamp,
    /// Whether new certificates are issued by it.
    pub issuing: bool,
    /// When it was added.
    pub added_at: Timestamp,
    /// The certificate, PEM.
    pub certificate_pem: String,
}

impl Realms {
    pub(super) fn new_ca(&self, realm: &RealmName) -> Result<CaRow, RealmError> {
        let now = self.clock.wall();
        RealmCa::generate(realm, now)
            .map_err(|error| RealmError::CaInvalid(error.to_string()))?
            .to_row(true, &self.master_key, now)
            .map_err(|error| RealmError::Sealed(error.to_string()))
    }

    /// The CAs of a realm, newest first.
    ///
    /// # Errors
    /// `NotFound`, or when the store fails.
    pub async fn cas(&self, realm: &RealmName) -> Result<Vec<CaView>, RealmError> {
        self.show(realm).await?;
        Ok(self
            .store
            .cas(realm)
            .await?
            .iter()
            .map(CaView::of)
            .collect())
    }

    /// Makes a new issuing CA; the old ones stay in the pool until they are removed.
    ///
    /// # Errors
    /// `NotFound`, or when something here fails.
    pub async fn rotate_ca(&self, realm: &RealmName, by: &Actor) -> Result<CaView, RealmError> {
        self.show(realm).await?;
        let row = self.new_ca(realm)?;
        self.add_ca(row, "ca.rotate", by).await
    }

    /// Takes an operator's own CA into the pool, as the issuing one if asked.
    ///
    /// # Errors
    /// `NotFound`, `CaInvalid`, `CaKeyMissing`, `CaExists`, or when the store fails.
    pub async fn import_ca(
        &self,
        realm: &RealmName,
        certificate_pem: &str,
        private_key_pem: Option<&str>,
        issuing: bool,
        by: &Actor,
    ) -> Result<CaView, RealmError> {
        self.show(realm).await?;
        if issuing && private_key_pem.is_none() {
            return Err(RealmError::CaKeyMissing);
        }
        let now = self.clock.wall();
        let row = RealmCa::import(realm, certificate_pem, private_key_pem, now)
            .map_err(|error| RealmError::CaInvalid(error.to_string()))?
            .to_row(issuing, &self.master_key, now)
            .map_err(|error| RealmError::Sealed(error.to_string()))?;
        self.add_ca(row, "ca.import", by).await
    }

    async fn add_ca(&self, row: CaRow, action: &str, by: &Actor) -> Result<CaView, RealmError> {
        let view = CaView::of(&row);
        let realm = row.realm.clone();
        let object = format!("{realm}/{}", row.fingerprint);
        self.apply(
            Change::AddCa(row),
            by.did(self.clock.wall(), action, object),
        )
        .await?;
        self.rebuild_pool(&realm).await?;
        Ok(view)
    }

    /// Removes a CA from the pool and closes the connections that it had vouched for.
    ///
    /// # Errors
    /// `CaNotFound`, `CaIssuing`, or when the store fails.
    pub async fn remove_ca(
        &self,
        realm: &RealmName,
        fingerprint: &str,
        by: &Actor,
    ) -> Result<(), RealmError> {
        self.show(realm).await?;
        let rows = self.store.cas(realm).await?;
        let row = rows
            .iter()
            .find(|row| row.fingerprint.eq_ignore_ascii_case(fingerprint))
            .ok_or(RealmError::CaNotFound)?;
        if row.issuing {
            return Err(RealmError::CaIssuing);
        }
        let object = format!("{realm}/{}", row.fingerprint);
        let audit = by.did(self.clock.wall(), "ca.remove", object);
        self.apply(
            Change::RemoveCa(realm.clone(), row.fingerprint.clone()),
            audit,
        )
        .await?;
        self.refresh(realm).await
    }

    /// The CA that issues the realm's certificates.
    ///
    /// # Errors
    /// `NotFound` when the realm has none; when its key cannot be opened or the store fails.
    pub async fn issuing_ca(&self, realm: &RealmName) -> Result<RealmCa, RealmError> {
        let rows = self.store.cas(realm).await?;
        let row = rows
            .iter()
            .find(|row| row.issuing)
            .ok_or(RealmError::CaNotFound)?;
        RealmCa::from_row(row, &self.master_key)
            .map_err(|error| RealmError::Sealed(error.to_string()))
    }
}

impl CaView {
    fn of(row: &CaRow) -> Self {
        let (subject, not_after) = described(&row.certificate_pem).unwrap_or_default();
        Self {
            fingerprint: row.fingerprint.clone(),
            subject,
            not_after,
            issuing: row.issuing,
            added_at: row.added_at,
            certificate_pem: row.certificate_pem.clone(),
        }
    }
}

/// Subject and end of a stored certificate; `None` if it cannot be read, which only damage does.
fn described(certificate_pem: &str) -> Option<(String, Timestamp)> {
    let block = pem::parse(certificate_pem).ok()?;
    let (_, certificate) = x509_parser::parse_x509_certificate(block.contents()).ok()?;
    let not_after = certificate
        .validity()
        .not_after
        .timestamp()
        .checked_mul(1_000_000)?;
    Some((
        certificate.subject().to_string(),
        Timestamp::from_micros(not_after),
    ))
}
