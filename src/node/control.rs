//! What the control API asks of the node around it.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Instant,
};

use async_trait::async_trait;
use tokio::sync::watch;

use super::restore;
use crate::{
    api::{Health, NodeControl, NodeStatus, Reloaded},
    clock::SharedClock,
    config::Config,
    engine::{Engine, realms::Realms},
    mqtt::broker::Broker,
    pki::ServerCertificates,
    telemetry::LogControl,
};

/// The node, as its API sees it; there before anything else is.
#[derive(Debug)]
pub(super) struct Control {
    config: Config,
    clock: SharedClock,
    started: Instant,
    http: SocketAddr,
    log: Option<LogControl>,
    certificates: ServerCertificates,
    /// Why it is not ready; `None` when it is.
    waiting: Mutex<Option<String>>,
    parts: OnceLock<Parts>,
    /// Whether a restore was decided for.
    restore: watch::Sender<bool>,
}

/// What comes to it during the start.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) broker: Broker,
    pub(super) engine: Arc<Engine>,
    pub(super) realms: Arc<Realms>,
}

impl Control {
    pub(super) fn new(
        config: Config,
        clock: &SharedClock,
        http: SocketAddr,
        log: Option<LogControl>,
        certificates: ServerCertificates,
    ) -> Self {
        Self {
            config,
            started: clock.now(),
            clock: clock.clone(),
            http,
            log,
            certificates,
            waiting: Mutex::new(Some("starting".to_owned())),
            parts: OnceLock::new(),
            restore: watch::channel(false).0,
        }
    }

    /// Says what the node waits for.
    pub(super) fn note(&self, what: &str) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(what.to_owned());
    }

    pub(super) fn ready(&self) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn complete(&self, parts: Parts) {
        assert!(self.parts.set(parts).is_ok(), "a node is assembled once");
    }

    /// Changes when a restore was decided for.
    pub(super) fn restore_asked(&self) -> watch::Receiver<bool> {
        self.restore.subscribe()
    }

    /// The log level of the file and the environment of this moment.
    fn reload_log(&self) -> Result<(), String> {
        let Some(log) = &self.log else { return Ok(()) };
        let fresh = Config::load(&self.config.source).map_err(|error| error.to_string())?;
        log.set(&fresh.log.level).map_err(|error| error.to_string())
    }
}

#[async_trait]
impl NodeControl for Control {
    async fn reload(&self) -> Reloaded {
        let mut reloaded = Reloaded::default();
        let mut note = |what: &str, outcome: Result<(), String>| match outcome {
            Ok(()) => reloaded.reloaded.push(what.to_owned()),
            Err(error) => {
                tracing::error!(what, %error, "not reloaded; the old state stays");
                reloaded.errors.push(format!("{what}: {error}"));
            }
        };
        note(
            "server certificate",
            self.certificates.reload().map_err(|error| chain(&error)),
        );
        note("log level", self.reload_log());
        if let Some(parts) = self.parts.get() {
            match parts.realms.load().await {
                Ok(refused) if refused.is_empty() => note("realm CAs and CRLs", Ok(())),
                Ok(refused) => {
                    for (realm, error) in refused {
                        note(&format!("realm {realm}"), Err(chain(&error)));
                    }
                }
                Err(error) => note("realm CAs and CRLs", Err(chain(&error))),
            }
        }
        tracing::info!(reloaded = ?reloaded.reloaded, "reloaded");
        reloaded
    }

    fn restart_with(&self, staged: PathBuf) -> Result<(), String> {
        if self.restore.receiver_count() == 0 {
            return Err("this node was not started by tanit serve".to_owned());
        }
        // on disk before it is answered: it happens at the next start, however this node ends
        restore::begin(&self.config.data_dir, &staged).map_err(|error| error.to_string())?;
        self.restore.send_replace(true);
        Ok(())
    }

    fn status(&self) -> NodeStatus {
        let addresses = self
            .parts
            .get()
            .map(|parts| parts.broker.addresses())
            .unwrap_or_default();
        NodeStatus {
            mqtt: addresses.mqtt,
            http: Some(self.http),
            insecure_dev_mqtt: addresses.insecure_dev,
            data_dir: self.config.data_dir.clone(),
            database: if self.config.database.url.is_some() {
                "postgres"
            } else {
                "sqlite"
            }
            .to_owned(),
            server_ca_pem: self.certificates.ca_pem(),
            uptime_seconds: self
                .clock
                .now()
                .saturating_duration_since(self.started)
                .as_secs(),
        }
    }

    fn health(&self) -> Health {
        let waiting = self
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut reasons: Vec<String> = waiting.into_iter().collect();
        if let Some(parts) = self.parts.get()
            && !parts.engine.counters().store_available()
        {
            reasons.push("the database cannot commit".to_owned());
        }
        Health {
            ready: reasons.is_empty(),
            reasons,
        }
    }

    fn config(&self) -> serde_json::Value {
        serde_json::to_value(self.config.redacted()).unwrap_or_default()
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
