//! What is kept of realms, devices and their data: one trait, and the rows it speaks of.
//!
//! Two databases implement [`Store`] ([`sqlite`], [`postgres`]), and [`memory`] for tests; one
//! contract suite (`tests/store_contract.rs`) holds for all. Every write goes through the
//! implementation's single commit path: device traffic as [`Unit`]s in batches
//! ([`Store::commit`]), everything else as a [`Change`] with its audit row ([`Store::apply`]).
//! An answer means that the transaction is committed and flushed.

mod attempt;
mod batch;
mod cache;
mod fault;
pub mod memory;
pub mod postgres;
pub mod sqlite;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity, RealmName},
    interface::{InterfaceKey, Introspection},
    payload::Value,
};

/// Why the store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// What was named does not exist.
    #[error("{0} does not exist")]
    NotFound(Subject),
    /// What was to be made exists, or is in use.
    #[error("{0} exists already")]
    Conflict(Subject),
    /// The realm's device registration limit is reached.
    #[error("the device registration limit of the realm is reached")]
    LimitReached,
    /// The database cannot be asked now; trying again later may help (connection lost, disk full,
    /// locked). Nothing was written.
    #[error("the database is not available")]
    Unavailable(#[source] sqlx::Error),
    /// The database was written by a newer program.
    #[error("the database has schema version {found}, newer than this program's {known}")]
    SchemaTooNew {
        /// Version in the database.
        found: i64,
        /// Newest version that this program knows.
        known: i64,
    },
    /// Another node writes to the same database.
    #[error("the database is in use by another tanit node; stop that one first")]
    InUse,
    /// This database does not do that; the text says what does.
    #[error("{0}")]
    NotOffered(&'static str),
    /// A row that this program cannot have written.
    #[error("table {table} holds a row that cannot be read: {what}")]
    Corrupt {
        /// Table.
        table: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// Any other failure of the database: a bug here, or damage there.
    #[error("the database failed")]
    Database(#[source] sqlx::Error),
}

/// What a [`StoreError`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Subject {
    Realm,
    Ca,
    Device,
    Interface,
    Alias,
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Realm => "realm",
            Self::Ca => "CA",
            Self::Device => "device",
            Self::Interface => "interface",
            Self::Alias => "alias",
        })
    }
}

/// A realm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealmRow {
    /// Name.
    pub name: RealmName,
    /// PEM of the public key that verifies the realm's tokens.
    pub jwt_public_key_pem: String,
    /// The private key to it, sealed under the master key, where Tanit made the pair and keeps it.
    pub jwt_private_key_sealed: Option<Vec<u8>>,
    /// Most devices that may be registered.
    pub device_registration_limit: Option<u64>,
    /// Longest time that datastream values are kept, in seconds; 0 is without limit.
    pub datastream_maximum_storage_retention: u64,
    /// When it was made.
    pub created_at: Timestamp,
}

/// A CA of a realm's pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaRow {
    /// Realm.
    pub realm: RealmName,
    /// Hexadecimal SHA-256 of the certificate's DER; names the CA within the realm.
    pub fingerprint: String,
    /// The certificate, PEM.
    pub certificate_pem: String,
    /// Its PKCS #8 key, sealed under the master key; absent for a CA that only verifies.
    pub key_sealed: Option<Vec<u8>>,
    /// Whether new certificates are issued by it; at most one of a realm is.
    pub issuing: bool,
    /// When it was added.
    pub added_at: Timestamp,
}

/// A revoked certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevocationRow {
    /// Device whose certificate it was.
    pub identity: Identity,
    /// Serial number, lower-case hexadecimal without leading zeros.
    pub serial: String,
    /// When.
    pub revoked_at: Timestamp,
}

/// How a device proves itself to Pairing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretHash {
    /// HMAC-SHA-256 of the secret under the master key.
    Hmac([u8; 32]),
    /// A bcrypt hash imported from Astarte, replaced at its first use.
    Bcrypt(String),
}

