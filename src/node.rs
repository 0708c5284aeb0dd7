//! Assembly: from settings to running tasks.

use crate::config::{Config, Overlay};

/// Why a node did not start, or did not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The operator's: a setting, a file that it names, or a database of a newer program.
    #[error("the node cannot start with this configuration")]
    Configuration(#[source] anyhow::Error),
    /// Anything else.
    #[error("the node failed")]
    Failed(#[source] anyhow::Error),
}

/// Runs a node until it is told to stop. `overlay` is kept so that a reload reads the same sources.
///
/// # Errors
/// When it cannot start, or cannot go on.
pub async fn serve(config: Config, overlay: Overlay) -> Result<(), ServeError> {
    let _ = (config, overlay);
    std::future::ready(()).await;
    Err(ServeError::Failed(anyhow::anyhow!(
        "the node is not assembled yet"
    )))
}
