use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use redb::{Database, StorageBackend};

use super::*;
use crate::{
    clock::{Clock, ManualClock},
    mqtt::packet::{QoS, SubscribeOptions, Version},
};

const DEVICE: &str = "acme/Zm9vYmFyYmF6cXV4MTIzNA";

fn device() -> Identity {
    DEVICE.parse().expect("canonical")
}

fn start() -> Timestamp {
    Timestamp::from_millis(1_700_000_000_000).expect("in range")
}

/// A disk that can be full, and that can lose what was not synced.
#[derive(Clone, Debug, Default)]
struct Disk {
    platter: Arc<Mutex<Platter>>,
    full: Arc<AtomicBool>,
}

#[derive(Clone, Debug, Default)]
struct Platter {
    bytes: Vec<u8>,
    /// What was overwritten since the last sync, oldest first: where, and what was there; a change
    /// of the length has no bytes.
    unsynced: Vec<(usize, Vec<u8>)>,
    syncs: usize,
}

impl Disk {
    fn platter(&self) -> std::sync::MutexGuard<'_, Platter> {
        self.platter.lock().unwrap()
    }

    fn check(&self) -> std::io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn opener(&self) -> Opener {
        let disk = self.clone();
        Box::new(move || Database::builder().create_with_backend(disk.clone()))
    }

    fn open(&self, clock: &Arc<ManualClock>, limits: QueueLimits) -> Sessions {
        Sessions::open_with(
            Path::new("disk"),
            self.opener(),
            limits,
            Arc::clone(clock) as _,
        )
        .expect("opens")
    }

    /// What a machine finds after its power was cut.
    fn after_power_cut(&self) -> Self {
        let mut platter = self.platter().clone();
        while let Some((at, before)) = platter.unsynced.pop() {
            if before.is_empty() {
                platter.bytes.resize(at, 0);
            } else {
                platter.bytes[at..at + before.len()].copy_from_slice(&before);
            }
        }
        Self {
            platter: Arc::new(Mutex::new(platter)),
            full: Arc::default(),
        }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> std::io::Result<u64> {
        Ok(self.platter().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        let from = usize::try_from(offset).expect("fits");
        out.copy_from_slice(&self.platter().bytes[from..from + out.len()]);
        Ok(())
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        self.check()?;
        let mut platter = self.platter();
        let (before, len) = (platter.bytes.len(), usize::try_from(len).expect("fits"));
        if len < before {
            let cut = platter.bytes[len..].to_vec();
            platter.unsynced.push((len, cut));
        }
        platter.unsynced.push((before, Vec::new()));
        platter.bytes.resize(len, 0);
        Ok(())
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.check()?;
        let mut platter = self.platter();
        platter.unsynced.clear();
        platter.syncs += 1;
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.check()?;
        let from = usize::try_from(offset).expect("fits");
        let mut platter = self.platter();
        let before = platter.bytes[from..from + data.len()].to_vec();
        if !before.is_empty() {
            platter.unsynced.push((from, before));
        }
        platter.bytes[from..from + data.len()].copy_from_slice(data);
        Ok(())
    }
}

struct Bench {
    disk: Disk,
    clock: Arc<ManualClock>,
    limits: QueueLimits,
    sessions: Sessions,
}

impl Bench {
    fn new() -> Self {
        Self::with(QueueLimits::default())
    }

    fn with(limits: QueueLimits) -> Self {
        let (disk, clock) = (Disk::default(), ManualClock::new(start()));
        let sessions = disk.open(&clock, limits);
        Self {
            disk,
            clock,
            limits,
            sessions,
        }
    }

    async fn restart(&mut self) {
        self.sessions.close().await;
        self.sessions = self.disk.open(&self.clock, self.limits);
    }

    /// As after kill -9 together with a power cut.
    fn crash(&mut self) {
        self.disk = self.disk.after_power_cut();
        self.sessions = self.disk.open(&self.clock, self.limits);
    }

    async fn connect(&self, clean_start: bool, expiry: SessionExpiry) -> Started {
        let request = StartRequest {
            clean_start,
            expiry,
            version: Version::V5,
            now: self.clock.wall(),
        };
        self.sessions
            .start(&device(), request)
            .await
            .expect("starts")
    }

    async fn subscribe(&self, epoch: SessionEpoch, filter: &str, qos: QoS) {
        let outcome = self
            .sessions
            .subscribe(&device(), epoch, vec![subscription(filter, qos, None)])
            .await
            .expect("subscribes");
        assert!(outcome.iter().all(Result::is_ok));
    }

    async fn stop(&self, started: &Started, expiry: SessionExpiry) -> bool {
        let now = self.clock.wall();
        self.sessions
            .stop(&device(), started.epoch, expiry, now)
            .await
            .expect("stops")
    }

    /// A session that is subscribed to everything with QoS 2 and whose device is away.
    async fn offline(&self) -> SessionEpoch {
        let started = self.connect(false, SessionExpiry::Never).await;
        self.subscribe(started.epoch, &format!("{DEVICE}/#"), QoS::ExactlyOnce)
            .await;
        self.stop(&started, SessionExpiry::Never).await;
        started.epoch
    }

    async fn send(&self, message: Message) -> Enqueued {
        self.sessions
            .enqueue(&device(), message)
            .await
            .expect("works")
    }

    async fn queue(&self, epoch: SessionEpoch) -> Vec<Queued> {
        self.sessions
            .read_queue(&device(), epoch, 0, 1_000_000, usize::MAX)
            .await
            .expect("reads")
    }

    async fn payloads(&self, epoch: SessionEpoch) -> Vec<String> {
        let text = |queued: Queued| String::from_utf8_lossy(&queued.message.payload).into_owned();
        self.queue(epoch).await.into_iter().map(text).collect()
    }

    async fn summary(&self) -> SessionSummary {
        self.sessions
            .summary(&device())
            .await
            .expect("works")
            .expect("is there")
    }
}

fn subscription(filter: &str, qos: QoS, id: Option<u32>) -> Subscription {
    let options = SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    };
    Subscription {
        filter: filter.into(),
        options,
        id,
    }
}

