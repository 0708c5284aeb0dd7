//! Server to device: queue first, deliver next.
