//! Tanit: an Astarte-compatible `IoT` device broker and data engine in one binary.
//!
//! A device is let in by its certificate, what it sends is understood and stored, and only then
//! acknowledged. The map of the house, from the ground up; arrows of knowledge go down only:
//!
//! | module | what it is |
//! | --- | --- |
//! | [`identity`], [`interface`], [`payload`] | parsed once, valid ever after; pure |
//! | [`clock`] | time, passed in |
//! | [`pki`], [`store`] | realm CAs and who is let in; realms, devices and their data |
//! | [`mqtt`] | the broker; declares the traits that it asks of an engine |
//! | [`engine`] | implements them: resolve, decode, validate, commit, acknowledge |
//! | [`api`], [`cli`] | the control API, and its client |
//! | [`config`], [`telemetry`], [`shutdown`], [`node`] | settings, logs and metrics, stopping, assembly |
//!
//! `docs/ARCHITECTURE.md` tells the life of a PUBLISH and of a connection.

pub mod api;
pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod identity;
pub mod interface;
pub mod mqtt;
pub mod node;
pub mod payload;
pub mod pki;
pub mod shutdown;
pub mod store;
pub mod telemetry;
