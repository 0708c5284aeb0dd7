//! How the end of a transaction can look from here.

/// What came of a transaction that was to be committed, if it did not fail.
#[derive(Debug)]
pub(super) enum Attempt<T> {
    /// It is committed and flushed.
    Committed(T),
    /// The connection was lost at the very moment: only the database knows.
    InDoubt(T),
}
