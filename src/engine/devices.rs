//! Devices as operators see and change them: each change is on record, and live at once.
//!
//! What takes a device's rights away (inhibiting, revoking, deleting) is written first and then
//! cuts the live connection, so that a device that comes back at once finds the new state. A
//! deletion that was interrupted is finished at the next start.

use std::{collections::BTreeMap, fmt::Display, sync::Arc};

use super::{
    Engine, InhibitedDevices,
    actor::Actor,
    live::{LiveDevices, SessionView, SessionsFailed},
    realms::{RealmError, Realms},
};
use crate::{
    clock::{SharedClock, Timestamp},
    identity::{DeviceId, Identity, RealmName},
    mqtt::DisconnectReason,
    store::{
        Change, DeviceErrorRow, DeviceFilter, DeviceRow, ExchangedRow, HistoryRow, RevocationRow,
        Store, StoreError, Subject, TopRow,
    },
};

/// Devices looked at in one step when interrupted deletions are searched.
const RESUME_STEP: usize = 500;
/// Longest serial number, in hexadecimal digits (RFC 5280 section 4.1.2.2: 20 octets).
const SERIAL_DIGITS_MAX: usize = 40;
/// Rows of a list of the worst devices.
const TOP_MAX: usize = 100;

/// What [`Devices`] is made of.
#[derive(Debug)]
pub struct DevicesParts {
    /// Where devices are kept.
    pub store: Arc<dyn Store>,
    /// The realms with their pools.
    pub realms: Arc<Realms>,
    /// The engine, which remembers devices.
    pub engine: Arc<Engine>,
    /// Who holds the connections.
    pub live: Arc<dyn LiveDevices>,
    /// Time.
    pub clock: SharedClock,
}

/// The devices of this installation.
#[derive(Debug)]
pub struct Devices {
    parts: DevicesParts,
    inhibited: InhibitedDevices,
}

/// A device with what is kept beside its row.
#[derive(Clone, Debug)]
pub struct DeviceView {
    /// Its row.
    pub row: DeviceRow,
    /// What it exchanged, by interface.
    pub exchanged: Vec<ExchangedRow>,
    /// Its session, if it has one.
    pub session: Option<SessionView>,
}

/// AppEngine's PATCH; `None` as a value removes the key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DevicePatch {
    /// Tag to alias.
    pub aliases: BTreeMap<String, Option<String>>,
    /// Key to value.
    pub attributes: BTreeMap<String, Option<String>>,
    /// New inhibition.
    pub credentials_inhibited: Option<bool>,
}

/// Why a device was not changed or shown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DevicesError {
    /// No such device.
    #[error("device not found")]
    NotFound,
    /// The alias belongs to another device.
    #[error("alias already in use")]
    AliasInUse,
    /// The device has no alias under a tag that was to be removed.
    #[error("alias tag not found")]
    AliasNotFound,
    /// No certificate was ever issued here and no serial was given.
    #[error("no certificate is on record; give the serial number")]
    NoCertificate,
    /// The serial number is not hexadecimal of at most 20 octets.
    #[error("is not a serial number: hexadecimal digits, at most 40")]
    InvalidSerial,
    /// The pool could not take the revocation in; it is stored and holds at the next connection.
    #[error(transparent)]
    Realm(#[from] RealmError),
    /// The session store failed.
    #[error(transparent)]
    Sessions(#[from] SessionsFailed),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for DevicesError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::NotFound(Subject::Device) => Self::NotFound,
            StoreError::NotFound(Subject::Alias) => Self::AliasNotFound,
            StoreError::Conflict(Subject::Alias) => Self::AliasInUse,
            other => Self::Store(other),
        }
    }
}

impl Devices {
    /// The service.
    #[must_use]
    pub const fn new(parts: DevicesParts, inhibited: InhibitedDevices) -> Self {
        Self { parts, inhibited }
    }

