//! The services put together on their foundations, as `node` does it.

use std::{num::NonZeroU32, path::PathBuf, sync::Arc, time::Duration};

use tokio_util::task::TaskTracker;

use crate::{
    api::{Api, ApiSettings, MetricsText, NodeControl, auth::Authority},
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
pub(super) struct ApiParts {
    /// Where things are kept.
    pub(super) store: Arc<dyn Store>,
    /// The engine.
    pub(super) engine: Arc<Engine>,
    /// Who holds the devices' connections and sessions.
    pub(super) live: Arc<dyn LiveDevices>,
    /// The way to the devices.
    pub(super) downlink: Arc<dyn Downlink>,
    /// What certificates are verified with; filled by [`Realms::load`].
    pub(super) pools: Pools,
    /// Seals private keys.
    pub(super) master_key: Arc<MasterKey>,
    /// The node around the API.
    pub(super) node: Arc<dyn NodeControl>,
    /// Prometheus text.
    pub(super) metrics: MetricsText,
    /// Time.
    pub(super) clock: SharedClock,
    /// Where changes run.
    pub(super) tracker: TaskTracker,
    /// Data directory: CRLs are read from its `crl`, archives are staged in its `restore`.
    pub(super) data_dir: PathBuf,
}

/// What the services are told by the configuration.
pub(super) struct ServiceSettings {
    /// The routes' own.
    pub(super) api: ApiSettings,
    /// PEM of the key that verifies Housekeeping tokens; without it Housekeeping is shut over TCP.
    pub(super) housekeeping_public_key: Option<String>,
    /// Where devices connect, `mqtts://<host>:<port>/`.
    pub(super) broker_url: String,
    /// Validity of issued certificates.
    pub(super) certificate_lifetime: Duration,
    /// Whether the broker demands a device's newest certificate.
    pub(super) enforce_latest_certificate: bool,
    /// Wrong secrets that are looked at in a minute, for each device and address.
    pub(super) failed_secrets_per_minute: NonZeroU32,
    /// What inhibition does to a connection.
    pub(super) inhibited_devices: InhibitedDevices,
    /// Largest archive that is taken in, in bytes.
    pub(super) archive_bytes_max: u64,
}

impl ApiParts {
    pub(super) fn assemble(&self, settings: &ServiceSettings) -> Result<Arc<Api>, InvalidTokenKey> {
        let key = settings.housekeeping_public_key.as_deref();
        let authority = Authority::new(self.store.clone(), self.clock.clone(), key)?;
        let realms = Arc::new(self.realms());
        let devices = DevicesParts {
            store: self.store.clone(),
            realms: realms.clone(),
            engine: self.engine.clone(),
            live: self.live.clone(),
            clock: self.clock.clone(),
        };
        let interfaces = self.engine.interfaces().clone();
        Ok(Arc::new(Api {
            authority: Arc::new(authority),
            devices: Arc::new(Devices::new(devices, settings.inhibited_devices)),
            pairing: Arc::new(self.pairing(realms.clone(), settings)),
            realms,
            reads: Arc::new(Reads::new(self.store.clone(), interfaces.clone())),
            interfaces,
            writes: self.writes(),
            backups: Arc::new(self.backups(settings.archive_bytes_max)),
            store: self.store.clone(),
            live: self.live.clone(),
            node: self.node.clone(),
            metrics: self.metrics.clone(),
            clock: self.clock.clone(),
            tracker: self.tracker.clone(),
            settings: settings.api,
        }))
    }

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
