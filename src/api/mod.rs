//! The control API over HTTP and the Unix socket.
