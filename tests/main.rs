//! Behaviour tests, one module a behaviour; linked once.

mod ack_after_commit;
mod broken;
mod broker;
mod crash;
mod harness;
mod house;
mod qos_flows;
mod restart;
mod store_contract;
mod store_outage;
mod takeover;
mod topic_access;
