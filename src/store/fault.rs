//! Whose fault a database error is, told by its code.
//!
//! Three classes decide what happens to a batch: the database cannot do anything now (nothing is
//! refused, all is tried again), it refuses a value (one message is refused, its neighbours are
//! not), or it is broken in another way. A class that is not surely about a value must not be the
//! second: a refused message is acknowledged and gone.

use std::io;

use sqlx::{
    error::DatabaseError,
    migrate::{MigrateError, Migrator},
    postgres::PgDatabaseError,
    sqlite::SqliteError,
};

use super::StoreError;

/// Class of a database error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Not reachable, busy, full, stopping, read-only after a failover: may pass.
    Unavailable,
    /// What was to be written breaks a rule of the database.
    Value,
    /// Anything else: damage, missing rights, a bug.
    Other,
}

/// Tells the class of an error.
pub(super) fn classify(error: &sqlx::Error) -> Fault {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => Fault::Unavailable,
        sqlx::Error::Encode(_) | sqlx::Error::InvalidArgument(_) => Fault::Value,
        sqlx::Error::Database(error) => classify_code(error.as_ref()),
        _ => Fault::Other,
    }
}

fn classify_code(error: &dyn DatabaseError) -> Fault {
    let Some(code) = error.code() else {
        return Fault::Other;
    };
    if error.try_downcast_ref::<SqliteError>().is_some() {
        code.parse().map_or(Fault::Other, sqlite)
    } else if error.try_downcast_ref::<PgDatabaseError>().is_some() {
        postgres(&code)
    } else {
        Fault::Other
    }
}

/// By SQLite's result code, of which the low byte is the primary one
/// (<https://www.sqlite.org/rescode.html>).
fn sqlite(code: u32) -> Fault {
    const ERROR: u32 = 1;
    const BUSY: u32 = 5;
    const LOCKED: u32 = 6;
    const NOMEM: u32 = 7;
    const READONLY: u32 = 8;
    const INTERRUPT: u32 = 9;
    const IOERR: u32 = 10;
    const FULL: u32 = 13;
    const CANTOPEN: u32 = 14;
    const PROTOCOL: u32 = 15;
    const TOOBIG: u32 = 18;
    const CONSTRAINT: u32 = 19;
    const MISMATCH: u32 = 20;
    match code & 0xff {
        BUSY | LOCKED | NOMEM | READONLY | INTERRUPT | IOERR | FULL | CANTOPEN | PROTOCOL => {
            Fault::Unavailable
        }
        // ERROR is what SQL functions raise for their arguments
        ERROR | TOOBIG | CONSTRAINT | MISMATCH => Fault::Value,
        _ => Fault::Other,
    }
}

/// By SQLSTATE (PostgreSQL documentation, appendix A).
fn postgres(code: &str) -> Fault {
    match code {
        // read-only: the node that we reach is a standby since a failover
        "25006" | "25P03" | "55P03" | "57014" | "40001" | "40P01" | "40003" => Fault::Unavailable,
        "P0001" => Fault::Value,
        // connection, resources, operator's intervention, system
        _ => match code.get(..2) {
            Some("08" | "53" | "57" | "58") => Fault::Unavailable,
            // data exception, integrity constraint, program limit
            Some("22" | "23" | "54") => Fault::Value,
            _ => Fault::Other,
        },
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match classify(&error) {
            Fault::Unavailable => Self::Unavailable(error),
            Fault::Value | Fault::Other => Self::Database(error),
        }
    }
}

impl StoreError {
    /// Whether the database refused a value, so that its neighbours may be stored without it.
    pub(super) fn refuses_a_value(&self) -> bool {
        matches!(self, Self::Database(error) if classify(error) == Fault::Value)
    }

    /// Not available, for this reason.
    pub(super) fn unavailable(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unavailable(sqlx::Error::Io(io::Error::other(reason)))
    }

    /// The same failure again, for another caller of the same batch.
    pub(super) fn for_another(&self) -> Self {
        let source = match self {
            Self::Unavailable(source) | Self::Database(source) => source.to_string(),
            other => other.to_string(),
        };
        let source = sqlx::Error::Io(io::Error::other(source));
        match self {
            Self::Unavailable(_) => Self::Unavailable(source),
            _ => Self::Database(source),
        }
    }
}

/// What a failed migration means.
pub(super) fn of_migration(error: MigrateError, known: &Migrator) -> StoreError {
    match error {
        MigrateError::VersionMissing(found) => {
            let known = known
                .iter()
                .map(|migration| migration.version)
                .max()
                .unwrap_or(0);
            StoreError::SchemaTooNew { found, known }
        }
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => error.into(),
        error => StoreError::Database(sqlx::Error::Migrate(Box::new(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_busy_and_failing_disks_are_not_available_whatever_their_extended_code() {
        for code in [5, 5 + 2 * 256, 6, 8, 10, 10 + 4 * 256, 13, 14] {
            assert_eq!(sqlite(code), Fault::Unavailable, "code {code}");
        }
    }

    #[test]
    fn a_damaged_file_is_never_taken_for_a_bad_value() {
        for code in [11, 26] {
            assert_eq!(sqlite(code), Fault::Other, "code {code}");
        }
        for code in ["XX001", "XX002", "42P01", "42501"] {
            assert_eq!(postgres(code), Fault::Other, "code {code}");
        }
    }

    #[test]
    fn constraints_and_data_exceptions_are_about_a_value() {
        for code in [19, 19 + 6 * 256, 18, 20] {
            assert_eq!(sqlite(code), Fault::Value, "code {code}");
        }
        for code in ["22021", "23505", "23514", "54000", "P0001"] {
            assert_eq!(postgres(code), Fault::Value, "code {code}");
        }
    }

    #[test]
    fn a_stopped_or_demoted_server_is_not_available() {
        for code in [
            "57P01", "57P02", "57P03", "53100", "53300", "08006", "25006", "40001",
        ] {
            assert_eq!(postgres(code), Fault::Unavailable, "code {code}");
        }
    }
}