fn message(path: &str, payload: impl Into<String>, qos: QoS) -> Message {
    Message {
        topic: format!("{DEVICE}{path}").into(),
        payload: Bytes::from(payload.into()),
        qos,
        retain: false,
        expires_at: None,
        subscription_ids: Vec::new(),
        properties: crate::mqtt::packet::PublishProperties::default(),
        property: false,
        major: None,
        id: None,
    }
}

fn value(payload: impl Into<String>) -> Message {
    message("/t.SrvCmd/cmd", payload, QoS::AtLeastOnce)
}

const QUEUED: Enqueued = Enqueued::Queued { until: None };

#[tokio::test]
async fn fc_001_a_restored_session_receives_before_its_device_comes_back() {
    let mut bench = Bench::new();
    let epoch = bench.offline().await;
    bench.restart().await;
    assert_eq!(bench.send(value("1")).await, QUEUED);
    let started = bench.connect(false, SessionExpiry::Never).await;
    assert!(started.session_present);
    assert_eq!(started.epoch, epoch);
    assert_eq!(started.subscriptions.len(), 1);
    assert_eq!(bench.payloads(epoch).await, ["1"]);
}

#[tokio::test]
async fn fc_003_clean_start_answers_0_and_drops_what_was_stored() {
    let bench = Bench::new();
    let epoch = bench.offline().await;
    for number in 0..3 {
        assert_eq!(bench.send(value(number.to_string())).await, QUEUED);
    }
    let second = bench.connect(true, SessionExpiry::WithConnection).await;
    assert!(!second.session_present);
    assert_eq!(second.erased, Some(epoch));
    assert!(bench.payloads(second.epoch).await.is_empty());
    assert!(bench.stop(&second, SessionExpiry::WithConnection).await);
    let third = bench.connect(false, SessionExpiry::Never).await;
    assert!(!third.session_present && third.subscriptions.is_empty() && third.erased.is_none());
}

#[tokio::test]
async fn fc_005_going_from_clean_to_persistent_sticks_and_back() {
    let bench = Bench::new();
    let clean = bench.connect(true, SessionExpiry::WithConnection).await;
    bench.stop(&clean, SessionExpiry::WithConnection).await;
    bench.offline().await;
    assert_eq!(bench.send(value("1")).await, QUEUED);
    let persistent = bench.connect(false, SessionExpiry::Never).await;
    assert!(persistent.session_present);
    assert_eq!(bench.payloads(persistent.epoch).await, ["1"]);
    bench.stop(&persistent, SessionExpiry::Never).await;

    let clean = bench.connect(true, SessionExpiry::WithConnection).await;
    bench.stop(&clean, SessionExpiry::WithConnection).await;
    assert_eq!(bench.send(value("2")).await, Enqueued::NoSession);
    assert!(
        !bench
            .connect(false, SessionExpiry::Never)
            .await
            .session_present
    );
}

#[tokio::test]
async fn fc_007_an_expired_session_is_not_resumed_even_if_the_reaper_did_not_run() {
    let expiry = SessionExpiry::After(Duration::from_secs(3));
    for (away, present) in [(1, true), (2, true), (3, false), (10, false)] {
        let bench = Bench::new();
        let epoch = bench.offline().await;
        let started = bench.connect(false, expiry).await;
        bench.stop(&started, expiry).await;
        assert!(matches!(
            bench.send(value("old")).await,
            Enqueued::Queued { until: Some(_) }
        ));
        bench.clock.advance(Duration::from_secs(away));
        let back = bench.connect(false, expiry).await;
        assert_eq!(back.session_present, present, "away for {away} s");
        assert_eq!(back.erased, (!present).then_some(epoch));
        assert_eq!(bench.payloads(back.epoch).await.len(), usize::from(present));
    }
}

#[tokio::test]
async fn the_reaper_erases_sessions_that_are_over_and_says_which() {
    let bench = Bench::new();
    let expiry = SessionExpiry::After(Duration::from_secs(3));
    let started = bench.connect(false, expiry).await;
    bench.stop(&started, expiry).await;
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(
        bench.sessions.reap(bench.clock.wall()).await,
        Ok(Reaped::default())
    );
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(bench.send(value("late")).await, Enqueued::NoSession);
    let reaped = bench
        .sessions
        .reap(bench.clock.wall())
        .await
        .expect("works");
    assert_eq!(reaped.sessions, [(device(), started.epoch)]);
    assert_eq!(bench.sessions.summary(&device()).await, Ok(None));
}

