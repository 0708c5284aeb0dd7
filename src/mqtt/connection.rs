//! The task of one socket: read, feed the session, perform its effects, keep the timers.