/// A device, with all that its row holds.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a column")]
pub struct DeviceRow {
    /// Realm and id.
    pub identity: Identity,
    /// `None` when unregistered: every secret is refused.
    pub secret: Option<SecretHash>,
    /// Whether an operator has inhibited its credentials.
    pub credentials_inhibited: bool,
    /// Whether its deletion is under way.
    pub deletion_in_progress: bool,
    /// First registration.
    pub first_registration: Timestamp,
    /// First certificate, if it has ever asked.
    pub first_credentials_request: Option<Timestamp>,
    /// Peer of its last certificate request.
    pub last_credentials_request_ip: Option<IpAddr>,
    /// Serial of the newest certificate, lower-case hexadecimal.
    pub certificate_serial: Option<String>,
    /// Authority key identifier of the newest certificate, lower-case hexadecimal.
    pub certificate_aki: Option<String>,
    /// End of validity of the newest certificate.
    pub certificate_not_after: Option<Timestamp>,
    /// What it declares.
    pub introspection: Introspection,
    /// Interfaces it declared before and does not any more: (name, major) to minor.
    pub previous_interfaces: BTreeMap<(String, u32), u32>,
    /// Presence.
    pub connected: bool,
    /// Number of its last presence event; connected and disconnected strictly alternate.
    pub presence_sequence: u64,
    /// Last connection.
    pub last_connection: Option<Timestamp>,
    /// Last disconnection.
    pub last_disconnection: Option<Timestamp>,
    /// Peer of its last connection.
    pub last_seen_ip: Option<IpAddr>,
    /// Whether it has to send emptyCache before its caches can be trusted.
    pub pending_empty_cache: bool,
    /// Messages received, rejected ones included as the protocol says.
    pub total_received_msgs: u64,
    /// Their bytes.
    pub total_received_bytes: u64,
    /// Tag to alias; an alias is unique in its realm.
    pub aliases: BTreeMap<String, String>,
    /// Free attributes.
    pub attributes: BTreeMap<String, String>,
}

/// Messages and bytes that a device exchanged on one interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExchangedRow {
    /// Interface.
    pub interface: InterfaceKey,
    /// Messages.
    pub messages: u64,
    /// Bytes: payload, interface name and path.
    pub bytes: u64,
}

/// An installed interface; the document is canonical JSON that `Interface::parse` accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceRow {
    /// Realm.
    pub realm: RealmName,
    /// Name and major.
    pub key: InterfaceKey,
    /// Minor.
    pub minor: u32,
    /// JSON.
    pub document: String,
}

/// Who did what, for the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// `socket:<uid>` or `token:<realm or housekeeping>` with the peer's address, or `tanit`.
    pub actor: String,
    /// Verb of the control API, such as `device.inhibit`.
    pub action: String,
    /// What it was done to, such as `acme/<device id>`.
    pub object: String,
}

/// A change outside the stream of device messages. Each is one transaction with its audit row.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// Makes a realm with its first CA. `Conflict(Realm)` if it exists.
    CreateRealm(RealmRow, CaRow),
    /// Changes what is `Some`; the inner `None` of the limit removes it.
    UpdateRealm {
        /// Which.
        realm: RealmName,
        /// New key; the kept private key is dropped unless `jwt_private_key_sealed` is given too.
        jwt_public_key_pem: Option<String>,
        /// Its private key, sealed.
        jwt_private_key_sealed: Option<Vec<u8>>,
        /// New limit.
        device_registration_limit: Option<Option<u64>>,
        /// New maximum, seconds; 0 is none.
        datastream_maximum_storage_retention: Option<u64>,
    },
    /// Removes a realm and everything in it.
    DeleteRealm(RealmName),
    /// Adds a CA; when `issuing`, the others no longer issue. `Conflict(Ca)` if it is there.
    AddCa(CaRow),
    /// Removes a CA from the pool by fingerprint.
    RemoveCa(RealmName, String),
    /// Registers a device. Unknown: made. Known and never given a certificate, or unregistered: the
    /// secret is replaced, the inhibition lifted, the introspection replaced where one is given
    /// (Astarte empties it). Otherwise `Conflict(Device)`. New ids count against the limit (`LimitReached`).
    RegisterDevice {
        /// Which.
        identity: Identity,
        /// Hash of its new secret.
        secret: SecretHash,
        /// `initial_introspection`.
        introspection: Option<Introspection>,
        /// Now.
        at: Timestamp,
    },
    /// Forgets secret and first credentials request; data and introspection stay.
    UnregisterDevice(Identity),
    /// Replaces an imported hash by ours.
    ReplaceSecret(Identity, SecretHash),
    /// Records the certificate just issued.
    RecordCertificate {
        /// Whose.
        identity: Identity,
        /// Serial, lower-case hexadecimal.
        serial: String,
        /// Authority key identifier, lower-case hexadecimal.
        aki: String,
        /// End of validity.
        not_after: Timestamp,
        /// Peer that asked.
        ip: Option<IpAddr>,
        /// Now.
        at: Timestamp,
    },
    /// Revokes one certificate; idempotent.
    Revoke(RevocationRow),
    /// AppEngine's PATCH: `None` deletes the key. `Conflict(Alias)` when another device has it;
    /// `NotFound(Alias)` when a tag to be deleted is not there.
    PatchDevice {
        /// Which.
        identity: Identity,
        /// Tag to alias.
        aliases: BTreeMap<String, Option<String>>,
        /// Key to value.
        attributes: BTreeMap<String, Option<String>>,
        /// New inhibition.
        credentials_inhibited: Option<bool>,
    },
    /// Marks a device as being deleted.
    BeginDeviceDeletion(Identity),
    /// Removes a device with everything that is its own.
    DeleteDevice(Identity),
    /// Installs an interface. `Conflict(Interface)` if this major is there.
    InstallInterface(InterfaceRow),
    /// Replaces an interface by a newer minor.
    UpdateInterface(InterfaceRow),
    /// Removes an interface with all data stored on it.
    DeleteInterface(RealmName, InterfaceKey),
    /// An audit row alone, for what changes nothing here (such as a disconnect).
    Note,
}

