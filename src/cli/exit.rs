//! What the program's exit code says, and why a verb did not do what it was asked.

use std::fmt;

/// Exit codes of every verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Done = 0,
    /// Failed; trying again will not help by itself.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// Ran, and found problems in what it looked at.
    FoundProblems = 3,
    /// Try again later: the node is not there or not ready, the database is away, a queue is full.
    TryLater = 75,
    /// The configuration is wrong.
    BadConfiguration = 78,
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// Why a verb failed: what happened, to what, and what to do next, on one or more lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) exit: Exit,
    pub(super) message: String,
}

impl Failure {
    pub(super) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self {
            exit,
            message: message.into(),
        }
    }

    pub(super) fn failed(message: impl Into<String>) -> Self {
        Self::new(Exit::Failed, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Puts in front of a failure what was being done.
pub(super) trait Doing<T> {
    /// `doing` reads on from "cannot": `delete the realm acme`.
    fn doing(self, doing: impl fmt::Display) -> Result<T, Failure>;
}

impl<T> Doing<T> for Result<T, Failure> {
    fn doing(self, doing: impl fmt::Display) -> Self {
        self.map_err(|failure| Failure {
            exit: failure.exit,
            message: format!("cannot {doing}: {failure}"),
        })
    }
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, doing: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::failed(format!("cannot {doing}: {error}")))
    }
}
