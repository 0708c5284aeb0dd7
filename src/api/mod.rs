//! The control API over HTTP and the Unix socket.

pub mod auth;
pub mod body;
pub mod error;