/// Marks a QoS 2 message as committed until its PUBREL [MQTT-4.3.3-2].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// Epoch of the device's session, 64 random bits.
    pub epoch: u64,
    /// Packet id within it.
    pub packet_id: u16,
}

/// What one message or presence event does, committed as a whole or not at all.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Device.
    pub identity: Identity,
    /// For QoS 2: when this receipt is there already, nothing is done ([`Committed::Duplicate`]);
    /// otherwise it is written together with the effects.
    pub receipt: Option<Receipt>,
    /// What happens, in order.
    pub effects: Vec<Effect>,
    /// Counts as a message of so many bytes, on this interface if known.
    pub counted: Option<(Option<InterfaceKey>, u64)>,
}

/// One thing that a [`Unit`] does.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Effect {
    /// Replaces the introspection; what left it or changed major goes to the previous interfaces,
    /// what came back leaves them.
    SetIntrospection(Introspection),
    /// Appends a sample. Reception stamps are strictly increasing within a device.
    AppendSample {
        /// Interface.
        interface: InterfaceKey,
        /// Path.
        path: Arc<str>,
        /// Value, an `Object` for aggregates.
        value: Value,
        /// Its own time, or the reception's.
        value_at: Timestamp,
        /// Reception.
        received_at: Timestamp,
        /// When it may be removed; `None` is never.
        expires_at: Option<Timestamp>,
    },
    /// Sets a property of either owner.
    SetProperty {
        /// Interface.
        interface: InterfaceKey,
        /// Path.
        path: Arc<str>,
        /// Value.
        value: Value,
        /// Reception.
        at: Timestamp,
    },
    /// Unsets a property; nothing happens when it is not set.
    UnsetProperty {
        /// Interface.
        interface: InterfaceKey,
        /// Path.
        path: Arc<str>,
    },
    /// Records a device error; the newest 100 of a device are kept.
    RecordError(DeviceErrorRow),
    /// Presence: connected. Increases the sequence, adds to the history (newest 100 are kept).
    Connected {
        /// When.
        at: Timestamp,
        /// Peer.
        ip: Option<IpAddr>,
    },
    /// Presence: disconnected; nothing happens when the device is not connected.
    Disconnected {
        /// When.
        at: Timestamp,
        /// Name of the reason, as the API shows it.
        reason: String,
    },
    /// Sets or clears the pending empty cache.
    PendingEmptyCache(bool),
    /// Removes one receipt, at PUBREL.
    RemoveReceipt(Receipt),
    /// Removes all receipts of a session that was erased.
    ForgetReceipts {
        /// Its epoch.
        epoch: u64,
    },
    /// Puts a message for the device into the outbox.
    AddOutbox(OutboxRow),
    /// Takes it out, once the session queue holds it.
    RemoveOutbox {
        /// Which.
        id: u128,
    },
}

