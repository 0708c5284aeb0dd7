//! The store on PostgreSQL 14 and newer.
