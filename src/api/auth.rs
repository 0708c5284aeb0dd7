//! Who may call what: tokens over TCP, file permissions on the Unix socket.
//!
//! A token's claim lists entries `METHOD:OPTS:PATH`; method and path are regular expressions over
//! the whole method and the whole rest of the path after the realm. An
//! entry that does not compile allows nothing. On the socket no token is asked for: whoever may
//! open the file is the operator. The layers here put a [`Actor`] and, within a realm, a
//! [`RealmScope`] into the request; a handler that asks for one without its layer gets 500, never
//! an open door.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex},
};

use axum::{
    extract::{FromRequestParts, Request, State},
    http::{HeaderMap, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::Response,
};
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

use super::error::ApiError;
use crate::{
    clock::SharedClock,
    engine::{
        actor::Actor,
        tokens::{InvalidTokenKey, TokenApi, TokenKey},
    },
    identity::RealmName,
    store::Store,
};

/// Entries of claims kept compiled; all are dropped when more are met.
const GRANTS_MAX: usize = 1024;
/// Longest entry that is looked at, in bytes.
const GRANT_BYTES_MAX: usize = 4096;
/// Bound of one compiled expression, in bytes.
const REGEX_BYTES_MAX: usize = 256 * 1024;

/// The other end of a connection; the server puts it into every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over the Unix socket, with the user of the other process.
    Socket {
        /// User id from the peer's credentials.
        uid: u32,
    },
}

impl Peer {
    /// The peer's address; `None` on the socket.
    #[must_use]
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip().to_canonical()),
            Self::Socket { .. } => None,
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        from_layer(parts, "peer")
    }
}

/// The actor of a request that may be made.
fn actor(of: &str, peer: Peer) -> Actor {
    match peer {
        Peer::Tcp(address) => Actor::named(format!("token:{of}@{}", address.ip().to_canonical())),
        Peer::Socket { uid } => Actor::named(format!("socket:{uid}")),
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Actor {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        from_layer(parts, "actor")
    }
}

/// The realm of a request's path, which exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealmScope(pub RealmName);

impl<S: Send + Sync> FromRequestParts<S> for RealmScope {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        from_layer(parts, "realm")
    }
}

fn from_layer<T: Clone + Send + Sync + 'static>(
    parts: &Parts,
    what: &'static str,
) -> Result<T, ApiError> {
    parts.extensions.get::<T>().cloned().ok_or_else(|| {
        tracing::error!(what, path = %parts.uri.path(), "a route lacks its authorisation layer");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error")
    })
}

/// The rules of authorisation, with what they look up.
#[derive(Debug)]
pub struct Authority {
    store: Arc<dyn Store>,
    clock: SharedClock,
    housekeeping: Option<TokenKey>,
    grants: Grants,
}

impl Authority {
    /// `housekeeping_public_key` is PEM; without it no Housekeeping token counts.
    ///
    /// # Errors
    /// When the key cannot be used.
    pub fn new(
        store: Arc<dyn Store>,
        clock: SharedClock,
        housekeeping_public_key: Option<&str>,
    ) -> Result<Self, InvalidTokenKey> {
        let housekeeping = housekeeping_public_key.map(TokenKey::parse).transpose()?;
        Ok(Self {
            store,
            clock,
            housekeeping,
            grants: Grants::default(),
        })
    }

    /// Whether this request may be made in a realm, and by whom. `path` is what follows the realm.
    ///
    /// # Errors
    /// 401, 403 as each service of Astarte chooses; 503 when the database is away.
    pub async fn in_realm(
        &self,
        api: TokenApi,
        realm: &str,
        request: &Asked<'_>,
    ) -> Result<(RealmName, Actor), ApiError> {
        let token = match request.peer {
            Peer::Socket { .. } => None,
            Peer::Tcp(_) => Some(bearer(request.headers).ok_or_else(ApiError::missing_token)?),
        };
        let row = match realm.parse::<RealmName>() {
            Ok(name) => self.store.realm(&name).await?,
            Err(_) => None,
        };
        let row = row.ok_or_else(|| unknown_realm(api))?;
        if let Some(token) = token {
            let key = TokenKey::parse(&row.jwt_public_key_pem).map_err(|error| {
                tracing::error!(realm = %row.name, %error, "the realm's stored key is unusable");
                ApiError::invalid_token()
            })?;
            self.check(&key, api, token, request)?;
        }
        let actor = actor(row.name.as_str(), request.peer);
        Ok((row.name, actor))
    }

    /// Whether this request may be made to Housekeeping, and by whom. `path` is what follows `v1/`.
    ///
    /// # Errors
    /// 401 and 403; without a configured key every request over TCP is 403.
    pub fn in_housekeeping(&self, request: &Asked<'_>) -> Result<Actor, ApiError> {
        if matches!(request.peer, Peer::Tcp(_)) {
            let token = bearer(request.headers).ok_or_else(ApiError::missing_token)?;
            let key = self.housekeeping.as_ref().ok_or_else(|| {
                ApiError::new(
                    StatusCode::FORBIDDEN,
                    "Housekeeping is not open over TCP: [http] housekeeping_public_key is not set",
                )
            })?;
            self.check(key, TokenApi::Housekeeping, token, request)?;
        }
        Ok(actor("housekeeping", request.peer))
    }

    fn check(
        &self,
        key: &TokenKey,
        api: TokenApi,
        token: &str,
        request: &Asked<'_>,
    ) -> Result<(), ApiError> {
        let claims = key.verify(token, self.clock.wall()).map_err(|error| {
            tracing::debug!(%error, "token refused");
            ApiError::invalid_token()
        })?;
        if self
            .grants
            .allow(&claims, api.claim(), request.method, request.path)
        {
            return Ok(());
        }
        Err(ApiError::new(
            StatusCode::FORBIDDEN,
            format!(
                "Unauthorized access to {} {}. Please verify your permissions",
                request.method, request.shown
            ),
        ))
    }

