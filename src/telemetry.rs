//! Logging, and the one list of metrics.
