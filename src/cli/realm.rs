//! `tanit realm`: tenants, each with its own devices, interfaces, CAs and keys.

use std::{io::Write as _, path::PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::{
    Context,
    ca::Ca,
    client::Request,
    exit::{Doing as _, Exit, Failure},
    files,
    output::Column,
    rows,
    times::Moment,
};
use crate::identity::RealmName;

/// Create, list, show and delete realms; their CAs; their worst devices.
#[derive(Debug, Subcommand)]
pub(super) enum Realm {
    Create(Create),
    /// List the realms.
    List(List),
    /// Show a realm.
    Show(Show),
    Delete(Delete),
    #[command(subcommand)]
    Ca(Ca),
    Errors(Errors),
    Reconnects(Reconnects),
}

/// Make a realm with a CA of its own for device certificates.
///
/// Tokens of the realm are verified by the public key that is given. With none, a P-256 pair is made
/// and its private key kept, encrypted, for `tanit token`; --private-key-out writes it to a file
/// instead and keeps nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit realm create acme
  tanit realm create acme --public-key acme.pub.pem
  tanit realm create acme --private-key-out acme.key.pem")]
pub(super) struct Create {
    /// Name: a lower-case letter, then up to 47 lower-case letters or digits.
    realm: RealmName,
    /// Public key (PEM; RSA, P-256 or P-384) that verifies the realm's tokens.
    #[arg(long, value_name = "FILE", conflicts_with = "private_key_out")]
    public_key: Option<PathBuf>,
    /// Where to write the private key of the pair that is made (0600; must not exist).
    #[arg(long, value_name = "FILE")]
    private_key_out: Option<PathBuf>,
    /// Most devices that may be registered [default: no limit].
    #[arg(long, value_name = "COUNT")]
    device_registration_limit: Option<u64>,
    /// Longest time that datastream values are kept, in seconds [default: for ever].
    #[arg(long, value_name = "SECONDS")]
    datastream_maximum_storage_retention: Option<u64>,
}

#[derive(Debug, Args)]
pub(super) struct List {}

#[derive(Debug, Args)]
pub(super) struct Show {
    /// Realm.
    realm: RealmName,
}

/// Delete a realm with all its devices, interfaces and data.
///
/// Refused while devices are connected, unless --force disconnects them.
#[derive(Debug, Args)]
pub(super) struct Delete {
    /// Realm.
    realm: RealmName,
    /// Disconnect its devices first.
    #[arg(long)]
    force: bool,
}

/// Show which devices sent most messages that were refused, and with which errors.
#[derive(Debug, Args)]
pub(super) struct Errors {
    #[command(flatten)]
    top: Top,
}

/// Show which devices connected most often.
#[derive(Debug, Args)]
pub(super) struct Reconnects {
    #[command(flatten)]
    top: Top,
}

#[derive(Debug, Args)]
struct Top {
    /// Realm.
    realm: RealmName,
    /// From then on: a time (ISO 8601), or so long ago.
    #[arg(long, value_name = "TIME", default_value = "1h")]
    since: Moment,
}

const COLUMNS: [Column; 4] = [
    Column("REALM", "/realm_name"),
    Column("DEVICES", "/total_devices"),
    Column("CONNECTED", "/connected_devices"),
    Column("LIMIT", "/device_registration_limit"),
];

impl Realm {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        match self {
            Self::Create(verb) => verb.run(context).await,
            Self::List(verb) => verb.run(context).await,
            Self::Show(verb) => verb.run(context).await,
            Self::Delete(verb) => verb.run(context).await,
            Self::Ca(verb) => verb.run(context).await,
            Self::Errors(Errors { top }) => top.run(context, "errors").await,
            Self::Reconnects(Reconnects { top }) => top.run(context, "reconnects").await,
        }
    }
}

impl Create {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let mut data = json!({ "realm_name": self.realm });
        if let Some(path) = &self.public_key {
            data["jwt_public_key_pem"] = json!(files::read_text(path)?);
        } else {
            let kept = if self.private_key_out.is_some() {
                "return"
            } else {
                "keep"
            };
            data["private_key"] = json!(kept);
        }
        if let Some(limit) = self.device_registration_limit {
            data["device_registration_limit"] = json!(limit);
        }
        if let Some(retention) = self.datastream_maximum_storage_retention {
            data["datastream_maximum_storage_retention"] = json!(retention);
        }
        // the file first: a key that could not be written would be lost
        let key_file = match &self.private_key_out {
            Some(path) => Some((path, files::create(path, 0o600)?)),
            None => None,
        };
        let request = Request::post(["tanit", "v1", "realms"]).data(&data);
        let created = client.send(request).await;
        let mut created = match created.doing(format_args!("create the realm {}", self.realm)) {
            Ok(created) => created,
            Err(failure) => {
                if let Some((path, _)) = &key_file {
                    let _ = std::fs::remove_file(path);
                }
                return Err(failure);
            }
        };
        if let Some((path, mut file)) = key_file {
            let taken = created
                .as_object_mut()
                .and_then(|c| c.remove("jwt_private_key_pem"));
            let Some(Value::String(pem)) = taken else {
                return Err(Failure::failed("the node gave no private key"));
            };
            let pem = Zeroizing::new(pem);
            file.write_all(pem.as_bytes())
                .and_then(|()| file.sync_all())
                .doing(format_args!(
                    "write the realm's private key to {}",
                    path.display()
                ))?;
            context
                .output
                .note(&format!("private key written to {}", path.display()));
        }
        context.output.object(&created);
        Ok(Exit::Done)
    }
}

impl List {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let request = Request::get(["tanit", "v1", "realms"]);
        let realms = client
            .send(request)
            .await
            .and_then(rows)
            .doing("list the realms")?;
        context.output.list(&realms, &COLUMNS);
        Ok(Exit::Done)
    }
}

impl Show {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let request = Request::get(["tanit", "v1", "realms", self.realm.as_str()]);
        let doing = format_args!("show the realm {}", self.realm);
        let realm = client.send(request).await.doing(doing)?;
        context.output.object(&realm);
        Ok(Exit::Done)
    }
}

impl Delete {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let realm = &self.realm;
        context.confirm(&format!(
            "delete the realm {realm} with all its devices, interfaces, CAs and data"
        ))?;
        let request = Request::delete(["tanit", "v1", "realms", realm.as_str()])
            .query("force", self.force.then_some(true));
        client
            .send(request)
            .await
            .doing(format_args!("delete the realm {realm}"))?;
        let result = json!({ "realm_name": realm, "deleted": true });
        context
            .output
            .text(&result, &format!("the realm {realm} is deleted"));
        Ok(Exit::Done)
    }
}

impl Top {
    async fn run(self, context: &mut Context, which: &str) -> Result<Exit, Failure> {
        let client = context.client()?;
        let realm = &self.realm;
        let since = self.since.resolve(context.clock.wall());
        let request = Request::get(["tanit", "v1", "realms", realm.as_str(), which])
            .query("since", Some(since));
        let doing = format_args!("list the {which} of the realm {realm}");
        let devices = client.send(request).await.and_then(rows).doing(doing)?;
        let mut columns = vec![Column("COUNT", "/count"), Column("DEVICE", "/device_id")];
        if which == "errors" {
            columns.push(Column("ERROR", "/error_name"));
        }
        context.output.list(&devices, &columns);
        Ok(Exit::Done)
    }
}