/// What became of a [`Unit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Committed {
    /// Its effects are stored.
    Done,
    /// Its receipt was there: it is stored since before.
    Duplicate,
    /// The device is gone (deleted meanwhile); nothing was stored.
    NoDevice,
    /// The database refused this unit alone; nothing of it was stored. A bug worth an error line.
    Refused,
}

/// A message that a device sent and that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceErrorRow {
    /// When.
    pub at: Timestamp,
    /// Astarte's name of the error, such as `undecodable_bson_payload`.
    pub error_name: String,
    /// Interface, when known.
    pub interface: Option<String>,
    /// Path, when known.
    pub path: Option<String>,
    /// First bytes of the payload, base64; the limit is the engine's.
    pub base64_payload: Option<String>,
    /// More, for people.
    pub detail: Option<String>,
}

/// One presence event of a device's history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRow {
    /// Position among the device's presence events.
    pub sequence: u64,
    /// When.
    pub at: Timestamp,
    /// `connected` or `disconnected`.
    pub event: String,
    /// Peer, for `connected`.
    pub ip: Option<IpAddr>,
    /// Why, for `disconnected`.
    pub reason: Option<String>,
}

/// A server-owned message that is stored but not yet surely in the session queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxRow {
    /// Random; the queue knows a message that it already holds by it.
    pub id: u128,
    /// Device.
    pub identity: Identity,
    /// Topic below the device's base topic, with its leading slash.
    pub topic: String,
    /// Payload.
    pub payload: Vec<u8>,
    /// QoS 0, 1 or 2.
    pub qos: u8,
    /// When it must not be delivered any more.
    pub expires_at: Option<Timestamp>,
    /// Whether it is a property, of which the queue keeps the newest value of a path alone.
    pub property: bool,
    /// Major of the interface it was written for; it is not for a device that declares another one.
    pub major: Option<u32>,
}

/// One stored sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Value time.
    pub value_at: Timestamp,
    /// Reception.
    pub received_at: Timestamp,
    /// Value.
    pub value: Value,
}

/// Which samples of a series, in which order. Ties of the value time are ordered by reception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleQuery {
    /// From this value time on (inclusive).
    pub since: Option<Timestamp>,
    /// Only after this value time (exclusive).
    pub since_after: Option<Timestamp>,
    /// Before this value time (exclusive).
    pub to: Option<Timestamp>,
    /// At most so many.
    pub limit: usize,
    /// Newest first instead of oldest first.
    pub newest_first: bool,
}

/// A stored property.
#[derive(Clone, Debug, PartialEq)]
pub struct PropertyRow {
    /// Path.
    pub path: String,
    /// Value.
    pub value: Value,
    /// When it was set.
    pub at: Timestamp,
}

/// Which devices of a realm, in the order of their ids' bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFilter {
    /// Only those after this id.
    pub after: Option<DeviceId>,
    /// Only connected or only disconnected ones.
    pub connected: Option<bool>,
    /// Only inhibited or only allowed ones.
    pub credentials_inhibited: Option<bool>,
    /// Only those whose introspection has an interface of this name.
    pub interface: Option<String>,
    /// At most so many.
    pub limit: usize,
}

/// Devices of a realm, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStats {
    /// Registered ones.
    pub total_devices: u64,
    /// Connected ones.
    pub connected_devices: u64,
}

/// A device and a number, in a list of the worst.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopRow {
    /// Device.
    pub device: DeviceId,
    /// Name of the error, in a list of errors.
    pub error_name: Option<String>,
    /// How often.
    pub count: u64,
}

/// Reason of a disconnection that is noted at the next start, because the node ended without it.
pub const NODE_RESTART: &str = "node_restart";

