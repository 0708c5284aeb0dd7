//! The client of the control API: over the node's Unix socket, or a URL with a token.
//!
//! Every request is answered by `{"data": …}`, by nothing, or by `{"errors": …}`; the last becomes a
//! [`Failure`] whose text is the API's own and whose exit code tells whether trying later may help.

use std::{path::PathBuf, sync::Arc, time::Duration};

use reqwest::{Method, StatusCode, Url};
use serde_json::Value;

use super::{
    exit::{Exit, Failure},
    secret::Secret,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// More than the server gives a request.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Where the node is.
#[derive(Debug, Clone)]
pub(super) enum Target {
    /// The Unix socket in its data directory; file permissions are the authorisation.
    Socket(PathBuf),
    /// A URL, with a token for what needs one, and the CA of its certificate if that is private.
    Url {
        url: Url,
        token: Option<Secret>,
        ca_pem: Option<Vec<u8>>,
    },
}

/// The client. Holds one connection.
#[derive(Debug)]
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<Secret>,
    /// For messages.
    place: String,
    is_socket: bool,
}

/// A request to be made.
#[derive(Debug)]
pub(super) struct Request<'a> {
    method: Method,
    path: Vec<&'a str>,
    query: Vec<(&'a str, String)>,
    body: Option<Body>,
    bearer: Option<&'a str>,
}

#[derive(Debug)]
enum Body {
    Data(Value),
    Stream(reqwest::Body),
}

impl<'a> Request<'a> {
    /// `path` in its parts, which are percent-encoded here.
    pub(super) fn new(method: Method, path: impl IntoIterator<Item = &'a str>) -> Self {
        let path = path.into_iter().collect();
        Self {
            method,
            path,
            query: Vec::new(),
            body: None,
            bearer: None,
        }
    }

    pub(super) fn get(path: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new(Method::GET, path)
    }

    pub(super) fn post(path: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new(Method::POST, path)
    }

    pub(super) fn put(path: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new(Method::PUT, path)
    }

    pub(super) fn delete(path: impl IntoIterator<Item = &'a str>) -> Self {
        Self::new(Method::DELETE, path)
    }

    /// A query parameter, if it is given.
    pub(super) fn query(mut self, name: &'a str, value: Option<impl ToString>) -> Self {
        self.query
            .extend(value.map(|value| (name, value.to_string())));
        self
    }

    /// The body `{"data": data}`.
    pub(super) fn data(mut self, data: &Value) -> Self {
        self.body = Some(Body::Data(serde_json::json!({ "data": data })));
        self
    }

    /// A body of bytes.
    pub(super) fn stream(mut self, body: reqwest::Body) -> Self {
        self.body = Some(Body::Stream(body));
        self
    }

    /// Another bearer than the command line's: a device's credentials secret.
    pub(super) fn bearer(mut self, secret: &'a str) -> Self {
        self.bearer = Some(secret);
        self
    }
}

impl Client {
    pub(super) fn new(target: &Target) -> Result<Self, Failure> {
        let builder = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        let (builder, base, token, place, is_socket) = match target {
            Target::Socket(path) => {
                let base = Url::parse("http://localhost/").map_err(|e| broken(&e))?;
                let place = path.display().to_string();
                (
                    with_tls(builder.no_proxy().unix_socket(path.as_path()), false, None)?,
                    base,
                    None,
                    place,
                    true,
                )
            }
            Target::Url { url, token, ca_pem } => {
                if !matches!(url.scheme(), "http" | "https") || url.cannot_be_a_base() {
                    let message = format!("--url {url} is neither http://… nor https://…");
                    return Err(Failure::new(Exit::Usage, message));
                }
                let builder = with_tls(builder, url.scheme() == "https", ca_pem.as_deref())?;
                (builder, url.clone(), token.clone(), url.to_string(), false)
            }
        };
        let http = builder.build().map_err(|e| broken(&e))?;
        Ok(Self {
            http,
            base,
            token,
            place,
            is_socket,
        })
    }

