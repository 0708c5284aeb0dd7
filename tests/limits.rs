//! Time, numbers and memory: who may stay, how many may come, and what they cost.

use std::{path::Path, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::harness::{
    device::{RawDevice, bson, connect, connect_with_will, frame},
    product::{PATIENCE, Tanit, TestDevice, client_tls},
};

/// Devices of a realm with certificates of an imported CA: quicker to make than by pairing.
struct Fleet {
    ca: (CertificateParams, KeyPair),
    key: Arc<KeyPair>,
    server_ca: Vec<u8>,
}

impl Fleet {
    fn with_ca(tanit: &Tanit, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self {
            ca: (params, KeyPair::generate().expect("a key")),
            key: Arc::new(KeyPair::generate().expect("a key")),
            server_ca: std::fs::read(tanit.data_dir().join("server-ca.crt")).expect("our CA"),
        }
    }

    async fn import(&self, tanit: &Tanit, realm: &str) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.pem");
        let pem = self.ca.0.self_signed(&self.ca.1).expect("a CA").pem();
        std::fs::write(&file, pem).expect("a file");
        let file = file.display().to_string();
        tanit.cli(&["realm", "ca", "import", realm, &file]).await;
    }

    /// A device's TLS settings and base topic.
    fn certify(&self, id: &str) -> Member {
        let base = format!("acme/{id}");
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name(&base);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let issuer = Issuer::from_params(&self.ca.0, &self.ca.1);
        let certificate = params.signed_by(&*self.key, &issuer).expect("a leaf");
        Member {
            tls: client_tls(&self.server_ca, &certificate.pem(), &self.key),
            base,
        }
    }
}

#[derive(Clone)]
struct Member {
    tls: Arc<rustls::ClientConfig>,
    base: String,
}

impl Member {
    /// Connects with clean session 0, or `None` when it is refused.
    async fn connect(&self, tanit: std::net::SocketAddr) -> Option<RawDevice> {
        let opened = RawDevice::open(tanit, Arc::clone(&self.tls), self.base.clone()).await;
        let mut connection = opened.ok()?;
        connection.send_anyway(&connect("", false, 0)).await;
        let answer = connection.next().await?;
        assert_eq!((answer.first, answer.body[1]), (0x20, 0), "{answer:02x?}");
        Some(connection)
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished_name = DistinguishedName::new();
    distinguished_name.push(DnType::CommonName, name);
    distinguished_name
}

/// Registers `count` devices over HTTP, as a factory would; their ids.
async fn register(tanit: &Tanit, count: usize) -> Vec<String> {
    crate::harness::install_crypto();
    let token = tanit.cli(&["token", "acme", "--api", "pairing"]).await;
    let token = token["token"].as_str().expect("a token").to_owned();
    let client = reqwest::Client::new();
    let url = format!("http://{}/pairing/v1/acme/agent/devices", tanit.http);
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        let id = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>());
        let answer = client
            .post(&url)
            .bearer_auth(&token)
            .json(&json!({"data": {"hw_id": id}}))
            .send()
            .await
            .expect("an answer");
        assert_eq!(answer.status(), 201);
        ids.push(id);
    }
    ids
}

/// Two seconds instead of ten. (a) silence, (b) half a packet, (c) only receiving.
#[tokio::test]
async fn fc_049_a_silent_peer_is_closed_at_one_and_a_half_times_its_keep_alive() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let introspection = "t.Dev:1:0;t.SrvCmd:1:0";
    let mut devices = Vec::new();
    for _ in 0..4 {
        let device = tanit.device("acme").await;
        let mut connection = device.connect_clean(&tanit, introspection).await;
        connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
        connection.disconnect().await;
        devices.push(device);
    }
    let silent = async |device: &TestDevice, how: usize| {
        let mut connection = device.open(&tanit).await;
        let topic = format!("{}/t.Dev/int", device.base());
        let will = (topic.as_str(), &*bson(49), 1, false);
        connection
            .send(&connect_with_will("", true, 2, Some(will)))
            .await;
        assert_eq!(connection.expect(2).await.body[1], 0);
        connection.declare(introspection).await;
        connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
        let since = Instant::now();
        if how == 1 {
            let packet = frame(0x32, &[0; 40]);
            sleep(Duration::from_secs(1)).await;
            // it does not count: it never becomes whole
            connection.send(&packet[..20]).await;
        }
        let received = connection.expect_closed().await.len();
        (since.elapsed(), received)
    };
    let feeding = async {
        for number in 0..4 {
            let text = number.to_string();
            let verb = ["publish", "acme", &devices[2].id, "t.SrvCmd", "/cmd", &text];
            // the last one may come too late
            tanit.cli_output(&verb).await;
            sleep(Duration::from_millis(400)).await;
        }
    };
    let lively = async {
        let mut connection = devices[3].open(&tanit).await;
        connection.connect("", true, 2).await;
        for _ in 0..6 {
            connection.expect_only_pong().await;
            sleep(Duration::from_secs(1)).await;
        }
        connection.expect_only_pong().await;
    };
    let (first, second, third, (), ()) = tokio::join!(
        silent(&devices[0], 0),
        silent(&devices[1], 1),
        silent(&devices[2], 2),
        feeding,
        lively
    );
    for (what, (took, _)) in [
        ("silent", first),
        ("half a packet", second),
        ("only receiving", third),
    ] {
        // the standard says 3 s; the rest is the machine's
        let right = Duration::from_millis(2_950)..Duration::from_secs(5);
        assert!(right.contains(&took), "{what}: closed after {took:?}");
    }
    assert!(third.1 > 0, "it did receive");
    for device in &devices[..3] {
        let (_, event, reason) = tanit.history(device).await.pop().expect("an event");
        assert_eq!(
            (event.as_str(), reason.as_deref()),
            ("disconnected", Some("keep_alive_timeout"))
        );
        let wills = tanit.data(device, "t.Dev", "/int").await;
        assert_eq!(wills.len(), 1, "the will was processed once");
    }
}

