//! `tanit device`: the devices of a realm.

use clap::{Args, Subcommand, builder::PossibleValuesParser};
use reqwest::Method;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Context,
    client::{Client, Request},
    credentials::Credentials,
    exit::{Doing as _, Exit, Failure},
    output::Column,
    rows,
};
use crate::identity::{DeviceId, RealmName};

/// Devices that one answer lists at most.
const PAGE: usize = 1000;

/// Register, list, show, inhibit, revoke and delete devices; get their certificates.
#[derive(Debug, Subcommand)]
pub(super) enum Device {
    Register(Register),
    List(List),
    /// Show a device: status, introspection, session, certificate.
    Show(One),
    Inhibit(Inhibit),
    /// Lift an inhibition.
    Allow(One),
    /// Close a device's connection; it may connect again.
    Disconnect(One),
    Unregister(Unregister),
    Delete(Delete),
    Revoke(Revoke),
    /// Show the newest messages of a device that were refused, and why.
    Errors(One),
    /// Show when a device connected and disconnected, and why.
    History(One),
    Credentials(Credentials),
}

/// Register a device and print its credentials secret, which is shown this once.
///
/// The id is random, or the one that is given, or derived from a namespace and a hardware id (UUID
/// version 5, as `astartectl utils device-id compute-from-string`). A device that has never asked for
/// a certificate, or was unregistered, gets a new secret.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit device register acme
  tanit device register acme Zm9vYmFyYmF6cXV4MTIzNA
  tanit device register acme --namespace f79ad91f-c638-4889-ae74-9d001a3b4cf8 --hardware-id 0004a3")]
pub(super) struct Register {
    /// Realm.
    realm: RealmName,
    /// Device id: 22 characters of base64url.
    #[arg(conflicts_with_all = ["namespace", "hardware_id"], allow_hyphen_values = true)]
    id: Option<String>,
    /// UUID of the namespace that ids are derived in.
    #[arg(long, value_name = "UUID", requires = "hardware_id")]
    namespace: Option<Uuid>,
    /// What the hardware calls itself: a serial number, a MAC address.
    #[arg(long, value_name = "TEXT", requires = "namespace")]
    hardware_id: Option<String>,
}

/// List the devices of a realm.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit device list acme --connected
  tanit device list acme --inhibited=false --interface org.example.Sensor
  tanit device list acme --json | jq -r '.[].id'")]
pub(super) struct List {
    /// Realm.
    realm: RealmName,
    /// Only connected ones (=false: only the others).
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = PossibleValuesParser::new(["true", "false"]))]
    connected: Option<String>,
    /// Only inhibited ones (=false: only the others).
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", value_parser = PossibleValuesParser::new(["true", "false"]))]
    inhibited: Option<String>,
    /// Only those that declare this interface.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Only those after this id, in the order of ids.
    #[arg(long, value_name = "ID")]
    after: Option<DeviceId>,
    /// At most so many [default: all].
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
}

/// A device, by its id.
#[derive(Debug, Args)]
pub(super) struct One {
    /// Realm.
    realm: RealmName,
    /// Device id.
    #[arg(value_name = "DEVICE", allow_hyphen_values = true)]
    id: DeviceId,
}

/// Inhibit a device's credentials: no new certificate, no connection (the live one is closed).
#[derive(Debug, Args)]
pub(super) struct Inhibit {
    #[command(flatten)]
    one: One,
}

/// Forget a device's secret; its data, and the certificate that it has, stay.
///
/// Register it again to give it a new secret.
#[derive(Debug, Args)]
pub(super) struct Unregister {
    #[command(flatten)]
    one: One,
}

/// Delete a device with everything that is its own: data, session, queue, history.
#[derive(Debug, Args)]
pub(super) struct Delete {
    #[command(flatten)]
    one: One,
}

/// Revoke a certificate of a device and close the connection that was made with it.
#[derive(Debug, Args)]
pub(super) struct Revoke {
    #[command(flatten)]
    one: One,
    /// Serial number of the certificate, hexadecimal [default: its newest one].
    #[arg(long, value_name = "HEX")]
    serial: Option<String>,
}

