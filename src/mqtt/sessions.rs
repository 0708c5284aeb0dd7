//! Sessions on disk: subscriptions, the outbound queue, its flow state and retained messages.
//!
//! One writer thread owns every write transaction and commits what came in while the last commit
//! was on its way. What must be on disk before which packet leaves is said at each call.