/// TLS begins `handshake` after the TCP connection, CONNECT is sent `idle` after TLS.
async fn slowly(
    tanit: &Tanit,
    device: &TestDevice,
    handshake: Duration,
    idle: Duration,
) -> RawDevice {
    let tcp = TcpStream::connect(tanit.mqtt).await.expect("connects");
    sleep(handshake).await;
    let mut connection = RawDevice::over(tcp, device.tls(), device.base())
        .await
        .expect("TLS is accepted");
    sleep(idle).await;
    connection.connect("", true, 0).await;
    connection.expect_only_pong().await;
    connection
}

/// Limits of three seconds instead of thirty.
#[tokio::test]
async fn fc_051_slow_devices_can_finish_tls_and_idle_strangers_cannot_stay() {
    let limit = Duration::from_secs(3);
    let tanit =
        Tanit::start_with("[mqtt]\nhandshake_timeout = \"3s\"\nconnect_timeout = \"3s\"\n").await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (good, stranger) = (tanit.device("acme").await, tanit.device("acme").await);
    let (mut good, _) = good.connect(&tanit).await;
    let in_time = |since: Instant, what: &str| {
        let took = since.elapsed();
        let right = limit.mul_f32(0.95)..limit * 3;
        assert!(right.contains(&took), "{what}: closed after {took:?}");
    };
    // more than a limit in all, less than a limit each
    let slow = async {
        let part = limit.mul_f32(0.6);
        slowly(&tanit, &device, part, part).await
    };
    let nothing = async {
        let since = Instant::now();
        let mut tcp = TcpStream::connect(tanit.mqtt).await.expect("connects");
        assert_ended(&mut tcp).await;
        in_time(since, "TCP and nothing");
    };
    let no_connect = async {
        let mut connection = stranger.open(&tanit).await;
        let since = Instant::now();
        assert!(connection.expect_closed().await.is_empty());
        in_time(since, "TLS and nothing");
    };
    let dripping = async {
        let mut tcp = TcpStream::connect(tanit.mqtt).await.expect("connects");
        let since = Instant::now();
        let hello = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
        let drips = async {
            for byte in hello.iter().chain(std::iter::repeat(&0)) {
                if tcp.write_all(&[*byte]).await.is_err() {
                    return;
                }
                sleep(limit / 8).await;
            }
        };
        timeout(PATIENCE, drips).await.expect("it is closed");
        in_time(since, "a byte now and then");
    };
    let (mut slow, (), (), ()) = tokio::join!(slow, nothing, no_connect, dripping);
    slow.expect_only_pong().await;
    good.expect_only_pong().await;
    for (outcome, count) in [("handshake_timeout", 2), ("connect_timeout", 1)] {
        let name = format!("tanit_connects_total{{outcome=\"{outcome}\"}}");
        assert_eq!(tanit.metric(&name).await, count, "{outcome}");
    }
}

#[tokio::test]
#[ignore = "heavy: 25 s of waiting"]
async fn fc_051_slow_devices_can_finish_tls_with_the_defaults_whole() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    slowly(
        &tanit,
        &device,
        Duration::from_secs(15),
        Duration::from_secs(10),
    )
    .await;
}

/// The peer ends the connection without a word.
async fn assert_ended(tcp: &mut TcpStream) {
    let mut byte = [0];
    let read = timeout(PATIENCE, tcp.read(&mut byte)).await;
    assert!(matches!(read.expect("the end in time"), Ok(0) | Err(_)));
}