/// What is kept of realms, devices and their data. See the module's page.
#[async_trait]
pub trait Store: std::fmt::Debug + Send + Sync + 'static {
    /// Commits units in order, in one transaction where possible; answers in the same order once
    /// all is flushed. A unit that the database refuses does not take its neighbours with it.
    ///
    /// # Errors
    /// `Unavailable` when nothing was written and the call may be repeated as it is.
    async fn commit(&self, units: Vec<Unit>) -> Result<Vec<Committed>, StoreError>;

    /// Makes one change and writes its audit row, in one transaction.
    ///
    /// # Errors
    /// As the [`Change`] says, and when the database fails.
    async fn apply(&self, change: Change, audit: AuditEntry) -> Result<(), StoreError>;

    /// Sets every device that is recorded as connected disconnected with one event each (reason
    /// `node_restart`) and returns them. Called before the first accept.
    ///
    /// # Errors
    /// When the database fails.
    async fn close_stale(&self, at: Timestamp) -> Result<Vec<Identity>, StoreError>;

    /// Whether the database commits, within a second.
    ///
    /// # Errors
    /// `Unavailable` when it does not.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Stops the commit path after what was taken is committed.
    async fn close(&self);

    /// Writes a consistent copy of the whole database to `file`, online. SQLite: a database file;
    /// PostgreSQL: not offered here (`pg_dump` is the tool), an error that says so.
    ///
    /// # Errors
    /// When the database or the file fails.
    async fn backup(&self, file: &std::path::Path) -> Result<(), StoreError>;

    /// All realms by name.
    async fn realms(&self) -> Result<Vec<RealmRow>, StoreError>;
    /// One realm.
    async fn realm(&self, realm: &RealmName) -> Result<Option<RealmRow>, StoreError>;
    /// The CAs of a realm, newest first.
    async fn cas(&self, realm: &RealmName) -> Result<Vec<CaRow>, StoreError>;
    /// The revoked certificates of a realm.
    async fn revocations(&self, realm: &RealmName) -> Result<Vec<RevocationRow>, StoreError>;

    /// Whether one certificate of a device is revoked.
    async fn is_revoked(&self, identity: &Identity, serial: &str) -> Result<bool, StoreError> {
        let revocations = self.revocations(&identity.realm).await?;
        Ok(revocations
            .iter()
            .any(|row| row.identity == *identity && row.serial == serial))
    }

    /// One device.
    async fn device(&self, identity: &Identity) -> Result<Option<DeviceRow>, StoreError>;
    /// The device that has an alias.
    async fn device_by_alias(
        &self,
        realm: &RealmName,
        alias: &str,
    ) -> Result<Option<DeviceId>, StoreError>;
    /// Devices of a realm.
    async fn devices(
        &self,
        realm: &RealmName,
        filter: &DeviceFilter,
    ) -> Result<Vec<DeviceRow>, StoreError>;
    /// Devices of a realm, counted.
    async fn device_stats(&self, realm: &RealmName) -> Result<DeviceStats, StoreError>;
    /// Whether any device of the realm declares this interface and major.
    async fn interface_in_use(
        &self,
        realm: &RealmName,
        key: &InterfaceKey,
    ) -> Result<bool, StoreError>;
    /// What a device exchanged, by interface.
    async fn exchanged(&self, identity: &Identity) -> Result<Vec<ExchangedRow>, StoreError>;
    /// How many certificates of a realm end within each of these times from `now` on.
    async fn expiring_certificates(
        &self,
        realm: &RealmName,
        until: &[Timestamp],
    ) -> Result<Vec<u64>, StoreError>;

    /// The installed interfaces of all realms.
    async fn interfaces(&self) -> Result<Vec<InterfaceRow>, StoreError>;

    /// Samples of one series.
    async fn samples(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
        path: &str,
        query: &SampleQuery,
    ) -> Result<Vec<Sample>, StoreError>;
    /// The paths of an interface that have samples, each with its newest one.
    async fn newest_samples(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
    ) -> Result<Vec<(String, Sample)>, StoreError>;
    /// The set properties of an interface, by path.
    async fn properties(
        &self,
        identity: &Identity,
        interface: &InterfaceKey,
    ) -> Result<Vec<PropertyRow>, StoreError>;

    /// The newest device errors, newest first.
    async fn device_errors(&self, identity: &Identity) -> Result<Vec<DeviceErrorRow>, StoreError>;
    /// The newest presence events, newest first.
    async fn history(&self, identity: &Identity) -> Result<Vec<HistoryRow>, StoreError>;
    /// Devices and errors of a realm since then, most frequent first.
    async fn top_errors(
        &self,
        realm: &RealmName,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<TopRow>, StoreError>;
    /// Devices of a realm by number of connects since then, most first.
    async fn top_reconnects(
        &self,
        realm: &RealmName,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<TopRow>, StoreError>;
    /// The audit log, newest first, at most `limit` rows.
    async fn audit(&self, limit: usize) -> Result<Vec<AuditEntry>, StoreError>;

    /// What is left in the outbox, oldest first.
    async fn outbox(&self) -> Result<Vec<OutboxRow>, StoreError>;
}