impl Device {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        match self {
            Self::Register(verb) => verb.run(context).await,
            Self::List(verb) => verb.run(context).await,
            Self::Show(one) => one.show(context).await,
            Self::Inhibit(Inhibit { one }) => one.inhibit(context, true).await,
            Self::Allow(one) => one.inhibit(context, false).await,
            Self::Disconnect(one) => one.disconnect(context).await,
            Self::Unregister(Unregister { one }) => one.unregister(context).await,
            Self::Delete(Delete { one }) => one.delete(context).await,
            Self::Revoke(verb) => verb.run(context).await,
            Self::Errors(one) => one.errors(context).await,
            Self::History(one) => one.history(context).await,
            Self::Credentials(verb) => verb.run(context).await,
        }
    }
}

impl Register {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let mut data = json!({});
        if let Some(id) = &self.id {
            data["device_id"] = json!(id);
        }
        if let (Some(namespace), Some(hardware_id)) = (self.namespace, &self.hardware_id) {
            data["namespace"] = json!(namespace.to_string());
            data["hardware_id"] = json!(hardware_id);
        }
        let path = ["tanit", "v1", "realms", self.realm.as_str(), "devices"];
        let doing = format_args!("register a device in the realm {}", self.realm);
        let registered = client
            .send(Request::post(path).data(&data))
            .await
            .doing(doing)?;
        // what the API may add later is not part of this verb's shape
        let result = json!({
            "device_id": registered["device_id"],
            "credentials_secret": registered["credentials_secret"],
        });
        context.output.object(&result);
        context.output.note("the secret is not shown again");
        Ok(Exit::Done)
    }
}

impl List {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let devices = self.pages(&client).await;
        let devices = devices.doing(format_args!("list the devices of {}", self.realm))?;
        let columns = [
            Column("DEVICE", "/id"),
            Column("CONNECTED", "/connected"),
            Column("INHIBITED", "/credentials_inhibited"),
            Column("LAST CONNECTION", "/last_connection"),
            Column("ADDRESS", "/last_seen_ip"),
            Column("MESSAGES", "/total_received_msgs"),
        ];
        context.output.list(&devices, &columns);
        Ok(Exit::Done)
    }

    async fn pages(&self, client: &Client) -> Result<Vec<Value>, Failure> {
        let wanted = self.limit.unwrap_or(usize::MAX);
        let mut devices = Vec::new();
        let mut after = self.after.map(|id| id.to_string());
        while devices.len() < wanted {
            let asked = PAGE.min(wanted - devices.len());
            let path = ["tanit", "v1", "realms", self.realm.as_str(), "devices"];
            let request = Request::get(path)
                .query("connected", self.connected.as_deref())
                .query("inhibited", self.inhibited.as_deref())
                .query("interface", self.interface.as_deref())
                .query("after", after.as_deref())
                .query("limit", Some(asked));
            let page = rows(client.send(request).await?)?;
            let is_last = page.len() < asked;
            after = page
                .last()
                .and_then(|device| device["id"].as_str())
                .map(str::to_owned);
            devices.extend(page);
            if is_last || after.is_none() {
                break;
            }
        }
        Ok(devices)
    }
}

impl One {
    /// For messages.
    fn name(&self) -> String {
        format!("{}/{}", self.realm, self.id)
    }

    async fn send(
        &self,
        client: &Client,
        method: Method,
        rest: Option<&str>,
        data: Option<&Value>,
    ) -> Result<Value, Failure> {
        let id = self.id.to_string();
        let path = ["tanit", "v1", "realms", self.realm.as_str(), "devices", &id];
        let mut request = Request::new(method, path.into_iter().chain(rest));
        if let Some(data) = data {
            request = request.data(data);
        }
        client.send(request).await
    }

    async fn show(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let device = self.send(&client, Method::GET, None, None).await;
        let device = device.doing(format_args!("show the device {}", self.name()))?;
        context.output.object(&device);
        Ok(Exit::Done)
    }