/// Pings until told to stop; the slowest answer, and the connection.
async fn slowest_ping(mut connection: RawDevice, stop: CancellationToken) -> (Duration, RawDevice) {
    let mut slowest = Duration::ZERO;
    while !stop.is_cancelled() {
        let since = Instant::now();
        connection.expect_only_pong().await;
        slowest = slowest.max(since.elapsed());
        sleep(Duration::from_millis(20)).await;
    }
    (slowest, connection)
}

/// `insisting`: good clients try again until they are in, as a fleet does when the machine is small.
async fn returns_at_once(count: usize, within: Duration, insisting: bool) {
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let fleet = Fleet::with_ca(&tanit, "the fleet's CA");
    let strangers = Fleet::with_ca(&tanit, "nobody's CA");
    fleet.import(&tanit, "acme").await;
    let ids = register(&tanit, count).await;
    let members: Vec<(Member, bool)> = ids
        .iter()
        .enumerate()
        .map(|(number, id)| {
            let is_good = number % 5 != 0;
            let fleet = if is_good { &fleet } else { &strangers };
            (fleet.certify(id), is_good)
        })
        .collect();
    let good = members.iter().filter(|(_, is_good)| *is_good).count();
    tanit.kill().await;
    tanit.launch().await;
    let (first, rest) = members.split_at(2);
    let established = first[1].0.connect(tanit.mqtt).await.expect("it is good");
    let stop = CancellationToken::new();
    let tasks = TaskTracker::new();
    let pinging = tasks.spawn(slowest_ping(established, stop.clone()));

    let since = Instant::now();
    let address = tanit.mqtt;
    let returning: Vec<_> = rest
        .iter()
        .chain(&first[..1])
        .cloned()
        .map(|(member, is_good)| {
            tasks.spawn(async move {
                let mut connection = member.connect(address).await;
                while insisting && is_good && connection.is_none() {
                    connection = member.connect(address).await;
                }
                assert_eq!(connection.is_some(), is_good, "{}", member.base);
                connection
            })
        })
        .collect();
    let mut connected = Vec::new();
    for one in returning {
        connected.push(
            timeout(within, one)
                .await
                .expect("in time")
                .expect("as it should"),
        );
    }
    let took = since.elapsed();
    assert!(took < within, "everybody was in after {took:?}");
    stop.cancel();
    let (slowest, _established) = pinging.await.expect("it stays connected");
    assert!(
        slowest < Duration::from_secs(1),
        "a ping took {slowest:?} meanwhile"
    );
    let refused = u64::try_from(count - good).expect("few");
    let accepted = u64::try_from(good).expect("few");
    let counted = async |outcome: &str| {
        let name = format!("tanit_connects_total{{outcome=\"{outcome}\"}}");
        tanit.metric(&name).await
    };
    let mut turned_away = counted("certificate_refused").await;
    if insisting {
        turned_away += counted("handshake_timeout").await;
        assert!(turned_away >= refused, "{turned_away} of {refused}");
    } else {
        assert_eq!(turned_away, refused);
        assert_eq!(counted("accepted").await, accepted);
    }
    assert_eq!(tanit.metric("tanit_connections").await, accepted);
}

/// 200 clients instead of 10,000.
#[tokio::test]
async fn fc_052_a_fleet_that_returns_at_once_is_let_in_and_strangers_are_counted() {
    returns_at_once(200, Duration::from_secs(30), false).await;
}

#[tokio::test]
#[ignore = "heavy: 10,000 clients at once"]
async fn fc_052_a_fleet_that_returns_at_once_is_let_in_and_strangers_are_counted_whole() {
    returns_at_once(10_000, Duration::from_mins(10), true).await;
}

/// Where Debian's libfaketime is, if it is installed.
fn faketime() -> Option<String> {
    let folders = std::fs::read_dir("/usr/lib").ok()?;
    let mut files = folders
        .flatten()
        .map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    files
        .find(|file| file.is_file())
        .map(|file| file.display().to_string())
}

fn set_clock(file: &Path, offset: &str) {
    // as a whole, or it would be read half-written
    let fresh = file.with_extension("new");
    std::fs::write(&fresh, offset).expect("written");
    std::fs::rename(&fresh, file).expect("renamed");
}

