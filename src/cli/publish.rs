//! `tanit publish`: a server-owned value, to a device.

use clap::Args;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{
    Context,
    client::{Client, Request},
    exit::{Doing as _, Exit, Failure},
};
use crate::identity::{DeviceId, RealmName};

/// Send a value to a device on a server-owned interface; kept for it while it is away.
///
/// VALUE is read as JSON where the mapping takes that (42, 1.5, true, [1, 2], {"lat": 1.5}), and as
/// text otherwise, so that strings, times and base64 need no quotes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit publish acme DEVICE_ID org.example.Lamp /living/command on
  tanit publish acme DEVICE_ID org.example.Setpoint /celsius 21.5")]
pub(super) struct Publish {
    /// Realm.
    realm: RealmName,
    /// Device id.
    #[arg(value_name = "DEVICE", allow_hyphen_values = true)]
    id: DeviceId,
    /// Interface name.
    interface: String,
    /// Path, such as /celsius.
    path: String,
    /// Value.
    #[arg(allow_hyphen_values = true)]
    value: String,
}

impl Publish {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let Self {
            realm,
            id,
            interface,
            path,
            ..
        } = &self;
        let doing = format!("publish {interface}{path} to the device {realm}/{id}");
        let answer = self.send(&client).await.doing(&doing)?;
        let outcome = answer["outcome"].as_str().unwrap_or("accepted");
        let text = match (outcome, answer["until"].as_str()) {
            ("delivered", _) => "delivered to the connected device".to_owned(),
            ("queued", Some(until)) => format!("queued for the device until {until}"),
            ("queued", None) => "queued for the device".to_owned(),
            (outcome, _) => outcome.replace('_', " "),
        };
        match outcome {
            "queue_full" | "unavailable" => Err(Failure::new(
                Exit::TryLater,
                format!("cannot {doing}: {text}"),
            )),
            "refused" => {
                let reason = answer["reason"].as_str().unwrap_or("no reason was given");
                Err(Failure::failed(format!(
                    "cannot {doing}: refused: {reason}"
                )))
            }
            _ => {
                context.output.text(&answer, &text);
                Ok(Exit::Done)
            }
        }
    }

    /// Tries the value as JSON first; what is refused for its type stored nothing, and is tried as
    /// the text that it is.
    async fn send(&self, client: &Client) -> Result<Value, Failure> {
        let as_text = Value::from(self.value.as_str());
        let Ok(as_json) = serde_json::from_str::<Value>(&self.value) else {
            return self
                .send_value(client, &as_text)
                .await
                .map_err(|(_, failure)| failure);
        };
        let refused = match self.send_value(client, &as_json).await {
            Ok(answer) => return Ok(answer),
            Err((Some(StatusCode::UNPROCESSABLE_ENTITY), failure)) => failure,
            Err((_, failure)) => return Err(failure),
        };
        match self.send_value(client, &as_text).await {
            Ok(answer) => Ok(answer),
            // neither has the type: what is wrong with the JSON says more
            Err((Some(StatusCode::UNPROCESSABLE_ENTITY), _)) => Err(refused),
            Err((_, failure)) => Err(failure),
        }
    }

    async fn send_value(
        &self,
        client: &Client,
        value: &Value,
    ) -> Result<Value, (Option<StatusCode>, Failure)> {
        let id = self.id.to_string();
        let path = [
            "tanit",
            "v1",
            "realms",
            self.realm.as_str(),
            "devices",
            &id,
            "publish",
        ];
        let data = json!({ "interface": self.interface, "path": self.path, "value": value });
        client.send_or_status(Request::post(path).data(&data)).await
    }
}