    async fn inhibit(self, context: &mut Context, is_inhibited: bool) -> Result<Exit, Failure> {
        let client = context.client()?;
        let verb = if is_inhibited { "inhibit" } else { "allow" };
        let name = self.name();
        let done = self.send(&client, Method::POST, Some(verb), None).await;
        done.doing(format_args!("{verb} the device {name}"))?;
        let result = json!({ "device_id": self.id, "credentials_inhibited": is_inhibited });
        let state = if is_inhibited { "inhibited" } else { "allowed" };
        context
            .output
            .text(&result, &format!("the device {name} is {state}"));
        Ok(Exit::Done)
    }

    async fn disconnect(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let name = self.name();
        let answer = self
            .send(&client, Method::POST, Some("disconnect"), None)
            .await;
        let answer = answer.doing(format_args!("disconnect the device {name}"))?;
        let was_connected = answer["disconnected"].as_bool().unwrap_or(true);
        let result = json!({ "device_id": self.id, "disconnected": was_connected });
        let state = if was_connected {
            "is disconnected"
        } else {
            "was not connected"
        };
        context
            .output
            .text(&result, &format!("the device {name} {state}"));
        Ok(Exit::Done)
    }

    async fn unregister(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let name = self.name();
        context.confirm(&format!("make the secret of the device {name} useless"))?;
        let done = self
            .send(&client, Method::DELETE, Some("registration"), None)
            .await;
        done.doing(format_args!("unregister the device {name}"))?;
        let result = json!({ "device_id": self.id, "unregistered": true });
        context
            .output
            .text(&result, &format!("the device {name} is unregistered"));
        Ok(Exit::Done)
    }

    async fn delete(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let name = self.name();
        context.confirm(&format!("delete the device {name} with all its data"))?;
        let done = self.send(&client, Method::DELETE, None, None).await;
        done.doing(format_args!("delete the device {name}"))?;
        let result = json!({ "device_id": self.id, "deleted": true });
        context
            .output
            .text(&result, &format!("the device {name} is deleted"));
        Ok(Exit::Done)
    }

    async fn errors(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let errors = self
            .send(&client, Method::GET, Some("errors"), None)
            .await
            .and_then(rows);
        let errors = errors.doing(format_args!("list the errors of {}", self.name()))?;
        let columns = [
            Column("TIME", "/at"),
            Column("ERROR", "/error_name"),
            Column("INTERFACE", "/interface"),
            Column("PATH", "/path"),
            Column("DETAIL", "/detail"),
        ];
        context.output.list(&errors, &columns);
        Ok(Exit::Done)
    }

    async fn history(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let events = self
            .send(&client, Method::GET, Some("history"), None)
            .await
            .and_then(rows);
        let events = events.doing(format_args!("list the history of {}", self.name()))?;
        let columns = [
            Column("TIME", "/at"),
            Column("EVENT", "/event"),
            Column("REASON", "/reason"),
            Column("ADDRESS", "/ip"),
            Column("SEQUENCE", "/sequence"),
        ];
        context.output.list(&events, &columns);
        Ok(Exit::Done)
    }
}

impl Revoke {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let name = self.one.name();
        let which = match &self.serial {
            Some(serial) => format!("the certificate {serial}"),
            None => "the newest certificate".to_owned(),
        };
        context.confirm(&format!("revoke {which} of the device {name}"))?;
        let data = self
            .serial
            .as_ref()
            .map_or_else(|| json!({}), |s| json!({ "serial": s }));
        let answer = self
            .one
            .send(&client, Method::POST, Some("revoke"), Some(&data))
            .await;
        let answer = answer.doing(format_args!("revoke {which} of the device {name}"))?;
        let serial = match &answer["serial"] {
            Value::Null => json!(self.serial),
            serial => serial.clone(),
        };
        let text = match serial.as_str() {
            Some(serial) => format!("the certificate {serial} of the device {name} is revoked"),
            None => format!("the newest certificate of the device {name} is revoked"),
        };
        let result = json!({ "device_id": self.one.id, "serial": serial, "revoked": true });
        context.output.text(&result, &text);
        Ok(Exit::Done)
    }
}