    /// The claims of a token of this realm, for sockets that check their own entries.
    ///
    /// # Errors
    /// As [`Authority::in_realm`].
    pub async fn realm_claims(
        &self,
        realm: &RealmName,
        token: &str,
    ) -> Result<Map<String, Value>, ApiError> {
        let row = self
            .store
            .realm(realm)
            .await?
            .ok_or_else(ApiError::invalid_token)?;
        TokenKey::parse(&row.jwt_public_key_pem)
            .map_err(|_| ApiError::invalid_token())?
            .verify(token, self.clock.wall())
            .map_err(|_| ApiError::invalid_token())
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The other end.
    pub peer: Peer,
    /// Method.
    pub method: &'a Method,
    /// Path that the entries are matched with, without leading slash, as it was sent.
    pub path: &'a str,
    /// Path as it is shown in a refusal, `/v1/…`.
    pub shown: &'a str,
    /// Headers.
    pub headers: &'a HeaderMap,
}

/// The spec's choice: AppEngine 401, the others 403.
fn unknown_realm(api: TokenApi) -> ApiError {
    match api {
        TokenApi::AppEngine | TokenApi::Channels => ApiError::invalid_token(),
        _ => ApiError::forbidden(),
    }
}

/// What follows `Bearer`, or the older `bearer:`, in the Authorization header; case-insensitive.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    const SCHEME: &str = "bearer";
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?.trim();
    let scheme = value.get(..SCHEME.len())?;
    let rest = value.get(SCHEME.len()..)?;
    if !scheme.eq_ignore_ascii_case(SCHEME) || !rest.starts_with([' ', ':']) {
        return None;
    }
    let token = rest.strip_prefix(':').unwrap_or(rest).trim();
    (!token.is_empty()).then_some(token)
}

/// Compiled entries of claims, by their text; `None` for one that allows nothing.
#[derive(Debug, Default)]
struct Grants(Mutex<HashMap<String, Option<Arc<Grant>>>>);

#[derive(Debug)]
struct Grant {
    method: Regex,
    path: Regex,
}

impl Grants {
    fn allow(&self, claims: &Map<String, Value>, claim: &str, method: &Method, path: &str) -> bool {
        let Some(Value::Array(entries)) = claims.get(claim) else {
            return false;
        };
        entries
            .iter()
            .filter_map(Value::as_str)
            .filter_map(|entry| self.compiled(entry))
            .any(|grant| grant.method.is_match(method.as_str()) && grant.path.is_match(path))
    }

    fn compiled(&self, entry: &str) -> Option<Arc<Grant>> {
        if entry.len() > GRANT_BYTES_MAX {
            return None;
        }
        let locked = || self.0.lock().expect("no panic while the cache is held");
        if let Some(known) = locked().get(entry) {
            return known.clone();
        }
        let grant = Grant::parse(entry).map(Arc::new);
        let mut cache = locked();
        if cache.len() >= GRANTS_MAX {
            cache.clear();
        }
        cache.insert(entry.to_owned(), grant.clone());
        grant
    }
}

impl Grant {
    /// Splits at the first two colons; what stands between them is not used.
    fn parse(entry: &str) -> Option<Self> {
        let mut parts = entry.splitn(3, ':');
        let (method, _, path) = (parts.next()?, parts.next()?, parts.next()?);
        Some(Self {
            method: whole(method)?,
            path: whole(path)?,
        })
    }
}

/// `^…$` around an expression that stands on its own: alternatives stay inside the anchors.
fn whole(expression: &str) -> Option<Regex> {
    let compile = |text: &str| {
        RegexBuilder::new(text)
            .size_limit(REGEX_BYTES_MAX)
            .dfa_size_limit(REGEX_BYTES_MAX)
            .build()
            .ok()
    };
    // alone first, or an unbalanced parenthesis could climb out of the group
    compile(expression)?;
    compile(&format!("^(?:{expression})$"))
}

/// Layer of the routes of a service below `/{realm}`.
///
/// # Errors
/// As [`Authority::in_realm`].
pub async fn require_realm(
    State((authority, api)): State<(Arc<Authority>, TokenApi)>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let peer = peer_of(&request)?;
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let (realm, rest) = path.split_once('/').unwrap_or((&path, ""));
    let shown = format!("/v1/{path}");
    let asked = Asked {
        peer,
        method: request.method(),
        path: rest,
        shown: &shown,
        headers: request.headers(),
    };
    let (realm, actor) = authority.in_realm(api, realm, &asked).await?;
    request.extensions_mut().insert(RealmScope(realm));
    request.extensions_mut().insert(actor);
    Ok(next.run(request).await)
}

/// Layer of the routes of Housekeeping, below `/v1`, and of `/tanit/v1`.
///
/// # Errors
/// As [`Authority::in_housekeeping`].
pub async fn require_housekeeping(
    State(authority): State<Arc<Authority>>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let peer = peer_of(&request)?;
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let shown = format!("/v1/{path}");
    let asked = Asked {
        peer,
        method: request.method(),
        path: &path,
        shown: &shown,
        headers: request.headers(),
    };
    let actor = authority.in_housekeeping(&asked)?;
    request.extensions_mut().insert(actor);
    Ok(next.run(request).await)
}

/// The peer that the server noted; a request without one did not come through the server.
pub(super) fn peer_of(request: &Request) -> Result<Peer, ApiError> {
    request.extensions().get::<Peer>().copied().ok_or_else(|| {
        tracing::error!("a request has no peer");
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error")
    })
}