    /// Makes a request; the answer's `data`, or null when it has no body.
    pub(super) async fn send(&self, request: Request<'_>) -> Result<Value, Failure> {
        self.send_or_status(request)
            .await
            .map_err(|(_, failure)| failure)
    }

    /// The same; a refusal comes with the status of the answer, where there was one.
    pub(super) async fn send_or_status(
        &self,
        request: Request<'_>,
    ) -> Result<Value, (Option<StatusCode>, Failure)> {
        let is_stream = matches!(request.body, Some(Body::Stream(_)));
        let mut prepared = self.prepare(request).map_err(|failure| (None, failure))?;
        if !is_stream {
            prepared = prepared.timeout(ANSWER_TIMEOUT);
        }
        let lost = |error| (None, self.unreachable(&error));
        let answer = prepared.send().await.map_err(lost)?;
        let status = answer.status();
        let bytes = answer.bytes().await.map_err(lost)?;
        if !status.is_success() {
            return Err((Some(status), self.refused(status, &bytes)));
        }
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        let data = serde_json::from_slice::<Value>(&bytes)
            .ok()
            .and_then(|mut body| body.get_mut("data").map(Value::take));
        data.ok_or_else(|| (Some(status), self.not_ours()))
    }

    /// Makes a request whose answer is bytes; they may take as long as they come.
    pub(super) async fn download(
        &self,
        request: Request<'_>,
    ) -> Result<reqwest::Response, Failure> {
        let prepared = self.prepare(request)?;
        let answer = prepared
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let bytes = answer
            .bytes()
            .await
            .map_err(|error| self.unreachable(&error))?;
        Err(self.refused(status, &bytes))
    }