#[tokio::test]
async fn fc_008_flow_state_and_packet_ids_survive_a_crash() {
    let mut bench = Bench::new();
    let epoch = bench.offline().await;
    for number in 1..=3 {
        bench
            .send(message(
                "/t.SrvCmd/cmd",
                number.to_string(),
                QoS::ExactlyOnce,
            ))
            .await;
    }
    let before = bench.queue(epoch).await;
    for queued in &before {
        bench.sessions.mark_sent(&device(), epoch, queued.seq);
    }
    bench
        .sessions
        .mark_received(&device(), epoch, before[0].seq)
        .await
        .expect("durable");
    bench.crash();
    let started = bench.connect(false, SessionExpiry::Never).await;
    assert!(started.session_present);
    assert_eq!(bench.send(value("newer")).await, QUEUED);
    let after = bench.queue(epoch).await;
    let states: Vec<_> = after.iter().map(|queued| queued.state).collect();
    // the marks of 2 and 3 were committed with the one that somebody waited for
    let expected = [
        FlowState::Received,
        FlowState::Sent,
        FlowState::Sent,
        FlowState::Waiting,
    ];
    assert_eq!(states, expected);
    let ids = |queue: &[Queued]| queue.iter().map(|q| q.packet_id).collect::<Vec<_>>();
    assert_eq!(ids(&after)[..3], ids(&before)[..]);
    assert!(!ids(&before).contains(&after[3].packet_id));
    assert!(
        after[3].seq - after[2].seq > 16_000,
        "jumps after an unclean stop"
    );
}

#[tokio::test]
async fn fc_009_a_backlog_larger_than_the_live_window_is_read_whole_and_in_order() {
    let bench = Bench::with(QueueLimits {
        messages: 5_000,
        ..QueueLimits::default()
    });
    let epoch = bench.offline().await;
    for number in 0..5_000 {
        assert_eq!(bench.send(value(number.to_string())).await, QUEUED);
    }
    let mut started = bench.connect(false, SessionExpiry::Never).await;
    let (mut last, mut seen) = (0, Vec::new());
    loop {
        let part = bench
            .sessions
            .read_queue(&device(), epoch, last, 100, 1 << 20)
            .await
            .expect("reads");
        assert!(part.len() <= 100);
        for queued in part {
            assert!(queued.seq > last);
            last = queued.seq;
            seen.push(queued.message.payload);
            bench.sessions.mark_sent(&device(), epoch, last);
            bench
                .sessions
                .settle(&device(), epoch, last, Settled::Delivered);
        }
        match bench
            .sessions
            .resume_feed(&device(), epoch, last)
            .await
            .expect("asks")
        {
            Resume::Feeding => break,
            Resume::More => {}
        }
    }
    let expected: Vec<_> = (0..5_000)
        .map(|number| Bytes::from(number.to_string()))
        .collect();
    assert!(
        seen == expected,
        "{} of {} messages, or in another order",
        seen.len(),
        5_000
    );
    assert_eq!(bench.summary().await.queued_messages, 0);
    assert_eq!(bench.send(value("live")).await, Enqueued::Delivering);
    let Some(Delivery::Queued(live)) = started.deliveries.recv().await else {
        panic!("the feed goes on")
    };
    assert_eq!(live.message.payload, "live");
    assert!(live.seq > last);
}

#[tokio::test]
async fn a_slow_connection_is_told_that_it_lags_and_loses_nothing() {
    let bench = Bench::new();
    let mut started = bench.connect(true, SessionExpiry::Never).await;
    let epoch = started.epoch;
    bench
        .subscribe(epoch, &format!("{DEVICE}/#"), QoS::ExactlyOnce)
        .await;
    for number in 0..300 {
        // both kinds, so that those that wait for the commit and those that do not keep their order
        let qos = if number % 3 == 0 {
            QoS::ExactlyOnce
        } else {
            QoS::AtLeastOnce
        };
        bench
            .send(message("/t.SrvCmd/cmd", number.to_string(), qos))
            .await;
    }
    assert_eq!(
        bench.send(message("/x.Y/z", "0", QoS::AtMostOnce)).await,
        Enqueued::QueueFull
    );
    let (mut last, mut seen) = (0, Vec::new());
    loop {
        match started.deliveries.recv().await.expect("open") {
            Delivery::Queued(queued) => {
                assert!(queued.seq > last);
                last = queued.seq;
                seen.push(queued.message.payload);
            }
            Delivery::Lagging => break,
            Delivery::Qos0(_) => panic!("was refused"),
        }
    }
    assert!(started.deliveries.try_recv().is_err());
    assert_eq!(
        bench.sessions.resume_feed(&device(), epoch, last).await,
        Ok(Resume::More)
    );
    let rest = bench
        .sessions
        .read_queue(&device(), epoch, last, 1_000, usize::MAX)
        .await
        .unwrap();
    last = rest.last().expect("some").seq;
    seen.extend(rest.into_iter().map(|queued| queued.message.payload));
    let expected: Vec<_> = (0..300)
        .map(|number| Bytes::from(number.to_string()))
        .collect();
    assert_eq!(seen, expected);
    assert_eq!(
        bench.sessions.resume_feed(&device(), epoch, last).await,
        Ok(Resume::Feeding)
    );
    assert_eq!(
        bench.send(message("/x.Y/z", "0", QoS::AtMostOnce)).await,
        Enqueued::Delivering
    );
    assert!(matches!(
        started.deliveries.recv().await,
        Some(Delivery::Qos0(_))
    ));
}

