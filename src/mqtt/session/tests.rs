//! The machine, case by case.

use super::*;
use crate::mqtt::packet::Connect;

pub(super) const BASE: &str = "acme/Zm9vYmFyYmF6cXV4MTIzNA";

pub(in crate::mqtt) fn identity() -> Identity {
    BASE.parse().expect("canonical")
}

pub(in crate::mqtt) fn connect(version: Version) -> Connect {
    Connect {
        version,
        clean_start: true,
        keep_alive: 60,
        client_id: "any".into(),
        will: None,
        username: None,
        password: None,
        session_expiry: None,
        receive_maximum: None,
        maximum_packet_size: None,
        topic_alias_maximum: 0,
        request_response_information: false,
        request_problem_information: true,
        authentication_method: None,
        authentication_data: None,
        user_properties: Vec::new(),
    }
}
