//! `tanit device credentials`: what a device does at first, done here.

use std::path::{Path, PathBuf};

use clap::Args;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{
    Context,
    client::{Client, Request},
    exit::{Doing as _, Exit, Failure},
    files,
    secret::Secret,
};
use crate::identity::RealmName;

/// Make a key and a certificate request here, have Pairing issue the certificate, and write
/// device.key (0600), device.crt and server-ca.crt.
///
/// The private key never leaves this machine. Files that are there are replaced, all or none, so the
/// same command renews a certificate.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tanit device credentials acme DEVICE_ID --secret SECRET --out ./device
  mosquitto_pub -h localhost -p 8883 --cafile device/server-ca.crt --cert device/device.crt \\
    --key device/device.key -t acme/DEVICE_ID -m 'org.example.Sensor:1:0' -q 2")]
pub(super) struct Credentials {
    /// Realm.
    realm: RealmName,
    /// Device id.
    #[arg(value_name = "DEVICE", allow_hyphen_values = true)]
    id: String,
    /// The device's credentials secret; @FILE reads it from a file.
    #[arg(long, value_name = "SECRET")]
    secret: Secret,
    /// Directory for the files; made when missing.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Credentials {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let secret = files::read_secret(&self.secret)?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(making)?;
        let csr = csr(&key)?;
        let out = &self.out;
        std::fs::create_dir_all(out).doing(format_args!("make {}", out.display()))?;
        // a directory that cannot be written is better known before a certificate is issued
        let key_pem = Zeroizing::new(key.serialize_pem());
        files::check_writable(out)?;

        let doing = format!("get a certificate for {}/{}", self.realm, self.id);
        let info = self.ask(&client, &secret, None).await.doing(&doing)?;
        let issued = self.ask(&client, &secret, Some(&csr)).await.doing(&doing)?;
        let certificate = issued["client_crt"]
            .as_str()
            .ok_or_else(|| Failure::failed(format!("cannot {doing}: Pairing gave none")))?;
        let server_ca = server_ca(&client, &info, context).await;

        let [key_file, certificate_file, ca_file] =
            ["device.key", "device.crt", "server-ca.crt"].map(|name| out.join(name));
        files::replace(&key_file, key_pem.as_bytes(), 0o600)?;
        files::replace(&certificate_file, certificate.as_bytes(), 0o644)?;
        if let Some(pem) = &server_ca {
            files::replace(&ca_file, pem.as_bytes(), 0o644)?;
        } else {
            context.output.note(
                "server-ca.crt was not written: the node does not tell the CA of its certificate; copy \
                 server-ca.crt from its data directory, or the CA of the certificate that it is \
                 configured with",
            );
        }
        let result = json!({
            "device_key": key_file,
            "device_crt": certificate_file,
            "server_ca_crt": server_ca.map(|_| ca_file),
            "broker_url": info["protocols"]["astarte_mqtt_v1"]["broker_url"],
        });
        context.output.object(&result);
        Ok(Exit::Done)
    }

    /// Asks Pairing, as the device: its info, or a certificate for a request.
    async fn ask(
        &self,
        client: &Client,
        secret: &Secret,
        csr: Option<&str>,
    ) -> Result<Value, Failure> {
        let device = ["pairing", "v1", self.realm.as_str(), "devices", &self.id];
        let request = match csr {
            None => Request::get(device),
            Some(csr) => {
                let path =
                    device
                        .into_iter()
                        .chain(["protocols", "astarte_mqtt_v1", "credentials"]);
                Request::post(path).data(&json!({ "csr": csr }))
            }
        };
        client.send(request.bearer(secret.expose())).await
    }
}

/// A request with the subject that Astarte's SDKs use; the CA ignores it.
fn csr(key: &KeyPair) -> Result<String, Failure> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "Devices");
    params
        .serialize_request(key)
        .and_then(|csr| csr.pem())
        .map_err(making)
}

/// The CA of the server's certificate: as Pairing or the node tells it, or from the data directory.
async fn server_ca(client: &Client, info: &Value, context: &Context) -> Option<String> {
    let protocol = &info["protocols"]["astarte_mqtt_v1"];
    if let Some(pem) = [&protocol["ca_crt"], &info["ca_crt"]]
        .into_iter()
        .find_map(Value::as_str)
    {
        return Some(pem.to_owned());
    }
    if let Ok(status) = client.send(Request::get(["tanit", "v1", "status"])).await
        && let Some(pem) = status["server_ca_pem"].as_str()
    {
        return Some(pem.to_owned());
    }
    if context.global.url.is_some() {
        return None; // another machine's node, perhaps
    }
    from_directory(&context.data_dir())
}

fn from_directory(data_dir: &Path) -> Option<String> {
    files::read_text(&data_dir.join("server-ca.crt")).ok()
}

#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn making(error: rcgen::Error) -> Failure {
    Failure::failed(format!("the key and request cannot be made: {error}"))
}
