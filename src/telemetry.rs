//! Logging, and the one list of metrics.

mod metrics;

use std::{io::IsTerminal, sync::Arc};

use tracing::Subscriber;
use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt, layer::SubscriberExt, registry::LookupSpan, reload,
    util::SubscriberInitExt,
};

pub use metrics::{EXPIRY_DAYS, ExpiringCertificates, Metrics, Sources};

use crate::config::{Log, LogFormat};

/// Why a log filter cannot be used.
#[derive(Debug, thiserror::Error)]
#[error(
    "log.level = {filter:?} is neither a level (error, warn, info, debug, trace) nor a filter such \
     as info,tanit::mqtt=debug: {source}"
)]
pub struct InvalidFilter {
    filter: String,
    source: tracing_subscriber::filter::ParseError,
}

/// Changes the level of the running log.
#[derive(Clone, Debug)]
pub struct LogControl(Arc<reload::Handle<EnvFilter, Registry>>);

impl LogControl {
    /// Sets a new level or filter.
    ///
    /// # Errors
    /// When it is neither; the old one stays.
    pub fn set(&self, level: &str) -> Result<(), InvalidFilter> {
        let filter = parse(level)?;
        // fails only when the subscriber is gone, which lives as long as the process
        let _ = self.0.reload(filter);
        Ok(())
    }
}

/// Starts logging to standard error, for the whole process; a second start is refused.
///
/// # Errors
/// When the level is no filter.
pub fn start(log: &Log) -> Result<LogControl, InvalidFilter> {
    let (filter, handle) = reload::Layer::new(parse(&log.level)?);
    let started = tracing_subscriber::registry()
        .with(filter)
        .with(layer(log.format))
        .try_init();
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
    Ok(LogControl(Arc::new(handle)))
}

/// Checks a level or filter.
///
/// # Errors
/// When it is neither.
pub fn check(level: &str) -> Result<(), InvalidFilter> {
    parse(level).map(drop)
}

fn parse(level: &str) -> Result<EnvFilter, InvalidFilter> {
    EnvFilter::try_new(level).map_err(|source| InvalidFilter {
        filter: level.to_owned(),
        source,
    })
}

fn layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => layer.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_a_word_or_a_filter() {
        for level in ["info", "warn", "info,tanit::mqtt=debug"] {
            assert!(check(level).is_ok(), "{level}");
        }
        assert!(check("tanit=loudly").is_err());
    }
}
