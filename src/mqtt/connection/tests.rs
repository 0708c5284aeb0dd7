//! Whole connections over an in-memory stream, with the real session store and a recording engine.

mod bench;
mod connect;
mod deliver;
mod ends;
mod flow;