    /// Devices of a realm, in the order of their ids' bytes.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn list(
        &self,
        realm: &RealmName,
        filter: &DeviceFilter,
    ) -> Result<Vec<DeviceView>, DevicesError> {
        let rows = self.parts.store.devices(realm, filter).await?;
        let mut views = Vec::with_capacity(rows.len());
        for row in rows {
            views.push(self.view(row, None).await?);
        }
        Ok(views)
    }

    /// One device.
    ///
    /// # Errors
    /// `NotFound`, or when the store fails.
    pub async fn show(&self, identity: &Identity) -> Result<DeviceView, DevicesError> {
        let row = self.row(identity).await?;
        let session = self.parts.live.session(identity).await;
        self.view(row, session).await
    }

    async fn view(
        &self,
        row: DeviceRow,
        session: Option<SessionView>,
    ) -> Result<DeviceView, DevicesError> {
        let exchanged = self.parts.store.exchanged(&row.identity).await?;
        Ok(DeviceView {
            row,
            exchanged,
            session,
        })
    }

    async fn row(&self, identity: &Identity) -> Result<DeviceRow, DevicesError> {
        self.parts
            .store
            .device(identity)
            .await?
            .ok_or(DevicesError::NotFound)
    }

    /// Changes aliases, attributes and inhibition.
    ///
    /// # Errors
    /// `NotFound`, `AliasInUse`, `AliasNotFound`, or when the store fails.
    pub async fn patch(
        &self,
        identity: &Identity,
        patch: DevicePatch,
        by: &Actor,
    ) -> Result<(), DevicesError> {
        let action = match patch.credentials_inhibited {
            Some(true) => "device.inhibit",
            Some(false) => "device.allow",
            None => "device.patch",
        };
        let change = Change::PatchDevice {
            identity: identity.clone(),
            aliases: patch.aliases,
            attributes: patch.attributes,
            credentials_inhibited: patch.credentials_inhibited,
        };
        self.apply(change, action, identity, by).await?;
        let cut =
            patch.credentials_inhibited == Some(true) && self.inhibited == InhibitedDevices::Refuse;
        if cut {
            self.parts
                .live
                .disconnect(identity, DisconnectReason::Inhibited)
                .await;
        }
        Ok(())
    }

    /// Inhibits a device's credentials, or allows them again.
    ///
    /// # Errors
    /// `NotFound`, or when the store fails.
    pub async fn inhibit(
        &self,
        identity: &Identity,
        inhibited: bool,
        by: &Actor,
    ) -> Result<(), DevicesError> {
        let patch = DevicePatch {
            credentials_inhibited: Some(inhibited),
            ..Default::default()
        };
        self.patch(identity, patch, by).await
    }

    /// Closes a device's connection; whether there was one. It may come back at once.
    ///
    /// # Errors
    /// `NotFound`, or when the store fails.
    pub async fn disconnect(&self, identity: &Identity, by: &Actor) -> Result<bool, DevicesError> {
        self.row(identity).await?;
        self.apply(Change::Note, "device.disconnect", identity, by)
            .await?;
        Ok(self
            .parts
            .live
            .disconnect(identity, DisconnectReason::Administrative)
            .await)
    }

    /// Revokes one certificate, the newest if no serial is given, and closes the connection that
    /// uses it. Answers with the serial.
    ///
    /// # Errors
    /// `NotFound`, `NoCertificate`, `InvalidSerial`, or when something here fails.
    pub async fn revoke(
        &self,
        identity: &Identity,
        serial: Option<&str>,
        by: &Actor,
    ) -> Result<String, DevicesError> {
        let row = self.row(identity).await?;
        let serial = match serial {
            Some(text) => canonical_serial(text).ok_or(DevicesError::InvalidSerial)?,
            None => row.certificate_serial.ok_or(DevicesError::NoCertificate)?,
        };
        let revoked_at = self.parts.clock.wall();
        let revocation = RevocationRow {
            identity: identity.clone(),
            serial: serial.clone(),
            revoked_at,
        };
        let object = format!("{identity}/{serial}");
        self.apply(Change::Revoke(revocation), "device.revoke", object, by)
            .await?;
        self.parts.realms.refresh(&identity.realm).await?;
        Ok(serial)
    }

    /// Deletes a device with everything that is its own; afterwards its id is free.
    ///
    /// # Errors
    /// `NotFound`; when a store fails: the deletion is under way then, the device is refused, and
    /// the call may be repeated.
    pub async fn delete(&self, identity: &Identity, by: &Actor) -> Result<(), DevicesError> {
        self.row(identity).await?;
        let begin = Change::BeginDeviceDeletion(identity.clone());
        self.apply(begin, "device.delete", identity, by).await?;
        self.finish_deletion(identity, by).await
    }

    async fn finish_deletion(&self, identity: &Identity, by: &Actor) -> Result<(), DevicesError> {
        let live = &self.parts.live;
        live.disconnect(identity, DisconnectReason::Deleted).await;
        // before the rows: nothing of its queue may reach a later owner of the id
        live.erase_device(identity).await?;
        let delete = Change::DeleteDevice(identity.clone());
        self.apply(delete, "device.deleted", identity, by).await?;
        self.parts.engine.refresh_device(identity);
        Ok(())
    }

    /// Finishes the deletions that a crash interrupted; how many there were.
    ///
    /// # Errors
    /// When a store fails; what is left is found again at the next call.
    pub async fn resume_deletions(&self) -> Result<usize, DevicesError> {
        let mut finished = 0;
        for realm in self.parts.store.realms().await? {
            let mut after: Option<DeviceId> = None;
            loop {
                let filter = DeviceFilter {
                    after,
                    limit: RESUME_STEP,
                    ..Default::default()
                };
                let rows = self.parts.store.devices(&realm.name, &filter).await?;
                after = rows.last().map(|row| row.identity.device);
                let whole = rows.len() == RESUME_STEP;
                for row in rows.iter().filter(|row| row.deletion_in_progress) {
                    self.finish_deletion(&row.identity, &Actor::tanit()).await?;
                    finished += 1;
                }
                if !whole {
                    break;
                }
            }
        }
        Ok(finished)
    }

    /// A device's newest errors, newest first.
    ///
    /// # Errors
    /// `NotFound`, or when the store fails.
    pub async fn errors(&self, identity: &Identity) -> Result<Vec<DeviceErrorRow>, DevicesError> {
        self.row(identity).await?;
        Ok(self.parts.store.device_errors(identity).await?)
    }

    /// A device's newest presence events, newest first.
    ///
    /// # Errors
    /// `NotFound`, or when the store fails.
    pub async fn history(&self, identity: &Identity) -> Result<Vec<HistoryRow>, DevicesError> {
        self.row(identity).await?;
        Ok(self.parts.store.history(identity).await?)
    }

    /// Devices and errors of a realm since then, most frequent first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn top_errors(
        &self,
        realm: &RealmName,
        since: Timestamp,
    ) -> Result<Vec<TopRow>, StoreError> {
        self.parts.store.top_errors(realm, since, TOP_MAX).await
    }

    /// Devices of a realm by number of connects since then, most first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn top_reconnects(
        &self,
        realm: &RealmName,
        since: Timestamp,
    ) -> Result<Vec<TopRow>, StoreError> {
        self.parts.store.top_reconnects(realm, since, TOP_MAX).await
    }

    /// Puts into the audit log what was done otherwise than here.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn note(
        &self,
        action: &str,
        object: impl Display,
        by: &Actor,
    ) -> Result<(), StoreError> {
        self.apply(Change::Note, action, object, by).await
    }

    async fn apply(
        &self,
        change: Change,
        action: &str,
        object: impl Display,
        by: &Actor,
    ) -> Result<(), StoreError> {
        let audit = by.did(self.parts.clock.wall(), action, object);
        self.parts.store.apply(change, audit).await
    }
}

/// Lower-case hexadecimal without leading zeros; takes `0x` and colons as tools print them.
fn canonical_serial(text: &str) -> Option<String> {
    let text = text.trim();
    let digits = text
        .strip_prefix("0x")
        .or_else(|| text.strip_prefix("0X"))
        .unwrap_or(text);
    let digits: String = digits.chars().filter(|c| *c != ':').collect();
    let digits = digits.trim_start_matches('0').to_ascii_lowercase();
    let shaped = (1..=SERIAL_DIGITS_MAX).contains(&digits.len())
        && digits.bytes().all(|b| b.is_ascii_hexdigit());
    shaped.then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_are_read_as_tools_print_them() {
        assert_eq!(canonical_serial("00:AB:01").as_deref(), Some("ab01"));
        assert_eq!(canonical_serial("0x0AB01").as_deref(), Some("ab01"));
        assert_eq!(canonical_serial("xyz"), None);
        assert_eq!(canonical_serial("0"), None);
        assert_eq!(canonical_serial(&"a".repeat(41)), None);
    }
}