/// 20 devices with a keep-alive of 4 s, instead of 100 with 30 s; no suspend of the host.
#[expect(clippy::print_stdout, reason = "CI looks for the line")]
#[tokio::test]
async fn fc_062_a_jump_of_the_clock_drops_nobody() {
    let Some(library) = faketime() else {
        println!("SKIPPED: jumps of the clock need libfaketime (package faketime)");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("clock");
    set_clock(&file, "+0");
    let preload = format!("LD_PRELOAD={library}");
    let clock = format!("FAKETIME_TIMESTAMP_FILE={}", file.display());
    let wrapper = [
        "env",
        &preload,
        &clock,
        "FAKETIME_NO_CACHE=1",
        "FAKETIME_DONT_FAKE_MONOTONIC=1",
        "DONT_FAKE_MONOTONIC=1",
    ];
    let tanit = Tanit::start_under("", &wrapper).await;
    tanit.fixtures().await;
    let reporter = tanit.device("acme").await;
    let mut reporting = reporter.connect_clean(&tanit, "t.Dev:1:0").await;
    let mut registered = Vec::new();
    for _ in 0..20 {
        registered.push(tanit.device("acme").await);
    }
    let mut devices = Vec::new();
    for device in registered {
        let mut connection = device.open(&tanit).await;
        connection.connect("", true, 4).await;
        devices.push((device, connection));
    }
    reporting.publish("t.Dev/int", &bson(1)).await;
    for (jump, value) in [("+3h", 2), ("+0", 3)] {
        set_clock(&file, jump);
        // longer than any of their keep-alives
        for _ in 0..8 {
            for (_, connection) in &mut devices {
                connection.expect_only_pong().await;
            }
            sleep(Duration::from_secs(1)).await;
        }
        reporting.publish("t.Dev/int", &bson(value)).await;
    }
    for (device, connection) in &mut devices {
        connection.expect_only_pong().await;
        assert_eq!(tanit.history(device).await.len(), 1, "never disconnected");
    }
    let rows = tanit.data(&reporter, "t.Dev", "/int").await;
    let stamp = |value: i64| {
        let row = rows.iter().find(|row| row["value"] == value);
        let row = row.unwrap_or_else(|| panic!("value {value} in {rows:?}"));
        let text = row["reception_timestamp"]
            .as_str()
            .or(row["timestamp"].as_str());
        let format = &time::format_description::well_known::Rfc3339;
        time::OffsetDateTime::parse(text.expect("a stamp"), format).expect("a time")
    };
    let jumped = stamp(2) - stamp(1);
    assert!(
        jumped >= time::Duration::hours(3) && jumped < time::Duration::hours(4),
        "stamps follow the wall clock: {jumped}"
    );
    assert!(stamp(3) >= stamp(2), "and do not go back");
    let waited = timeout(PATIENCE, async {
        while !["jumped ahead", "jumped back"]
            .iter()
            .all(|what| tanit.log().contains(what))
        {
            sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(waited.await.is_ok(), "no warning: {}", tanit.log());
}

/// Resident memory of the process in KiB.
fn resident(tanit: &Tanit) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", tanit.pid())).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("VmRSS");
    let number = line.trim().trim_end_matches("kB").trim();
    number.parse().expect("a number")
}

async fn idle_connections(count: usize, rounds: usize) {
    /// The optimised program needs less; this one is built for tests.
    const BUDGET_KIB: u64 = 100;
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let fleet = Fleet::with_ca(&tanit, "the fleet's CA");
    fleet.import(&tanit, "acme").await;
    let members: Vec<Member> = register(&tanit, count)
        .await
        .iter()
        .map(|id| fleet.certify(id))
        .collect();
    let before = resident(&tanit);
    let number = u64::try_from(count).expect("few");
    let mut after_each = Vec::new();
    for round in 0..rounds {
        let mut connections = Vec::with_capacity(count);
        for member in &members {
            let mut connection = member.connect(tanit.mqtt).await.expect("it is good");
            connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
            connections.push(connection);
        }
        assert_eq!(tanit.metric("tanit_connections").await, number);
        let now = resident(&tanit);
        let each = now.saturating_sub(before) / number;
        assert!(
            each <= BUDGET_KIB,
            "round {round}: {each} KiB per connection ({before} to {now})"
        );
        for connection in connections {
            connection.disconnect().await;
        }
        let waited = timeout(PATIENCE, async {
            while tanit.metric("tanit_connections").await > 0 {
                sleep(Duration::from_millis(20)).await;
            }
        });
        assert!(waited.await.is_ok(), "somebody is still there");
        after_each.push(resident(&tanit));
    }
    let (first, last) = (after_each[0], after_each[rounds - 1]);
    assert!(
        last <= first + first / 10,
        "memory grows over the rounds: {after_each:?}"
    );
}

/// 200 connections and 3 rounds instead of 10,000 and 10.
#[tokio::test]
async fn fc_064_memory_per_idle_connection_has_a_budget_and_does_not_grow() {
    idle_connections(200, 3).await;
}

#[tokio::test]
#[ignore = "heavy: 10,000 connections ten times over"]
async fn fc_064_memory_per_idle_connection_has_a_budget_and_does_not_grow_whole() {
    idle_connections(10_000, 10).await;
}