#[tokio::test]
async fn what_was_said_to_be_queued_is_there_after_a_power_cut() {
    let mut bench = Bench::new();
    let epoch = bench.offline().await;
    let mut accepted = Vec::new();
    for number in 0..20 {
        assert_eq!(bench.send(value(number.to_string())).await, QUEUED);
        accepted.push(number.to_string());
        if number % 5 == 0 {
            bench.crash();
            assert_eq!(bench.payloads(epoch).await, accepted);
        }
    }
}

#[tokio::test]
async fn an_erased_session_does_not_come_back_after_a_power_cut() {
    let mut bench = Bench::new();
    let epoch = bench.offline().await;
    bench.send(value("1")).await;
    assert_eq!(bench.sessions.erase(&device()).await, Ok(Some(epoch)));
    bench.crash();
    assert!(
        !bench
            .connect(false, SessionExpiry::Never)
            .await
            .session_present
    );
}

#[tokio::test]
async fn a_session_that_ends_with_its_connection_is_gone_after_a_crash() {
    let mut bench = Bench::new();
    let started = bench.connect(true, SessionExpiry::WithConnection).await;
    bench.crash();
    assert_eq!(bench.sessions.take_erased(), [(device(), started.epoch)]);
    assert_eq!(bench.sessions.take_erased(), []);
    assert_eq!(bench.send(value("1")).await, Enqueued::NoSession);
}

#[tokio::test]
async fn after_a_crash_the_time_of_a_connected_session_begins_to_run() {
    let mut bench = Bench::new();
    let expiry = SessionExpiry::After(Duration::from_secs(10));
    bench.connect(false, expiry).await;
    bench.crash();
    let until = bench.clock.wall().saturating_add(Duration::from_secs(10));
    assert_eq!(bench.summary().await.expires_at, Some(until));
    bench.clock.advance(Duration::from_secs(10));
    assert!(!bench.connect(false, expiry).await.session_present);
}

#[tokio::test]
async fn fc_042_a_full_queue_is_an_error_the_sender_can_see() {
    let bench = Bench::with(QueueLimits {
        messages: 100,
        ..QueueLimits::default()
    });
    let epoch = bench.offline().await;
    for number in 0..150 {
        let property = Message {
            property: true,
            ..message("/t.Prop/a", number.to_string(), QoS::ExactlyOnce)
        };
        assert_eq!(bench.send(property).await, QUEUED);
    }
    assert_eq!(bench.payloads(epoch).await, ["149"]);
    for number in 0..150 {
        let expected = if number < 99 {
            QUEUED
        } else {
            Enqueued::QueueFull
        };
        assert_eq!(
            bench.send(value(number.to_string())).await,
            expected,
            "{number}"
        );
    }
    let summary = bench.summary().await;
    assert_eq!(
        (summary.queued_messages, summary.refused_messages),
        (100, 51)
    );
    // still one place per property
    let property = Message {
        property: true,
        ..message("/t.Prop/a", "last", QoS::ExactlyOnce)
    };
    assert_eq!(bench.send(property).await, QUEUED);
    let payloads = bench.payloads(epoch).await;
    assert_eq!(payloads.len(), 100);
    assert_eq!((payloads[0].as_str(), payloads[99].as_str()), ("0", "last"));
}

#[tokio::test]
async fn fc_120_the_major_that_a_message_is_for_is_on_disk() {
    let mut bench = Bench::new();
    let epoch = bench.offline().await;
    for major in [Some(1), None, Some(u32::MAX)] {
        let sent = Message {
            major,
            ..value("1")
        };
        assert_eq!(bench.send(sent).await, QUEUED);
    }
    bench.restart().await;
    let queued = bench.queue(epoch).await;
    let majors: Vec<_> = queued.iter().map(|queued| queued.message.major).collect();
    assert_eq!(majors, [Some(1), None, Some(u32::MAX)]);
}

#[tokio::test]
async fn a_queue_is_bounded_in_bytes_too() {
    let cost = value("x").topic.len() as u64 + 1;
    let bench = Bench::with(QueueLimits {
        bytes: 2 * cost,
        ..QueueLimits::default()
    });
    let epoch = bench.offline().await;
    assert_eq!(bench.send(value("1")).await, QUEUED);
    assert_eq!(bench.send(value("2")).await, QUEUED);
    assert_eq!(bench.send(value("3")).await, Enqueued::QueueFull);
    let first = bench.queue(epoch).await[0].seq;
    bench
        .sessions
        .settle(&device(), epoch, first, Settled::Delivered);
    assert_eq!(bench.send(value("4")).await, QUEUED);
    assert_eq!(bench.payloads(epoch).await, ["2", "4"]);
}

#[tokio::test]
async fn a_property_that_was_sent_is_not_replaced_but_followed() {
    let bench = Bench::new();
    let epoch = bench.offline().await;
    let property = |payload: &str| Message {
        property: true,
        ..message("/t.Prop/a", payload, QoS::ExactlyOnce)
    };
    bench.send(property("1")).await;
    bench
        .sessions
        .mark_sent(&device(), epoch, bench.queue(epoch).await[0].seq);
    bench.send(property("2")).await;
    bench.send(property("3")).await;
    assert_eq!(bench.payloads(epoch).await, ["1", "3"]);
    assert_eq!(bench.summary().await.queued_messages, 2);
}

