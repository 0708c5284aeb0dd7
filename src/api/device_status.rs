//! A device as AppEngine shows it.

use serde_json::{Map, Value, json};

use crate::{engine::devices::DeviceView, interface::InterfaceKey, store::ExchangedRow};

/// AppEngine's status object of a device.
#[must_use]
pub fn status(view: &DeviceView) -> Value {
    let row = &view.row;
    let introspection: Map<String, Value> = row
        .introspection
        .iter()
        .map(|(name, version)| {
            let (messages, bytes) = exchanged(&view.exchanged, name, version.major);
            let entry = json!({
                "major": version.major,
                "minor": version.minor,
                "exchanged_msgs": messages,
                "exchanged_bytes": bytes,
            });
            (name.to_string(), entry)
        })
        .collect();
    let previous: Vec<Value> = row
        .previous_interfaces
        .iter()
        .map(|((name, major), minor)| {
            let (messages, bytes) = exchanged(&view.exchanged, name, *major);
            json!({
                "name": name,
                "major": major,
                "minor": minor,
                "exchanged_msgs": messages,
                "exchanged_bytes": bytes,
            })
        })
        .collect();
    json!({
        "id": row.identity.device,
        "connected": row.connected,
        "introspection": introspection,
        "previous_interfaces": previous,
        "total_received_msgs": row.total_received_msgs,
        "total_received_bytes": row.total_received_bytes,
        "last_connection": row.last_connection,
        "last_disconnection": row.last_disconnection,
        "first_registration": row.first_registration,
        "first_credentials_request": row.first_credentials_request,
        "last_seen_ip": row.last_seen_ip,
        "last_credentials_request_ip": row.last_credentials_request_ip,
        "credentials_inhibited": row.credentials_inhibited,
        "aliases": row.aliases,
        "attributes": row.attributes,
        "groups": [],
        "deletion_in_progress": row.deletion_in_progress,
    })
}

/// Messages and bytes of an interface.
fn exchanged(rows: &[ExchangedRow], name: &str, major: u32) -> (u64, u64) {
    let is_it = |key: &InterfaceKey| &*key.name == name && key.major == major;
    rows.iter()
        .find(|row| is_it(&row.interface))
        .map_or((0, 0), |row| (row.messages, row.bytes))
}
