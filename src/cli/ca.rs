//! `tanit realm ca`: the pool of CAs that a realm's device certificates may come from.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Context,
    client::{Client, Request},
    exit::{Doing as _, Exit, Failure},
    files,
    output::Column,
    rows,
};
use crate::identity::RealmName;

/// Print, list, rotate, import and remove a realm's CAs.
#[derive(Debug, Subcommand)]
pub(super) enum Ca {
    Print(Print),
    /// List the CAs of a realm.
    List(List),
    Rotate(Rotate),
    Import(Import),
    Remove(Remove),
}

/// Print a CA certificate (PEM): the one that issues, or another of the pool.
#[derive(Debug, Args)]
pub(super) struct Print {
    /// Realm.
    realm: RealmName,
    /// SHA-256 fingerprint of the CA, or its first digits [default: the one that issues].
    fingerprint: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// Realm.
    realm: RealmName,
}

/// Make a new CA, from which certificates are issued from now on.
///
/// The old one stays in the pool, so that devices can go on connecting and renew; remove it when they
/// have. No restart is needed.
#[derive(Debug, Args)]
pub(super) struct Rotate {
    /// Realm.
    realm: RealmName,
}

/// Add an operator's own CA to the pool.
///
/// With its private key, Pairing can issue certificates from it (--issuing); without, it only
/// verifies what was issued elsewhere. Keys are PKCS #8, SEC 1 or PKCS #1, unencrypted; they are kept
/// encrypted under the master key.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit realm ca import acme factory-ca.pem
  tanit realm ca import acme acme-ca.pem --key acme-ca.key --issuing")]
pub(super) struct Import {
    /// Realm.
    realm: RealmName,
    /// CA certificate (PEM): a root or an intermediate.
    #[arg(value_name = "FILE")]
    certificate: PathBuf,
    /// Its private key (PEM).
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// Issue certificates from it from now on.
    #[arg(long, requires = "key")]
    issuing: bool,
}

/// Remove a CA from the pool; devices with its certificates are disconnected and not let in again.
#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Realm.
    realm: RealmName,
    /// SHA-256 fingerprint of the CA, or its first digits.
    fingerprint: String,
}

impl Ca {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        match self {
            Self::Print(verb) => verb.run(context).await,
            Self::List(verb) => verb.run(context).await,
            Self::Rotate(verb) => verb.run(context).await,
            Self::Import(verb) => verb.run(context).await,
            Self::Remove(verb) => verb.run(context).await,
        }
    }
}

async fn pool(client: &Client, realm: &RealmName) -> Result<Vec<Value>, Failure> {
    let request = Request::get(["tanit", "v1", "realms", realm.as_str(), "cas"]);
    client
        .send(request)
        .await
        .and_then(rows)
        .doing(format_args!("list the CAs of the realm {realm}"))
}

/// The one CA whose fingerprint begins so.
fn find<'a>(cas: &'a [Value], realm: &RealmName, digits: &str) -> Result<&'a Value, Failure> {
    let digits = digits.to_ascii_lowercase().replace(':', "");
    let begins = |ca: &&Value| {
        !digits.is_empty()
            && ca["fingerprint"]
                .as_str()
                .is_some_and(|f| f.starts_with(&digits))
    };
    let mut found = cas.iter().filter(begins);
    match (found.next(), found.next()) {
        (Some(ca), None) => Ok(ca),
        (None, _) => Err(Failure::failed(format!(
            "the realm {realm} has no CA whose fingerprint begins with {digits:?}; \
             `tanit realm ca list {realm}` shows them"
        ))),
        (Some(_), Some(_)) => Err(Failure::failed(format!(
            "the realm {realm} has more than one CA whose fingerprint begins with {digits}"
        ))),
    }
}

impl Print {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let cas = pool(&client, &self.realm).await?;
        let ca = match &self.fingerprint {
            Some(digits) => find(&cas, &self.realm, digits)?,
            None => cas.iter().find(|ca| ca["issuing"] == true).ok_or_else(|| {
                Failure::failed(format!(
                    "no CA of the realm {} issues certificates",
                    self.realm
                ))
            })?,
        };
        let pem = ca["certificate_pem"].as_str().unwrap_or_default();
        context.output.text(ca, pem);
        Ok(Exit::Done)
    }
}

impl List {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let cas = pool(&client, &self.realm).await?;
        let columns = [
            Column("FINGERPRINT", "/fingerprint"),
            Column("ISSUING", "/issuing"),
            Column("NOT AFTER", "/not_after"),
            Column("SUBJECT", "/subject"),
        ];
        context.output.list(&cas, &columns);
        Ok(Exit::Done)
    }
}

/// What is said of a CA just added.
fn added(context: &mut Context, ca: &Value) {
    let mut shown = ca.clone();
    if !context.output.is_json()
        && let Some(fields) = shown.as_object_mut()
    {
        fields.remove("certificate_pem");
    }
    context.output.object(&shown);
}

impl Rotate {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let realm = &self.realm;
        let request = Request::post(["tanit", "v1", "realms", realm.as_str(), "cas", "rotate"]);
        let doing = format_args!("rotate the CA of the realm {realm}");
        let ca = client.send(request).await.doing(doing)?;
        added(context, &ca);
        context
            .output
            .note("the old CA stays in the pool until it is removed");
        Ok(Exit::Done)
    }
}

impl Import {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let realm = &self.realm;
        let mut data = json!({
            "certificate_pem": files::read_text(&self.certificate)?,
            "issuing": self.issuing,
        });
        if let Some(key) = &self.key {
            data["private_key_pem"] = json!(files::read_text(key)?);
        }
        let request = Request::post(["tanit", "v1", "realms", realm.as_str(), "cas"]).data(&data);
        let file = self.certificate.display();
        let doing = format_args!("import {file} into the realm {realm}");
        let ca = client.send(request).await.doing(doing)?;
        added(context, &ca);
        Ok(Exit::Done)
    }
}

impl Remove {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let realm = &self.realm;
        let cas = pool(&client, realm).await?;
        let fingerprint = find(&cas, realm, &self.fingerprint)?["fingerprint"].clone();
        let fingerprint = fingerprint.as_str().unwrap_or_default();
        context.confirm(&format!(
            "remove the CA {fingerprint} from the realm {realm} and disconnect its devices"
        ))?;
        let path = ["tanit", "v1", "realms", realm.as_str(), "cas", fingerprint];
        let doing = format_args!("remove the CA {fingerprint} from the realm {realm}");
        client.send(Request::delete(path)).await.doing(doing)?;
        let result = json!({ "fingerprint": fingerprint, "removed": true });
        context
            .output
            .text(&result, &format!("the CA {fingerprint} is removed"));
        Ok(Exit::Done)
    }
}