#[tokio::test]
async fn fc_043_expiry_of_queued_values_survives_restarts() {
    for (connects_at, delivered) in [(20, true), (60, false)] {
        let mut bench = Bench::new();
        let epoch = bench.offline().await;
        let until = bench.clock.wall().saturating_add(Duration::from_secs(30));
        let sent = Message {
            expires_at: Some(until),
            ..value("1")
        };
        assert_eq!(
            bench.send(sent).await,
            Enqueued::Queued { until: Some(until) }
        );
        for at in [5, 15] {
            bench
                .clock
                .set_wall(start().saturating_add(Duration::from_secs(at)));
            bench.restart().await;
        }
        bench
            .clock
            .set_wall(start().saturating_add(Duration::from_secs(connects_at)));
        bench.connect(false, SessionExpiry::Never).await;
        assert_eq!(bench.payloads(epoch).await.len(), usize::from(delivered));
        let summary = bench.summary().await;
        assert_eq!(summary.expired_messages, u64::from(!delivered));
        assert_eq!(summary.queued_messages, u32::from(delivered));
    }
}

#[tokio::test]
async fn the_reaper_removes_messages_that_are_over_but_not_those_that_were_sent() {
    let bench = Bench::new();
    let epoch = bench.offline().await;
    let until = Some(bench.clock.wall().saturating_add(Duration::from_secs(1)));
    for payload in ["sent", "waiting"] {
        bench
            .send(Message {
                expires_at: until,
                ..value(payload)
            })
            .await;
    }
    bench.send(value("endless")).await;
    bench
        .sessions
        .mark_sent(&device(), epoch, bench.queue(epoch).await[0].seq);
    bench.clock.advance(Duration::from_secs(1));
    let reaped = bench
        .sessions
        .reap(bench.clock.wall())
        .await
        .expect("works");
    assert_eq!(
        reaped,
        Reaped {
            messages: 1,
            ..Reaped::default()
        }
    );
    assert_eq!(bench.payloads(epoch).await, ["sent", "endless"]);
    assert_eq!(
        bench
            .send(Message {
                expires_at: until,
                ..value("late")
            })
            .await,
        Enqueued::Expired
    );
}

#[tokio::test]
async fn overlapping_subscriptions_give_one_delivery_with_the_highest_qos_and_all_ids() {
    let bench = Bench::new();
    let mut started = bench.connect(true, SessionExpiry::Never).await;
    let subscriptions = vec![
        subscription(&format!("{DEVICE}/#"), QoS::AtMostOnce, Some(1)),
        subscription(&format!("{DEVICE}/+/cmd"), QoS::AtLeastOnce, Some(2)),
        subscription(&format!("{DEVICE}/t.SrvCmd/cmd"), QoS::ExactlyOnce, None),
        subscription(&format!("{DEVICE}/other"), QoS::ExactlyOnce, Some(3)),
    ];
    bench
        .sessions
        .subscribe(&device(), started.epoch, subscriptions)
        .await
        .expect("works");
    for (publish, expected) in [
        (QoS::ExactlyOnce, QoS::ExactlyOnce),
        (QoS::AtLeastOnce, QoS::AtLeastOnce),
    ] {
        bench.send(message("/t.SrvCmd/cmd", "1", publish)).await;
        let Some(Delivery::Queued(queued)) = started.deliveries.recv().await else {
            panic!("delivered")
        };
        assert_eq!(queued.message.qos, expected);
        assert_eq!(queued.message.subscription_ids, [1, 2]);
    }
    bench
        .send(message("/t.SrvCmd/cmd", "1", QoS::AtMostOnce))
        .await;
    assert!(matches!(
        started.deliveries.recv().await,
        Some(Delivery::Qos0(_))
    ));
    assert!(started.deliveries.try_recv().is_err());
    // QoS 2 to a subscription of QoS 0 is QoS 0
    bench.send(message("/a/b", "1", QoS::ExactlyOnce)).await;
    assert!(matches!(
        started.deliveries.recv().await,
        Some(Delivery::Qos0(_))
    ));
}

#[tokio::test]
async fn outcomes_tell_no_session_from_no_subscription_and_not_connected() {
    let bench = Bench::new();
    assert_eq!(bench.send(value("1")).await, Enqueued::NoSession);
    let started = bench.connect(true, SessionExpiry::Never).await;
    assert_eq!(bench.send(value("1")).await, Enqueued::NoSubscription);
    bench
        .subscribe(
            started.epoch,
            &format!("{DEVICE}/t.SrvCmd/#"),
            QoS::AtMostOnce,
        )
        .await;
    bench.stop(&started, SessionExpiry::Never).await;
    assert_eq!(bench.send(value("1")).await, Enqueued::NotConnected);
    let filters = vec![format!("{DEVICE}/t.SrvCmd/#").into(), "never/there".into()];
    let existed = bench
        .sessions
        .unsubscribe(&device(), started.epoch, filters)
        .await;
    assert_eq!(existed, Ok(vec![true, false]));
    assert_eq!(bench.send(value("1")).await, Enqueued::NoSubscription);
}

#[tokio::test]
async fn a_probe_says_what_would_become_of_a_message_and_changes_nothing() {
    let bench = Bench::with(QueueLimits {
        messages: 1,
        ..QueueLimits::default()
    });
    let device = device();
    let probe = || bench.sessions.probe(&device, value("1"));
    assert_eq!(probe().await, Ok(Enqueued::NoSession));
    let started = bench.connect(true, SessionExpiry::Never).await;
    assert_eq!(probe().await, Ok(Enqueued::NoSubscription));
    bench
        .subscribe(started.epoch, &format!("{DEVICE}/#"), QoS::AtLeastOnce)
        .await;
    assert_eq!(probe().await, Ok(Enqueued::Delivering));
    bench.stop(&started, SessionExpiry::Never).await;
    assert_eq!(probe().await, Ok(QUEUED));
    assert!(bench.queue(started.epoch).await.is_empty());
    assert_eq!(bench.send(value("1")).await, QUEUED);
    assert_eq!(probe().await, Ok(Enqueued::QueueFull));
}

