//! How a node stops.
