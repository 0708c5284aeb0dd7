//! The command line against a stub of the control API: what is asked, what is said, which exit code.

mod credentials;
mod local;
mod nouns;

use std::{
    collections::VecDeque,
    future::IntoFuture as _,
    io::{self, Write},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use clap::{CommandFactory as _, Parser as _};
use serde_json::{Value, json};

use super::{Cli, exit::Exit, output::Streams};
use crate::clock::{ManualClock, Timestamp};

const ID: &str = "Zm9vYmFyYmF6cXV4MTIzNA";

/// What a verb did.
struct Ran {
    exit: Exit,
    out: String,
    err: String,
    seen: Vec<Seen>,
}

impl Ran {
    /// Its standard output as JSON, which has to be one line.
    fn json(&self) -> Value {
        assert_eq!(self.exit, Exit::Done, "{}", self.err);
        assert_eq!(
            self.out.matches('\n').count(),
            1,
            "{:?} is not one line",
            self.out
        );
        serde_json::from_str(&self.out).unwrap()
    }

    /// The requests, as `METHOD path?query`.
    fn requests(&self) -> Vec<&str> {
        self.seen.iter().map(|seen| seen.line.as_str()).collect()
    }
}

/// A request that the stub was asked.
#[derive(Clone, Debug)]
struct Seen {
    line: String,
    authorization: Option<String>,
    body: Vec<u8>,
}

impl Seen {
    fn data(&self) -> Value {
        let body: Value = serde_json::from_slice(&self.body).unwrap();
        body["data"].clone()
    }
}

/// Status and body.
type Answer = (u16, Vec<u8>);

/// A node that gives these answers, in this order; the last one for ever.
#[derive(Clone, Default)]
struct Stub {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

async fn answer(State(stub): State<Stub>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let header = parts.headers.get(header::AUTHORIZATION);
    let body = to_bytes(body, 1 << 20).await.unwrap().to_vec();
    stub.seen.lock().unwrap().push(Seen {
        line: format!("{} {}", parts.method, parts.uri.path_and_query().unwrap()),
        authorization: header.map(|value| value.to_str().unwrap().to_owned()),
        body,
    });
    let mut answers = stub.answers.lock().unwrap();
    let (status, body) = if answers.len() > 1 {
        answers.pop_front().unwrap()
    } else {
        answers[0].clone()
    };
    (StatusCode::from_u16(status).unwrap(), Body::from(body)).into_response()
}

/// A successful answer.
#[expect(clippy::needless_pass_by_value, reason = "callers make it on the spot")]
fn ok(data: Value) -> (u16, Value) {
    (200, json!({ "data": data }))
}

fn refused(status: u16, detail: &str) -> (u16, Value) {
    (status, json!({ "errors": { "detail": detail } }))
}

const NO_CONTENT: (u16, Value) = (204, Value::Null);

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Written {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// Runs a verb without a node, and without a terminal or with someone who answers so.
async fn run_in(data_dir: &Path, words: &[&str], answer: Option<&str>) -> Ran {
    let (out, err) = (Written::default(), Written::default());
    let streams = Streams {
        out: Box::new(out.clone()),
        err: Box::new(err.clone()),
        answers: Box::new(io::Cursor::new(
            answer.unwrap_or_default().to_owned().into_bytes(),
        )),
        is_terminal: answer.is_some(),
        is_coloured: false,
    };
    let data_dir = data_dir.to_str().unwrap();
    let words = ["tanit", "--data-dir", data_dir]
        .into_iter()
        .chain(words.iter().copied());
    let exit = match Cli::try_parse_from(words) {
        Ok(cli) => {
            let now = Timestamp::parse("2026-01-31T10:20:30Z").unwrap();
            super::execute(cli, streams, ManualClock::new(now)).await
        }
        Err(error) => super::usage(streams, &error),
    };
    Ran {
        exit,
        out: out.text(),
        err: err.text(),
        seen: Vec::new(),
    }
}

/// Runs a verb against a stub that gives these answers.
async fn run(answers: Vec<(u16, Value)>, words: &[&str]) -> Ran {
    run_and_answer(answers, words, None).await
}

async fn run_and_answer(answers: Vec<(u16, Value)>, words: &[&str], typed: Option<&str>) -> Ran {
    let body = |value: Value| match value {
        Value::Null => Vec::new(),
        Value::String(bytes) => bytes.into_bytes(),
        value => value.to_string().into_bytes(),
    };
    let stub = Stub::default();
    stub.answers.lock().unwrap().extend(
        answers
            .into_iter()
            .map(|(status, value)| (status, body(value))),
    );
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control.sock");
    let listener = tokio::net::UnixListener::bind(socket).unwrap();
    let router = Router::new().fallback(answer).with_state(stub.clone());
    let served = axum::serve(listener, router).into_future();
    let mut ran = tokio::select! {
        ran = run_in(directory.path(), words, typed) => ran,
        ended = served => panic!("the stub ended: {ended:?}"),
    };
    ran.seen.clone_from(&stub.seen.lock().unwrap());
    ran
}

/// Runs a verb with `--json` that has to succeed.
async fn json_of(answers: Vec<(u16, Value)>, words: &[&str]) -> (Value, Vec<Seen>) {
    let mut words = words.to_vec();
    words.push("--json");
    let ran = run(answers, &words).await;
    (ran.json(), ran.seen)
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn the_command_tree_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn every_verb_and_flag_has_a_help_text() {
    fn check(command: &clap::Command) {
        let name = command.get_name();
        assert!(
            command.get_about().is_some(),
            "{name} says nothing about itself"
        );
        for argument in command.get_arguments() {
            let id = argument.get_id();
            assert!(argument.get_help().is_some(), "{name} {id} has no help");
        }
        command.get_subcommands().for_each(check);
    }
    check(&Cli::command());
}

#[tokio::test]
async fn global_flags_stand_before_or_after_the_verb() {
    let realms = || vec![ok(json!([]))];
    let before = run(realms(), &["--json", "realm", "list"]).await;
    let after = run(realms(), &["realm", "list", "--json"]).await;
    let between = run(realms(), &["realm", "--json", "list"]).await;
    for ran in [before, after, between] {
        assert_eq!(ran.out, "[]\n");
    }
}

#[tokio::test]
async fn a_wrong_command_line_is_exit_2_and_help_is_not_an_error() {
    let nowhere = Path::new("/nonexistent");
    for words in [
        &["realm"][..],
        &["frobnicate"],
        &["realm", "create", "Bad_Name"],
        &["device", "show", "acme", "short"],
        &[
            "device",
            "register",
            "acme",
            "--namespace",
            "f79ad91f-c638-4889-ae74-9d001a3b4cf8",
        ],
        &["token", "acme"],
        &["--token", "x", "status"],
    ] {
        let ran = run_in(nowhere, words, None).await;
        assert_eq!(ran.exit, Exit::Usage, "{words:?}");
        assert!(ran.out.is_empty() && !ran.err.is_empty(), "{words:?}");
    }
    for words in [
        &["--help"][..],
        &["--version"],
        &["device", "register", "--help"],
    ] {
        let ran = run_in(nowhere, words, None).await;
        assert_eq!(ran.exit, Exit::Done, "{words:?}");
        assert!(ran.err.is_empty() && !ran.out.is_empty(), "{words:?}");
    }
}

#[tokio::test]
async fn without_a_node_a_verb_says_where_it_looked_and_what_to_do() {
    let ran = run_in(Path::new("/nonexistent/data"), &["realm", "list"], None).await;
    assert_eq!(ran.exit, Exit::TryLater);
    assert!(ran.out.is_empty());
    for word in [
        "list the realms",
        "/nonexistent/data/control.sock",
        "tanit serve",
        "--url",
    ] {
        assert!(ran.err.contains(word), "{word} is missing: {}", ran.err);
    }
}

#[tokio::test]
async fn the_apis_refusal_is_told_and_sorted_by_whether_later_may_help() {
    for (status, exit) in [
        (400, Exit::Failed),
        (401, Exit::Failed),
        (404, Exit::Failed),
        (409, Exit::Failed),
        (422, Exit::Failed),
        (500, Exit::Failed),
        (429, Exit::TryLater),
        (503, Exit::TryLater),
    ] {
        let ran = run(
            vec![refused(status, "Device not found")],
            &["device", "show", "acme", ID],
        );
        let ran = ran.await;
        assert_eq!(ran.exit, exit, "{status}");
        let expected =
            format!("tanit: cannot show the device acme/{ID}: Device not found (HTTP {status})");
        assert!(ran.err.starts_with(&expected), "{}", ran.err);
    }
    let strange = run(vec![(200, json!("<html>"))], &["realm", "list"]).await;
    assert_eq!(strange.exit, Exit::Failed);
    assert!(
        strange.err.contains("not Tanit's control API"),
        "{}",
        strange.err
    );
}

#[tokio::test]
async fn what_cannot_be_undone_is_asked_for_and_needs_yes_without_a_terminal() {
    let destructive: [&[&str]; 6] = [
        &["realm", "delete", "acme"],
        &["device", "delete", "acme", ID],
        &["device", "unregister", "acme", ID],
        &["device", "revoke", "acme", ID],
        &["interface", "delete", "acme", "org.example.Sensor", "0"],
        &["restore", "/dev/null"],
    ];
    for words in destructive {
        let silent = run(vec![NO_CONTENT], words).await;
        assert_eq!(silent.exit, Exit::Usage, "{words:?}");
        assert!(silent.err.contains("--yes"), "{}", silent.err);
        assert!(
            silent.seen.is_empty(),
            "{words:?} was done without being asked for"
        );

        let no = run_and_answer(vec![NO_CONTENT], words, Some("\n")).await;
        assert_eq!(no.exit, Exit::Failed, "{words:?}");
        assert!(
            no.err.contains("Go on?") && no.err.contains("nothing was done"),
            "{}",
            no.err
        );
        assert!(
            no.seen.is_empty(),
            "{words:?} was done although it was declined"
        );

        let answered = run_and_answer(vec![ok(json!({}))], words, Some("y\n")).await;
        assert_eq!(
            (answered.exit, answered.seen.len()),
            (Exit::Done, 1),
            "{words:?}"
        );

        let said = run(vec![ok(json!({}))], &[words, &["--yes"]].concat()).await;
        assert_eq!((said.exit, said.seen.len()), (Exit::Done, 1), "{words:?}");
    }
}

#[tokio::test]
async fn a_url_is_asked_with_its_token_and_below_its_own_path() {
    let stub = Stub::default();
    let body = json!({"data": []}).to_string().into_bytes();
    stub.answers.lock().unwrap().push_back((200, body));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/behind/a/proxy/", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(stub.clone());
    let directory = tempfile::tempdir().unwrap();
    let token_file = directory.path().join("token");
    std::fs::write(&token_file, "from.a.file\n").unwrap();
    let from_file = format!("@{}", token_file.display());
    let words = ["realm", "list", "--url", &url, "--token"];
    let verbs = async {
        for token in ["abc.def.ghi", &from_file] {
            let ran = run_in(directory.path(), &[&words[..], &[token]].concat(), None).await;
            assert_eq!(ran.exit, Exit::Done, "{}", ran.err);
        }
    };
    tokio::select! {
        () = verbs => {}
        ended = axum::serve(listener, router).into_future() => panic!("the stub ended: {ended:?}"),
    }
    let seen = stub.seen.lock().unwrap();
    assert_eq!(seen[0].line, "GET /behind/a/proxy/tanit/v1/realms");
    assert_eq!(seen[0].authorization.as_deref(), Some("Bearer abc.def.ghi"));
    assert_eq!(seen[1].authorization.as_deref(), Some("Bearer from.a.file"));
}

#[tokio::test]
async fn an_https_url_is_trusted_by_the_ca_that_is_given() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let directory = tempfile::tempdir().unwrap();
    let clock = crate::clock::SystemClock::shared();
    let certificates = crate::pki::ServerCertificates::open(
        directory.path(),
        Vec::new(),
        "gateway.example",
        clock,
    )
    .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(certificates.https_config().unwrap());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let server = async {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            // a client that does not trust us breaks off here
            let Ok(mut stream) = acceptor.accept(socket).await else {
                continue;
            };
            let mut request = vec![0; 4096];
            let _ = stream.read(&mut request).await;
            let body = json!({"data": []}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    };
    let ca = directory.path().join("server-ca.crt").display().to_string();
    let verbs = async {
        let trusted = run_in(
            directory.path(),
            &["realm", "list", "--url", &url, "--cacert", &ca],
            None,
        )
        .await;
        assert_eq!(trusted.exit, Exit::Done, "{}", trusted.err);
        let foreign = crate::pki::RealmCa::generate(
            &"acme".parse().unwrap(),
            crate::clock::Clock::wall(&crate::clock::SystemClock),
        )
        .unwrap();
        std::fs::write(&ca, foreign.certificate_pem()).unwrap();
        let distrusted = run_in(
            directory.path(),
            &["realm", "list", "--url", &url, "--cacert", &ca],
            None,
        )
        .await;
        assert_eq!(distrusted.exit, Exit::Failed, "waiting does not help");
        assert!(distrusted.err.contains("--cacert"), "{}", distrusted.err);
    };
    tokio::select! {
        () = verbs => {}
        () = server => {}
    }
}
