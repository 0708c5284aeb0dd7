//! `tanit serve`: reads the settings and hands over to [`crate::node`].

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::{
    Context,
    exit::{Exit, Failure},
};
use crate::{
    config::{Config, LogFormat, Overlay},
    node,
};

/// Run a node: the broker, the engine and the control API.
///
/// Settings: defaults, then --config FILE, then TANIT_* environment variables, then these flags.
/// SIGTERM and Ctrl-C stop it in good order, a second one at once; SIGHUP reads certificates and the
/// log level again. Ready when `tanit status` answers.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit serve --data-dir /var/lib/tanit
  tanit serve --config /etc/tanit/tanit.toml --log-format json
  tanit serve --mqtt-listen 127.0.0.1:0 --http-listen 127.0.0.1:0")]
pub(super) struct Serve {
    /// Settings file (TOML); every key with its default stands in config/tanit.toml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the MQTT listener (TLS) [default: 0.0.0.0:8883]; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS")]
    mqtt_listen: Option<SocketAddr>,
    /// Address of the HTTP listener [default: 127.0.0.1:8080]; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS")]
    http_listen: Option<SocketAddr>,
    /// Form of log lines, on standard error [default: text].
    #[arg(long, value_enum, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
    /// Level (error, warn, info, debug, trace) or filter [default: info].
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

impl Serve {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let overlay = self.overlay(context.global.data_dir.clone());
        let config = Config::load(&overlay)
            .map_err(|error| Failure::new(Exit::BadConfiguration, error.to_string()))?;
        match node::serve(config).await {
            Ok(true) => Ok(Exit::Done),
            Ok(false) => Err(Failure::failed(
                "stopped before everything was committed".to_owned(),
            )),
            Err(error) => {
                let exit = if error.is_configuration() {
                    Exit::BadConfiguration
                } else {
                    Exit::Failed
                };
                Err(Failure::new(
                    exit,
                    format!("{:#}", anyhow::Error::new(error)),
                ))
            }
        }
    }

    fn overlay(self, data_dir: Option<PathBuf>) -> Overlay {
        Overlay {
            file: self.config,
            data_dir,
            mqtt_listen: self.mqtt_listen,
            http_listen: self.http_listen,
            log_format: self.log_format,
            log_level: self.log_level,
        }
    }
}
