//! Behaviour tests, one module a behaviour; linked once.

mod ack_after_commit;
mod crash;
mod harness;
mod house;
mod qos_flows;
mod restart;
mod takeover;
mod topic_access;
