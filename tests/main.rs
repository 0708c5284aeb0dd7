//! Behaviour tests, one module a behaviour; linked once.

mod ack_after_commit;
mod backup;
mod broker;
mod crash;
mod cut_flows;
mod harness;
mod house;
mod introspection;
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
