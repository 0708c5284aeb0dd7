//! AppEngine as an application calls it: over TCP, with a token of the realm.

use reqwest::Method;
use serde_json::{Value, json};

use super::product::{Tanit, TestDevice};

/// An application of one realm.
pub(crate) struct AppEngine {
    client: reqwest::Client,
    realm: String,
    token: String,
}

impl AppEngine {
    /// With a token for everything in AppEngine.
    pub(crate) async fn of(tanit: &Tanit, realm: &str) -> Self {
        super::install_crypto();
        let token = tanit.cli(&["token", realm, "--api", "appengine"]).await;
        Self {
            client: reqwest::Client::new(),
            realm: realm.to_owned(),
            token: token["token"].as_str().expect("a token").to_owned(),
        }
    }

    /// Sets a value of a server-owned interface.
    pub(crate) async fn put(
        &self,
        tanit: &Tanit,
        device: &TestDevice,
        at: &str,
        value: &Value,
    ) -> (u16, Value) {
        self.call(tanit, Method::PUT, device, at, Some(value)).await
    }

    /// Unsets a property of a server-owned interface.
    pub(crate) async fn delete(
        &self,
        tanit: &Tanit,
        device: &TestDevice,
        at: &str,
    ) -> (u16, Value) {
        self.call(tanit, Method::DELETE, device, at, None).await
    }

    async fn call(
        &self,
        tanit: &Tanit,
        method: Method,
        device: &TestDevice,
        at: &str,
        data: Option<&Value>,
    ) -> (u16, Value) {
        let url = format!(
            "http://{}/appengine/v1/{}/devices/{}/interfaces/{at}",
            tanit.http, self.realm, device.id
        );
        let mut request = self.client.request(method, url).bearer_auth(&self.token);
        if let Some(data) = data {
            request = request.json(&json!({ "data": data }));
        }
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        let body = answer.bytes().await.expect("a body");
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }
}