#[tokio::test]
async fn subscriptions_are_bounded_and_replaced() {
    let bench = Bench::with(QueueLimits {
        subscriptions: 2,
        ..QueueLimits::default()
    });
    let started = bench.connect(true, SessionExpiry::Never).await;
    let wanted = ["a", "b", "a", "c"].map(|filter| subscription(filter, QoS::AtLeastOnce, None));
    let outcome = bench
        .sessions
        .subscribe(&device(), started.epoch, wanted.to_vec())
        .await;
    let expected = vec![
        Ok(SubscribeOutcome::New),
        Ok(SubscribeOutcome::New),
        Ok(SubscribeOutcome::Replaced),
        Err(QuotaExceeded),
    ];
    assert_eq!(outcome, Ok(expected));
    let stale = SessionEpoch(started.epoch.0 ^ 1);
    let outcome = bench
        .sessions
        .subscribe(&device(), stale, wanted.to_vec())
        .await;
    assert_eq!(outcome, Err(SessionsError::Gone));
}

#[tokio::test]
async fn packet_ids_never_collide_with_a_queued_message() {
    let bench = Bench::new();
    let epoch = bench.offline().await;
    bench.send(value("stays")).await;
    let first = bench.queue(epoch).await.remove(0);
    let mut batch = Vec::new();
    for number in 0..66_000_u32 {
        batch.push(number);
        if batch.len() < 500 {
            continue;
        }
        let sending = batch
            .drain(..)
            .map(|number| bench.send(value(number.to_string())));
        futures_util::future::join_all(sending).await;
        let queue = bench.queue(epoch).await;
        let ids: std::collections::HashSet<_> = queue.iter().map(|q| q.packet_id).collect();
        assert_eq!(ids.len(), queue.len(), "after {number}");
        for queued in queue.iter().filter(|queued| queued.seq != first.seq) {
            bench
                .sessions
                .settle(&device(), epoch, queued.seq, Settled::Delivered);
        }
    }
    assert_eq!(bench.queue(epoch).await[0], first);
}

#[tokio::test]
async fn a_message_that_is_enqueued_again_is_known_by_its_id() {
    let mut bench = Bench::new();
    let epoch = bench.offline().await;
    let sent = || Message {
        id: Some(7),
        ..value("1")
    };
    assert_eq!(bench.send(sent()).await, QUEUED);
    assert_eq!(bench.send(sent()).await, Enqueued::Duplicate);
    bench.crash();
    assert_eq!(bench.send(sent()).await, Enqueued::Duplicate);
    // delivered, and the process ends before the sender has noted that it was accepted
    bench.sessions.settle(
        &device(),
        epoch,
        bench.queue(epoch).await[0].seq,
        Settled::Delivered,
    );
    bench.clock.advance(Duration::from_hours(2));
    bench.restart().await;
    bench
        .sessions
        .reap(bench.clock.wall())
        .await
        .expect("works");
    assert_eq!(bench.send(sent()).await, Enqueued::Duplicate);
    assert!(bench.queue(epoch).await.is_empty());
    // in the end it is forgotten
    bench.clock.advance(Duration::from_mins(11));
    bench
        .sessions
        .reap(bench.clock.wall())
        .await
        .expect("works");
    assert_eq!(bench.send(sent()).await, QUEUED);
}

#[tokio::test]
async fn retained_messages_are_kept_replaced_and_removed() {
    let mut bench = Bench::new();
    let retained = |path: &str, payload: &str| Message {
        retain: true,
        ..message(path, payload, QoS::AtLeastOnce)
    };
    assert_eq!(bench.send(retained("/a/b", "1")).await, Enqueued::NoSession);
    bench.send(retained("/a/b", "2")).await;
    bench.send(retained("/a/c", "3")).await;
    bench.crash();
    let read = |filter: &'static str| {
        let sessions = bench.sessions.clone();
        async move {
            let filter = format!("{DEVICE}{filter}");
            let found = sessions.retained(&device(), &filter).await.expect("reads");
            assert!(found.iter().all(|message| message.retain));
            found
                .into_iter()
                .map(|message| message.payload)
                .collect::<Vec<_>>()
        }
    };
    assert_eq!(read("/#").await, ["2", "3"]);
    assert_eq!(read("/+/b").await, ["2"]);
    bench.send(retained("/a/b", "")).await;
    assert_eq!(read("/#").await, ["3"]);
    // a session that goes does not take them along, a device that goes does
    bench.offline().await;
    bench.sessions.erase(&device()).await.expect("works");
    assert_eq!(read("/#").await, ["3"]);
    bench.sessions.erase_device(&device()).await.expect("works");
    assert!(read("/#").await.is_empty());
}

