//! How a node stops.
//!
//! The first SIGTERM or Ctrl-C cancels the soft token: accepting stops, what was taken is committed
//! and acknowledged, then everything closes. A second signal, or the end of the drain time, cancels
//! the hard token: tasks are dropped where they stand. Nothing acknowledged is lost either way.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long tasks have to heed the hard token.
const HARD_GRACE: Duration = Duration::from_millis(500);

/// The two tokens and the tasks that heed them. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    /// Cancelled when the node is to stop in good order.
    pub soft: CancellationToken,
    /// Cancelled when it is to stop at once.
    pub hard: CancellationToken,
    /// Every task of the node.
    pub tasks: TaskTracker,
}

impl Shutdown {
    /// Nothing cancelled, no tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for all tasks, at most `grace`; then cancels the hard token and gives those that heed
    /// it a moment. Returns whether all ended by themselves.
    pub async fn drained(&self, grace: Duration) -> bool {
        self.tasks.close();
        tokio::select! {
            () = self.tasks.wait() => return true,
            () = self.hard.cancelled() => {}
            () = tokio::time::sleep(grace) => {}
        }
        self.hard.cancel();
        // whoever hangs beyond that goes with the process
        let _ = tokio::time::timeout(HARD_GRACE, self.tasks.wait()).await;
        false
    }
}

/// What an operator asks of the process by signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
}

/// The process's signals.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Takes over SIGTERM, SIGINT and SIGHUP.
    ///
    /// # Errors
    /// When the operating system refuses.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// The next one.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.hangup.recv() => Asked::Reload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_heeds_only_the_hard_token_ends_after_the_grace() {
        let shutdown = Shutdown::new();
        let hard = shutdown.hard.clone();
        shutdown.tasks.spawn(async move { hard.cancelled().await });
        shutdown.soft.cancel();
        assert!(!shutdown.drained(Duration::from_millis(10)).await);
    }

    #[tokio::test]
    async fn tasks_that_heed_the_soft_token_end_by_themselves() {
        let shutdown = Shutdown::new();
        let soft = shutdown.soft.clone();
        shutdown.tasks.spawn(async move { soft.cancelled().await });
        shutdown.soft.cancel();
        assert!(shutdown.drained(Duration::from_mins(1)).await);
    }
}
