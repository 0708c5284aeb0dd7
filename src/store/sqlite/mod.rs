//! The store on SQLite: WAL, synchronous=FULL, one writer.