    fn prepare(&self, request: Request<'_>) -> Result<reqwest::RequestBuilder, Failure> {
        let mut url = self.base.clone();
        url.path_segments_mut()
            .map_err(|()| Failure::new(Exit::Usage, format!("--url {} has no path", self.place)))?
            .pop_if_empty()
            .extend(&request.path);
        let mut prepared = self.http.request(request.method, url);
        if !request.query.is_empty() {
            prepared = prepared.query(&request.query);
        }
        if let Some(bearer) = request.bearer.or(self.token.as_ref().map(Secret::expose)) {
            prepared = prepared.bearer_auth(bearer);
        }
        Ok(match request.body {
            Some(Body::Data(json)) => prepared.json(&json),
            Some(Body::Stream(body)) => prepared
                .header("content-type", "application/x-tar")
                .body(body),
            None => prepared,
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        if error.is_builder() {
            return broken(error);
        }
        let place = &self.place;
        let cause = innermost(error);
        let message = if !error.is_connect() {
            format!("the node at {place} did not answer: {cause}")
        } else if self.is_socket {
            format!(
                "no node answers at {place}: {cause}\nStart one with `tanit serve --data-dir DIR`, \
                 name its directory with --data-dir, or name another with --url and --token"
            )
        } else if is_about_certificate(error) {
            return Failure::failed(format!(
                "the certificate of {place} is not trusted: {cause}\nGive its CA with --cacert, and \
                 the host name that stands in the certificate with --url"
            ));
        } else {
            format!("no node answers at {place}: {cause}")
        };
        Failure::new(Exit::TryLater, message)
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> Failure {
        let said = serde_json::from_slice::<Value>(body)
            .ok()
            .and_then(|body| body.get("errors").map(error_text))
            .filter(|text| !text.is_empty())
            .unwrap_or_else(|| "no reason was given".to_owned());
        let advice = match status {
            StatusCode::UNAUTHORIZED if self.token.is_none() && !self.is_socket => {
                "\nGive a token with --token; `tanit token` makes one"
            }
            StatusCode::UNAUTHORIZED => "\nThe token may have expired, or be another realm's",
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => "\nTry again later",
            _ => "",
        };
        let exit = match status {
            StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::REQUEST_TIMEOUT
            | StatusCode::BAD_GATEWAY
            | StatusCode::GATEWAY_TIMEOUT => Exit::TryLater,
            _ => Exit::Failed,
        };
        Failure::new(exit, format!("{said} (HTTP {}){advice}", status.as_u16()))
    }

    fn not_ours(&self) -> Failure {
        Failure::failed(format!(
            "what answers at {} is not Tanit's control API",
            self.place
        ))
    }
}

/// Trusts the CAs that are given, or the system's; where there is no TLS, none need be looked up.
fn with_tls(
    builder: reqwest::ClientBuilder,
    is_https: bool,
    ca_pem: Option<&[u8]>,
) -> Result<reqwest::ClientBuilder, Failure> {
    // the client takes the process's provider; one that was set before is as good
    let _ = rustls::crypto::CryptoProvider::install_default(Arc::unwrap_or_clone(
        crate::pki::crypto_provider(),
    ));
    let Some(pem) = ca_pem else {
        return Ok(if is_https {
            builder
        } else {
            builder.tls_certs_only([])
        });
    };
    let certificates = reqwest::Certificate::from_pem_bundle(pem)
        .ok()
        .filter(|certificates| !certificates.is_empty())
        .ok_or_else(|| Failure::failed("the file of --cacert holds no PEM certificate"))?;
    Ok(builder.tls_certs_only(certificates))
}

fn broken(error: &dyn std::error::Error) -> Failure {
    Failure::failed(format!("the request cannot be made: {}", innermost(error)))
}

/// Whether a connection failed because of the certificate of the other end.
fn is_about_certificate(error: &(dyn std::error::Error + 'static)) -> bool {
    // an I/O error hides the error that it was made of from `source`
    let hidden = error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref);
    matches!(
        error.downcast_ref(),
        Some(rustls::Error::InvalidCertificate(_))
    ) || hidden.is_some_and(|hidden| is_about_certificate(hidden))
        || error.source().is_some_and(is_about_certificate)
}

/// The cause at the bottom, which says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// The API's `errors` object as a text: its detail, or `field: message` for each field.
fn error_text(errors: &Value) -> String {
    let mut messages = Vec::new();
    collect(errors, "", &mut messages);
    messages.join("; ")
}

fn collect(errors: &Value, place: &str, messages: &mut Vec<String>) {
    match errors {
        Value::Object(fields) => {
            for (name, value) in fields {
                let place = match (place, name.as_str()) {
                    ("", "detail") => String::new(),
                    ("", name) => name.to_owned(),
                    (place, name) => format!("{place}.{name}"),
                };
                collect(value, &place, messages);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                if item.is_object() {
                    collect(item, &format!("{place}[{index}]"), messages);
                } else {
                    collect(item, place, messages);
                }
            }
        }
        Value::Null => {}
        scalar => {
            let text = scalar
                .as_str()
                .map_or_else(|| scalar.to_string(), str::to_owned);
            messages.push(if place.is_empty() {
                text
            } else {
                format!("{place} {text}")
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_apis_errors_become_one_line() {
        assert_eq!(
            error_text(&json!({"detail": "Device not found"})),
            "Device not found"
        );
        let fields = json!({
            "interface_name": ["can't be blank"],
            "mappings": [{}, {"endpoint": ["has invalid format"], "type": ["is invalid"]}],
        });
        let expected = "interface_name can't be blank; mappings[1].endpoint has invalid format; \
                        mappings[1].type is invalid";
        assert_eq!(error_text(&fields), expected);
    }

    #[test]
    fn a_url_that_is_none_is_a_usage_error() {
        for url in ["ftp://example", "mailto:me", "unix:/run/x"] {
            let url = Url::parse(url).unwrap();
            let target = Target::Url {
                url,
                token: None,
                ca_pem: None,
            };
            assert_eq!(Client::new(&target).unwrap_err().exit, Exit::Usage);
        }
    }
}
