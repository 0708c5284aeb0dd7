//! The API put together: the services on their foundations.

use std::{num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use tokio_util::task::TaskTracker;

use super::{Api, ApiSettings, MetricsText, NodeControl, auth::Authority};
use crate::{
    clock::SharedClock,
    engine::{
        Engine, InhibitedDevices,
        backup::{Backups, BackupsParts},
        devices::{Devices, DevicesParts},
        live::LiveDevices,
        pairing::{Pairing, PairingParts, PairingSettings},
        reads::Reads,
        realms::{Realms, RealmsParts},
        tokens::InvalidTokenKey,
        writes::{Downlink, Writes, WritesParts},
    },
    pki::{MasterKey, Pools},
    store::Store,
};

/// What the services stand on.
#[derive(Clone)]
pub struct ApiParts {
    /// Where things are kept.
    pub store: Arc<dyn Store>,
    /// The engine.
    pub engine: Arc<Engine>,
    /// Who holds the devices' connections and sessions.
    pub live: Arc<dyn LiveDevices>,
    /// The way to the devices.
    pub downlink: Arc<dyn Downlink>,
    /// What certificates are verified with; filled by [`Realms::load`].
    pub pools: Pools,
    /// Seals private keys.
    pub master_key: Arc<MasterKey>,
    /// The node around the API.
    pub node: Arc<dyn NodeControl>,
    /// Prometheus text.
    pub metrics: MetricsText,
    /// Time.
    pub clock: SharedClock,
    /// Where changes run.
    pub tracker: TaskTracker,
    /// Data directory: CRLs are read from its `crl`, archives are staged in its `restore`.
    pub data_dir: PathBuf,
}

impl std::fmt::Debug for ApiParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiParts")
            .field("data_dir", &self.data_dir)
            .finish_non_exhaustive()
    }
}

/// What the services are told by the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceSettings {
    /// The routes' own.
    pub api: ApiSettings,
    /// PEM of the key that verifies Housekeeping tokens; without it Housekeeping is shut over TCP.
    pub housekeeping_public_key: Option<String>,
    /// Where devices connect, `mqtts://<host>:<port>/`.
    pub broker_url: String,
    /// Validity of issued certificates.
    pub certificate_lifetime: Duration,
    /// Whether the broker demands a device's newest certificate.
    pub enforce_latest_certificate: bool,
    /// Wrong secrets that are looked at in a minute, for each device and address.
    pub failed_secrets_per_minute: NonZeroU32,
    /// What inhibition does to a connection.
    pub inhibited_devices: InhibitedDevices,
    /// Largest archive that is taken in, in bytes.
    pub archive_bytes_max: u64,
}

impl Api {
    /// Puts the API together. The pools are empty until `realms.load()` was called.
    ///
    /// # Errors
    /// When the Housekeeping key cannot be used.
    pub fn assemble(
        parts: &ApiParts,
        settings: &ServiceSettings,
    ) -> Result<Arc<Self>, InvalidTokenKey> {
        let key = settings.housekeeping_public_key.as_deref();
        let authority = Authority::new(parts.store.clone(), parts.clock.clone(), key)?;
        let realms = Arc::new(parts.realms());
        let devices = DevicesParts {
            store: parts.store.clone(),
            realms: realms.clone(),
            engine: parts.engine.clone(),
            live: parts.live.clone(),
            clock: parts.clock.clone(),
        };
        let interfaces = parts.engine.interfaces().clone();
        Ok(Arc::new(Self {
            authority: Arc::new(authority),
            devices: Arc::new(Devices::new(devices, settings.inhibited_devices)),
            pairing: Arc::new(parts.pairing(realms.clone(), settings)),
            realms,
            reads: Arc::new(Reads::new(parts.store.clone(), interfaces.clone())),
            interfaces,
            writes: parts.writes(),
            backups: Arc::new(parts.backups(settings.archive_bytes_max)),
            store: parts.store.clone(),
            live: parts.live.clone(),
            node: parts.node.clone(),
            metrics: parts.metrics.clone(),
            clock: parts.clock.clone(),
            tracker: parts.tracker.clone(),
            settings: settings.api,
        }))
    }
}

impl ApiParts {
    fn realms(&self) -> Realms {
        Realms::new(RealmsParts {
            store: self.store.clone(),
            engine: self.engine.clone(),
            live: self.live.clone(),
            pools: self.pools.clone(),
            master_key: self.master_key.clone(),
            clock: self.clock.clone(),
            crls: self.data_dir.join("crl"),
        })
    }

    fn pairing(&self, realms: Arc<Realms>, settings: &ServiceSettings) -> Pairing {
        let parts = PairingParts {
            store: self.store.clone(),
            realms,
            engine: self.engine.clone(),
            live: self.live.clone(),
            pools: self.pools.clone(),
            master_key: self.master_key.clone(),
            clock: self.clock.clone(),
        };
        let settings = PairingSettings {
            broker_url: settings.broker_url.clone(),
            certificate_lifetime: settings.certificate_lifetime,
            enforce_latest_certificate: settings.enforce_latest_certificate,
            failed_secrets_per_minute: settings.failed_secrets_per_minute,
        };
        Pairing::new(parts, settings)
    }

    fn writes(&self) -> Writes {
        Writes::new(WritesParts {
            store: self.store.clone(),
            engine: self.engine.clone(),
            downlink: self.downlink.clone(),
            clock: self.clock.clone(),
            tracker: self.tracker.clone(),
        })
    }

    fn backups(&self, archive_bytes_max: u64) -> Backups {
        Backups::new(BackupsParts {
            store: self.store.clone(),
            live: self.live.clone(),
            master_key: self.master_key.clone(),
            clock: self.clock.clone(),
            data_dir: self.data_dir.clone(),
            tracker: self.tracker.clone(),
            archive_bytes_max,
        })
    }
}
