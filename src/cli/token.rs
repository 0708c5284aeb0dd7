//! `tanit token`: a JWT for Astarte's APIs.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use super::{
    Context,
    client::Request,
    exit::{Doing as _, Exit, Failure},
    files, times,
};
use crate::{
    engine::tokens::{self, TokenApi},
    identity::RealmName,
    pki,
};

/// Sign a token that allows everything in the named APIs of a realm.
///
/// By default the node signs it with the realm's private key, if that was kept. With --key it is
/// signed here, and no node is needed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit token acme --api appengine --expiry 1h
  tanit token acme --api appengine,realm-management,pairing --key acme.key.pem
  tanit token --api housekeeping --key housekeeping.key.pem
  curl -H \"Authorization: Bearer $(tanit token acme --api appengine)\" \\
    http://127.0.0.1:8080/appengine/v1/acme/devices")]
pub(super) struct Token {
    /// Realm; not needed for a housekeeping token signed with --key.
    #[arg(required_unless_present = "key")]
    realm: Option<RealmName>,
    /// APIs that the token is for, separated by commas.
    #[arg(
        long,
        value_enum,
        value_name = "API",
        value_delimiter = ',',
        required = true
    )]
    api: Vec<Api>,
    /// How long it counts: 30m, 8h, 90days, or never for one that does not expire.
    #[arg(long, value_name = "TIME", default_value = "8h", value_parser = Expiry::parse)]
    expiry: Expiry,
    /// Private key (PEM; RSA, P-256 or P-384) to sign with, here.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Expiry(Option<Duration>);

impl Expiry {
    fn parse(text: &str) -> Result<Self, String> {
        times::expiry(text).map(Self)
    }
}

/// An API of Astarte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Api {
    #[value(name = "appengine")]
    AppEngine,
    #[value(alias = "realmmanagement")]
    RealmManagement,
    Pairing,
    Channels,
    Housekeeping,
}

impl Api {
    /// The name that the control API knows.
    const fn name(self) -> &'static str {
        match self {
            Self::AppEngine => "appengine",
            Self::RealmManagement => "realm-management",
            Self::Pairing => "pairing",
            Self::Channels => "channels",
            Self::Housekeeping => "housekeeping",
        }
    }

    const fn of_token(self) -> TokenApi {
        match self {
            Self::AppEngine => TokenApi::AppEngine,
            Self::RealmManagement => TokenApi::RealmManagement,
            Self::Pairing => TokenApi::Pairing,
            Self::Channels => TokenApi::Channels,
            Self::Housekeeping => TokenApi::Housekeeping,
        }
    }
}

impl Token {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let token = match (&self.key, &self.realm) {
            (Some(key), _) => {
                let apis: Vec<_> = self.api.iter().map(|api| api.of_token()).collect();
                let claims = tokens::claims(&apis, context.clock.wall(), self.expiry.0);
                sign(&files::read_text(key).map(Zeroizing::new)?, &claims)
                    .doing(format_args!("sign with {}", key.display()))?
            }
            (None, Some(realm)) => self.ask(context, realm).await?,
            (None, None) => {
                return Err(Failure::new(
                    Exit::Usage,
                    "name a realm, or a key with --key",
                ));
            }
        };
        context.output.text(&json!({ "token": token }), &token);
        Ok(Exit::Done)
    }

    async fn ask(&self, context: &Context, realm: &RealmName) -> Result<String, Failure> {
        let client = context.client()?;
        let apis: Vec<_> = self.api.iter().map(|api| api.name()).collect();
        // 0 is how the API says never
        let seconds = self.expiry.0.map_or(0, |expiry| expiry.as_secs());
        let request = Request::post(["tanit", "v1", "realms", realm.as_str(), "tokens"])
            .data(&json!({ "apis": apis, "expiry_seconds": seconds }));
        let doing = format_args!("get a token for the realm {realm}");
        let answer = client.send(request).await.doing(doing)?;
        let token = answer["token"].as_str().map(str::to_owned);
        token.ok_or_else(|| Failure::failed("the node gave no token"))
    }
}

/// Signs with the algorithm that the key is for: ES256, ES384 or RS256.
fn sign(key_pem: &str, claims: &Map<String, Value>) -> Result<String, Failure> {
    let pkcs8 = pki::pkcs8(key_pem).map_err(|error| Failure::failed(format!("it {error}")))?;
    let block = pem::Pem::new("PRIVATE KEY", pkcs8.to_vec());
    let pem = Zeroizing::new(pem::encode(&block));
    tokens::sign(&pem, claims)
        .map_err(|_| Failure::failed("it is neither an RSA key nor one on P-256 or P-384"))
}