#[tokio::test]
async fn a_realm_is_erased_and_its_neighbours_are_not() {
    let bench = Bench::new();
    let other: Identity = "acmes/Zm9vYmFyYmF6cXV4MTIzNA".parse().unwrap();
    let epoch = bench.offline().await;
    bench.send(value("1")).await;
    let request = StartRequest {
        clean_start: true,
        expiry: SessionExpiry::Never,
        version: Version::V311,
        now: start(),
    };
    bench.sessions.start(&other, request).await.expect("starts");
    let gone = bench.sessions.erase_realm(&device().realm).await;
    assert_eq!(gone, Ok(vec![(device(), epoch)]));
    assert_eq!(bench.sessions.summary(&device()).await, Ok(None));
    assert!(bench.sessions.summary(&other).await.unwrap().is_some());
}

#[tokio::test]
async fn fc_038_a_full_disk_fails_calls_and_is_survived() {
    let bench = Bench::new();
    let epoch = bench.offline().await;
    assert_eq!(bench.send(value("before")).await, QUEUED);
    let delivered = bench.queue(epoch).await[0].seq;
    bench.disk.full.store(true, Ordering::SeqCst);
    bench
        .sessions
        .settle(&device(), epoch, delivered, Settled::Delivered);
    for _ in 0..3 {
        let refused = bench.sessions.enqueue(&device(), value("lost")).await;
        assert!(
            matches!(refused, Err(SessionsError::Unavailable(_))),
            "{refused:?}"
        );
        assert!(bench.sessions.health().is_err());
    }
    bench.disk.full.store(false, Ordering::SeqCst);
    // by itself: the next call may still find it closed
    while bench.sessions.health().is_err() {
        tokio::task::yield_now().await;
    }
    assert_eq!(bench.send(value("after")).await, QUEUED);
    // the mark was not forgotten, what was refused did not get in
    assert_eq!(bench.payloads(epoch).await, ["after"]);
    assert_eq!(bench.summary().await.queued_messages, 1);
}

#[tokio::test]
async fn a_connection_goes_on_after_the_disk_was_full() {
    let bench = Bench::new();
    let mut started = bench.connect(true, SessionExpiry::Never).await;
    let epoch = started.epoch;
    bench
        .subscribe(epoch, &format!("{DEVICE}/#"), QoS::ExactlyOnce)
        .await;
    bench.disk.full.store(true, Ordering::SeqCst);
    let refused = bench
        .sessions
        .enqueue(&device(), message("/a/b", "x", QoS::ExactlyOnce))
        .await;
    assert!(refused.is_err());
    bench.disk.full.store(false, Ordering::SeqCst);
    assert_eq!(started.deliveries.recv().await, Some(Delivery::Lagging));
    assert!(bench.queue(epoch).await.is_empty());
    assert_eq!(
        bench.sessions.resume_feed(&device(), epoch, 0).await,
        Ok(Resume::Feeding)
    );
    assert_eq!(bench.send(value("1")).await, Enqueued::Delivering);
    assert!(matches!(
        started.deliveries.recv().await,
        Some(Delivery::Queued(_))
    ));
}

#[tokio::test]
async fn soft_marks_reach_the_disk_without_another_command() {
    let bench = Bench::new();
    let epoch = bench.offline().await;
    bench.send(value("1")).await;
    bench.sessions.settle(
        &device(),
        epoch,
        bench.queue(epoch).await[0].seq,
        Settled::Delivered,
    );
    // a commit is more than one sync: after each, look at what a power cut would leave
    let on_disk = async {
        loop {
            let syncs = bench.disk.platter().syncs;
            let left = bench
                .disk
                .after_power_cut()
                .open(&bench.clock, bench.limits);
            let queue = left
                .read_queue(&device(), epoch, 0, 1, usize::MAX)
                .await
                .expect("works");
            left.close().await;
            if queue.is_empty() {
                return;
            }
            while bench.disk.platter().syncs == syncs {
                tokio::task::yield_now().await;
            }
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), on_disk).await;
    assert!(waited.is_ok(), "the mark never reached the disk by itself");
}

#[tokio::test]
async fn closing_writes_what_is_left_and_refuses_what_comes() {
    let mut bench = Bench::new();
    let epoch = bench.offline().await;
    bench.send(value("1")).await;
    let seq = bench.queue(epoch).await[0].seq;
    bench.sessions.mark_sent(&device(), epoch, seq);
    bench.sessions.close().await;
    assert_eq!(
        bench.sessions.enqueue(&device(), value("2")).await,
        Err(SessionsError::Closed)
    );
    assert_eq!(
        bench.sessions.retained(&device(), "#").await,
        Err(SessionsError::Closed)
    );
    bench.sessions = bench.disk.open(&bench.clock, bench.limits);
    assert_eq!(bench.queue(epoch).await[0].state, FlowState::Sent);
    bench.send(value("3")).await;
    let seqs: Vec<_> = bench
        .queue(epoch)
        .await
        .iter()
        .map(|queued| queued.seq)
        .collect();
    assert_eq!(seqs, [seq, seq + 1], "no jump after an orderly stop");
}

