//! Behaviour tests, one module a behaviour; linked once.

mod ack_after_commit;
mod backup;
mod broken;
mod broker;
mod clients;
mod crash;
mod cut_flows;
mod docs;
mod harness;
mod house;
mod identity;
mod introspection;
mod limits;
mod master_key;
mod operator;
mod payloads;
mod postgres_node;
mod qos_flows;
mod restart;
mod store_contract;
mod store_outage;
mod store_trouble;
mod takeover;
mod topic_access;
mod wire;
