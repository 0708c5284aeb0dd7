//! Behaviour tests, one module a behaviour; linked once.

mod ack_after_commit;
mod broker;
mod clients;
mod crash;
mod docs;
mod harness;
mod house;
mod identity;
mod limits;
mod master_key;
mod qos_flows;
mod restart;
mod store_contract;
mod store_outage;
mod takeover;
mod topic_access;
mod wire;