#[tokio::test]
async fn a_file_in_use_damaged_or_newer_is_refused_with_its_path() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("sessions.redb");
    let clock = ManualClock::new(start());
    let open = || Sessions::open(&path, QueueLimits::default(), Arc::clone(&clock) as _);
    let first = open().expect("creates");
    let error = open().expect_err("is in use");
    assert!(
        matches!(&error, OpenError::Locked { path: at } if *at == path),
        "{error}"
    );
    first.close().await;

    let database = Database::open(&path).expect("opens");
    let writing = database.begin_write().expect("writes");
    let newer: layout::Definition = redb::TableDefinition::new("sessions.v2");
    drop(writing.open_table(newer).expect("creates"));
    writing.commit().expect("commits");
    drop(database);
    let error = open().expect_err("is newer");
    assert!(error.to_string().contains("sessions.v2"), "{error}");

    std::fs::write(&path, b"this was a session store").expect("writes");
    let error = open().expect_err("is damaged");
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert!(error.to_string().contains("sessions.redb"), "{error}");
    assert_eq!(
        std::fs::read(&path).expect("reads"),
        b"this was a session store"
    );
}

#[tokio::test]
async fn a_backup_made_in_use_opens_and_is_whole() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("copy.redb");
    let bench = Bench::new();
    let epoch = bench.offline().await;
    bench.send(value("1")).await;
    bench.sessions.backup(&path).await.expect("copies");
    bench.send(value("2")).await;
    let copy = Sessions::open(&path, bench.limits, Arc::clone(&bench.clock) as _).expect("opens");
    let queue = copy
        .read_queue(&device(), epoch, 0, 10, 1_000)
        .await
        .expect("reads");
    assert_eq!(queue.len(), 1);
    assert!(
        copy.backup(&directory.path().join("missing/copy.redb"))
            .await
            .is_err()
    );
}

#[tokio::test]
async fn the_copy_of_a_file_in_use_is_what_kill_9_leaves() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let (path, copied) = (
        directory.path().join("a.redb"),
        directory.path().join("b.redb"),
    );
    let clock = ManualClock::new(start());
    let open = |path| Sessions::open(path, QueueLimits::default(), Arc::clone(&clock) as _);
    let sessions = open(&path).expect("creates");
    let request = StartRequest {
        clean_start: true,
        expiry: SessionExpiry::Never,
        version: Version::V311,
        now: start(),
    };
    let started = sessions.start(&device(), request).await.expect("starts");
    let wanted = vec![subscription(&format!("{DEVICE}/#"), QoS::AtLeastOnce, None)];
    sessions
        .subscribe(&device(), started.epoch, wanted)
        .await
        .expect("subscribes");
    for number in 0..100 {
        sessions
            .enqueue(&device(), value(number.to_string()))
            .await
            .expect("accepts");
    }
    std::fs::copy(&path, &copied).expect("copies");
    let copy = open(&copied).expect("repairs");
    let queue = copy
        .read_queue(&device(), started.epoch, 0, 1_000, 1 << 20)
        .await
        .expect("reads");
    assert_eq!(queue.len(), 100);
}

/// A file with so many devices that are away, each with so many values of 100 bytes.
async fn backlog(path: &Path, devices: u32, values: u32) -> Vec<(Identity, SessionEpoch)> {
    let clock = ManualClock::new(start());
    let sessions = Sessions::open(path, QueueLimits::default(), Arc::clone(&clock) as _);
    let sessions = sessions.expect("creates");
    let mut all = Vec::new();
    for number in 0..devices {
        let id = crate::identity::DeviceId::from_bytes(u128::from(number).to_be_bytes());
        let identity = Identity::new(device().realm, id);
        let sessions = sessions.clone();
        all.push(async move {
            let request = StartRequest {
                clean_start: true,
                expiry: SessionExpiry::Never,
                version: Version::V311,
                now: start(),
            };
            let started = sessions.start(&identity, request).await.expect("starts");
            let wanted = vec![subscription(
                &format!("{identity}/#"),
                QoS::AtLeastOnce,
                None,
            )];
            let subscribed = sessions.subscribe(&identity, started.epoch, wanted).await;
            subscribed.expect("subscribes");
            drop(started.deliveries);
            for _ in 0..values {
                let topic = format!("{identity}/t.SrvCmd/cmd").into();
                let sent = Message {
                    topic,
                    ..value("x".repeat(100))
                };
                assert_eq!(sessions.enqueue(&identity, sent).await, Ok(QUEUED));
            }
            (identity, started.epoch)
        });
    }
    let made = futures_util::stream::iter(all)
        .buffer_unordered(1_000)
        .collect()
        .await;
    sessions.close().await;
    made
}

/// Resident memory of this process, in bytes.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("is Linux");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("has it");
    let kib = line
        .split_whitespace()
        .nth(1)
        .and_then(|kib| kib.parse::<u64>().ok());
    kib.expect("a number") * 1_024
}

async fn starts_small_and_serves(devices: u32, values: u32, bytes_max: u64) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("sessions.redb");
    let made = backlog(&path, devices, values).await;
    let before = resident_bytes();
    let clock = ManualClock::new(start());
    let sessions = Sessions::open(&path, QueueLimits::default(), Arc::clone(&clock) as _);
    let sessions = sessions.expect("opens");
    for (identity, epoch) in made.iter().take(500) {
        let part = sessions
            .read_queue(identity, *epoch, 0, 1_000, 1 << 20)
            .await
            .expect("reads");
        assert_eq!(part.len(), values as usize);
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < bytes_max, "grew by {grown} bytes");
}

#[tokio::test]
async fn fc_041_a_backlog_is_read_on_demand() {
    starts_small_and_serves(300, 20, 200 << 20).await;
}

#[tokio::test]
#[ignore = "heavy: two million values"]
async fn fc_041_start_with_two_million_queued_values_stays_small() {
    starts_small_and_serves(20_000, 100, 300 << 20).await;
}
