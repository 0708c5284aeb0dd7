//! Client, engine and store of one session, and what they see.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    num::NonZeroU16,
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use bytestring::ByteString;
use tanit::{
    clock::Timestamp,
    identity::Identity,
    interface::{Introspection, Ownership},
    mqtt::{
        AfterRefusal, DisconnectReason, Outcome,
        codec::{Decoder, EncodeError, PacketLimits, encode},
        packet::*,
        session::{Context, Effect, Limits, Output, Policy, Session, Slot, Start, agree},
        sessions::{FlowState, Message, Queued, QuotaExceeded, SubscribeOutcome, Subscription},
    },
};

use super::{Event, Opening};

const BASE: &str = "acme/AAAAAAAAAAAAAAAAAAAAAA";
const BELOW: [&str; 12] = [
    "",
    "/capabilities",
    "/control/emptyCache",
    "/control/producer/properties",
    "/t.Dev/int",
    "/t.Srv/cmd",
    "/t.No/x",
    "//x",
    "/control/consumer/properties",
    "/t.Dev//x",
    "/t.Dev/a/b",
    "x",
];
const FILTERS: [&str; 8] = [
    "/t.Srv/#",
    "/#",
    "",
    "/+/cmd",
    "#",
    "/control/consumer/properties",
    "/a#b",
    "/t.Srv/cmd",
];
const INTROSPECTIONS: [&str; 4] = ["t.Dev:1:0;t.Srv:1:0", "t.Dev:1:0", "", "not one"];

/// A flow of ours in the client's hands.
struct Flow {
    qos: QoS,
    received: bool,
    released: bool,
    counted: bool,
}

/// A message in the queue of the store.
struct Stored {
    packet_id: PacketId,
    settled: bool,
    marked: bool,
    /// Handed over as one whose PUBREC was received.
    resumed: bool,
}

pub struct World {
    session: Session,
    version: Version,
    packet_max: Option<u32>,
    window: usize,
    now: i64,
    closed: bool,
    reserved: bool,
    permit: bool,
    /// Publishes that the engine holds, and those that it released.
    submitted: Vec<Slot>,
    released: HashSet<u32>,
    /// QoS 1 publishes in order, with their slots; those not acknowledged yet.
    owed: VecDeque<(u32, PacketId)>,
    received: HashSet<PacketId>,
    /// PUBRELs whose receipt the engine still has to remove.
    settling: Vec<(Slot, PacketId)>,
    completions: HashMap<PacketId, usize>,
    storing: Option<Storing>,
    /// Filters of SUBSCRIBE (`true`) and UNSUBSCRIBE packets that are not answered.
    asked: Vec<(bool, PacketId, usize)>,
    retained: VecDeque<Subscription>,
    marking: VecDeque<u64>,
    queue: HashMap<u64, Stored>,
    next_seq: u64,
    flows: HashMap<PacketId, Flow>,
    pings: usize,
}

enum Storing {
    Subscribe(usize),
    Unsubscribe(usize),
}

impl World {
    pub fn new(opening: Opening) -> Self {
        let identity: Identity = BASE.parse().expect("an identity");
        let version = if opening.v5 {
            Version::V5
        } else {
            Version::V311
        };
        let mut limits = Limits::default();
        if opening.small_window {
            limits.window_messages_max = 3;
            limits.window_bytes_max = 64;
            limits.qos2_ids_max = 2;
            limits.inflight_max = 2;
            limits.filters_max = 3;
            limits.topic_alias_max = 2;
        }
        let receive_maximum = opening
            .receive_maximum
            .filter(|_| opening.v5)
            .map(u16::from)
            .and_then(NonZeroU16::new);
        let packet_max = opening
            .packet_max
            .filter(|_| opening.v5)
            .map(|max| u32::from(max) + 1);
        let connect = Connect {
            version,
            clean_start: opening.clean_start,
            keep_alive: 60,
            client_id: ByteString::new(),
            will: opening.will.then(|| Will {
                topic: format!("{BASE}/t.Dev/will").into(),
                payload: Bytes::new(),
                qos: QoS::AtMostOnce,
                retain: false,
                delay: 0,
                properties: PublishProperties::default(),
            }),
            username: None,
            password: None,
            session_expiry: None,
            receive_maximum,
            maximum_packet_size: packet_max,
            topic_alias_maximum: 0,
            request_response_information: false,
            request_problem_information: true,
            authentication_method: None,
            authentication_data: None,
            user_properties: Vec::new(),
        };
        let policy = Policy {
            session_expiry_max: None,
            keep_alive_max: None,
            packet_bytes_max: 300 << 10,
            receive_max: limits.qos2_ids_max,
            topic_alias_max: limits.topic_alias_max,
        };
        let agreed = agree(connect, &identity, &policy).expect("nothing to refuse");
        let introspection =
            Arc::new(Introspection::parse(INTROSPECTIONS[0].as_bytes()).expect("it"));
        let window = limits
            .inflight_max
            .min(receive_maximum.map_or(u16::MAX, NonZeroU16::get));
        Self {
            session: Session::new(Start {
                identity,
                introspection,
                agreed,
                limits,
            }),
            version,
            packet_max,
            window: window.into(),
            now: 0,
            closed: false,
            reserved: false,
            permit: false,
            submitted: Vec::new(),
            released: HashSet::new(),
            owed: VecDeque::new(),
            received: HashSet::new(),
            settling: Vec::new(),
            completions: HashMap::new(),
            storing: None,
            asked: Vec::new(),
            retained: VecDeque::new(),
            marking: VecDeque::new(),
            queue: HashMap::new(),
            next_seq: 1,
            flows: HashMap::new(),
            pings: 0,
        }
    }

    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Publish { .. }
            | Event::PubRel { .. }
            | Event::PubAck { .. }
            | Event::PubRec { .. }
            | Event::PubComp { .. }
            | Event::Subscribe { .. }
            | Event::Unsubscribe { .. }
            | Event::Ping
            | Event::Disconnect { .. }
            | Event::Foreign { .. } => {
                if self.session.wants_input() {
                    let packet = self.packet(event);
                    self.input(|session, context| session.packet(packet, context));
                    assert!(
                        self.closed || self.pings == 0,
                        "PINGREQ is answered at once"
                    );
                }
            }
            Event::Grant => {
                if std::mem::take(&mut self.reserved) {
                    self.permit = true;
                    self.input(|session, context| session.permit_granted(context));
                    self.permit = false;
                }
            }
            Event::Release { which, outcome } => self.release(which, outcome),
            Event::Settled { which, lost } => self.settled(which, lost),
            Event::Stored { fails, full } => self.stored(fails, full),
            Event::Retained { messages, qos } => self.retained(messages, qos),
            Event::Marked { fails } => {
                if let Some(seq) = self.marking.pop_front() {
                    self.input(|session, _| session.marked_received(seq, !fails));
                }
            }
            Event::Deliver {
                qos,
                state,
                topic,
                size,
                expires,
            } => {
                if self.session.wants_deliveries() {
                    let queued = self.queued(qos, state, topic, size, expires);
                    self.input(|session, context| session.deliver(queued, context));
                }
            }
            Event::DeliverQos0 { topic, size } => {
                let message = message(QoS::AtMostOnce, topic, size, None);
                self.input(|session, context| session.deliver_qos0(message, context));
            }
            Event::Refresh { introspection } => {
                let text = INTROSPECTIONS[usize::from(introspection) % 3];
                let introspection = Introspection::parse(text.as_bytes()).expect("the first three");
                self.input(|session, _| session.refresh_introspection(Arc::new(introspection)));
            }
            Event::Tick { seconds } => self.now += i64::from(seconds) * 1_000_000,
            Event::Drain => self.input(|session, _| session.drain()),
            Event::End => self.input(|session, _| session.end(DisconnectReason::TakenOver)),
            Event::Lost => self.input(|session, _| session.lost(DisconnectReason::ConnectionLost)),
        }
    }

    /// Gives the machine all that it waits for. Then it reads again, or has closed.
    pub fn finish(&mut self) {
        for _ in 0..2_000 {
            let waits = self.reserved
                || !self.submitted.is_empty()
                || !self.settling.is_empty()
                || self.storing.is_some()
                || !self.retained.is_empty()
                || !self.marking.is_empty();
            if self.closed || !waits {
                break;
            }
            self.apply(Event::Grant);
            self.apply(Event::Release {
                which: 0,
                outcome: 0,
            });
            self.apply(Event::Settled {
                which: 0,
                lost: false,
            });
            self.apply(Event::Stored {
                fails: false,
                full: false,
            });
            self.apply(Event::Retained {
                messages: 0,
                qos: 0,
            });
            self.apply(Event::Marked { fails: false });
        }
        if self.closed {
            return;
        }
        assert!(
            self.session.wants_input(),
            "reading goes on when nothing is owed"
        );
        assert!(self.owed.is_empty(), "every QoS 1 publish is acknowledged");
        assert!(
            self.asked.is_empty(),
            "every SUBSCRIBE and UNSUBSCRIBE is answered"
        );
        assert!(
            self.completions.values().all(|count| *count == 0),
            "every PUBREL is answered"
        );
        self.finish_outbound();
    }

    /// The client acknowledges all it has; then nothing waits to be sent.
    fn finish_outbound(&mut self) {
        for _ in 0..2_000 {
            if self.closed || self.flows.is_empty() {
                break;
            }
            for event in [
                Event::PubAck {
                    which: 0,
                    stray: false,
                },
                Event::PubRec {
                    which: 0,
                    stray: false,
                    fails: false,
                },
                Event::Marked { fails: false },
                Event::PubComp {
                    which: 0,
                    stray: false,
                },
            ] {
                self.apply(event);
            }
        }
        assert!(
            self.closed || self.session.wants_deliveries(),
            "all was sent"
        );
        assert!(
            self.closed || self.queue.values().all(|stored| stored.settled),
            "and settled"
        );
    }

    fn input(&mut self, call: impl FnOnce(&mut Session, &Context<'_>)) {
        let ownership = |name: &str, _: u32| match name {
            "t.Dev" => Some(Ownership::Device),
            "t.Srv" => Some(Ownership::Server),
            _ => None,
        };
        let context = Context {
            now: Timestamp::from_micros(self.now),
            ownership: &ownership,
        };
        call(&mut self.session, &context);
        while let Some(output) = self.session.next_output() {
            assert!(!self.closed, "nothing comes out after the end: {output:?}");
            match output {
                Output::Send(packet) => self.sent(packet),
                Output::Do(effect) => self.perform(effect),
            }
        }
        assert_eq!(self.session.is_closed(), self.closed);
    }

    fn sent(&mut self, packet: Packet) {
        let mut bytes = BytesMut::new();
        match encode(&packet, self.version, self.packet_max, &mut bytes) {
            Ok(()) => {
                let mut client = Decoder::of_server(PacketLimits::default(), self.version);
                let read = client.decode(&mut bytes);
                assert!(matches!(read, Ok(Some(_))), "{read:?} from {packet:?}");
            }
            Err(EncodeError::TooLarge { .. }) => {
                assert!(
                    !matches!(packet, Packet::Publish(_)),
                    "settled as too large: {packet:?}"
                );
            }
            Err(error) => panic!("{error:?} from {packet:?}"),
        }
        match packet {
            Packet::PubAck(ack) => {
                let (slot, id) = self.owed.pop_front().expect("a publish that is owed it");
                assert_eq!(id, ack.packet_id, "in the order of the publishes");
                assert!(self.released.contains(&slot), "after its release");
                let unreleased = |open: &Slot| matches!(open, Slot::Publish(open) if *open < slot);
                assert!(
                    !self.submitted.iter().any(unreleased),
                    "nor before an earlier one"
                );
            }
            Packet::PubRec(ack) => assert!(self.received.contains(&ack.packet_id)),
            Packet::PubComp(ack) => {
                let count = self.completions.get_mut(&ack.packet_id).expect("a PUBREL");
                *count = count.checked_sub(1).expect("one PUBCOMP for each PUBREL");
            }
            Packet::SubAck(ack) => self.answered(true, ack.packet_id, ack.reasons.len()),
            Packet::UnsubAck(ack) => self.answered(false, ack.packet_id, ack.reasons.len()),
            Packet::PingResp => self.pings -= 1,
            Packet::Publish(publish) => self.delivered(&publish),
            Packet::PubRel(ack) => {
                let resumed = Flow {
                    qos: QoS::ExactlyOnce,
                    received: true,
                    released: true,
                    counted: false,
                };
                if ack.reason == ReasonCode::SUCCESS && self.is_resumed(ack.packet_id) {
                    self.flows.entry(ack.packet_id).or_insert(resumed).released = true;
                } else if let Some(flow) = self.flows.get_mut(&ack.packet_id) {
                    flow.released = true;
                }
            }
            Packet::Disconnect(_) => assert_eq!(self.version, Version::V5),
            other => panic!("a server does not send {other:?}"),
        }
    }

    fn is_resumed(&self, packet_id: PacketId) -> bool {
        let this = |it: &Stored| it.packet_id == packet_id && it.resumed && !it.settled;
        self.queue.values().any(this)
    }

    fn is_queued(&self, packet_id: PacketId) -> bool {
        self.queue
            .values()
            .any(|stored| stored.packet_id == packet_id && !stored.settled)
    }

    fn answered(&mut self, subscribe: bool, packet_id: PacketId, codes: usize) {
        let asked = (subscribe, packet_id, codes);
        let index = self
            .asked
            .iter()
            .position(|it| *it == asked)
            .expect("asked for");
        self.asked.remove(index);
    }

    fn delivered(&mut self, publish: &Publish) {
        let Some(packet_id) = publish.packet_id else {
            return;
        };
        let flow = Flow {
            qos: publish.qos,
            received: false,
            released: false,
            counted: true,
        };
        assert!(
            self.flows.insert(packet_id, flow).is_none(),
            "an id is used once at a time"
        );
        let counted = self.flows.values().filter(|flow| flow.counted).count();
        assert!(
            counted <= self.window,
            "{counted} are more than the window of {}",
            self.window
        );
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Reserve { .. } => {
                assert!(!self.reserved, "one at a time");
                self.reserved = true;
            }
            Effect::Submit(submission) => {
                assert!(
                    std::mem::take(&mut self.permit),
                    "with a permit, and one for each"
                );
                let Slot::Publish(number) = submission.slot else {
                    panic!("a publish's slot")
                };
                assert!(submission.topic.starts_with(BASE));
                self.submitted.push(submission.slot);
                if let Some(delivery) = submission.delivery {
                    match delivery.qos {
                        QoS::AtLeastOnce => self.owed.push_back((number, delivery.packet_id)),
                        _ => drop(self.received.insert(delivery.packet_id)),
                    }
                }
            }
            Effect::Settle {
                slot: Some(slot),
                packet_id,
            } => self.settling.push((slot, packet_id)),
            Effect::Settle { slot: None, .. } => {}
            Effect::Subscribe(subscriptions) => {
                assert!(self.storing.is_none() && !subscriptions.is_empty());
                self.storing = Some(Storing::Subscribe(subscriptions.len()));
            }
            Effect::Unsubscribe(filters) => {
                assert!(self.storing.is_none());
                self.storing = Some(Storing::Unsubscribe(filters.len()));
            }
            Effect::Retained(subscription) => self.retained.push_back(subscription),
            Effect::MarkSent(seq) => {
                let stored = self.queue.get_mut(&seq).expect("in the queue");
                assert!(!std::mem::replace(&mut stored.marked, true), "once");
            }
            Effect::MarkReceived(seq) => self.marking.push_back(seq),
            Effect::SettleQueued(seq, _) => {
                let stored = self.queue.get_mut(&seq).expect("in the queue");
                assert!(
                    !std::mem::replace(&mut stored.settled, true),
                    "settled once"
                );
            }
            Effect::Close(_) => self.closed = true,
        }
    }

    fn release(&mut self, which: u8, outcome: u8) {
        if self.submitted.is_empty() {
            return;
        }
        let slot = self
            .submitted
            .remove(usize::from(which) % self.submitted.len());
        if let Slot::Publish(number) = slot {
            self.released.insert(number);
        }
        let refused = |reason, then| Some(Outcome::Refused { reason, then });
        let outcome = match outcome % 16 {
            0 => None,
            1 => refused(ReasonCode::PAYLOAD_FORMAT_INVALID, AfterRefusal::CleanKick),
            2..=4 => refused(ReasonCode::NOT_AUTHORIZED, AfterRefusal::Continue),
            _ => Some(Outcome::Stored),
        };
        self.input(|session, context| session.released(slot, outcome, context));
    }

    fn settled(&mut self, which: u8, lost: bool) {
        if self.settling.is_empty() {
            return;
        }
        let (slot, packet_id) = self
            .settling
            .remove(usize::from(which) % self.settling.len());
        let _ = packet_id;
        let outcome = (!lost).then_some(Outcome::Stored);
        self.input(|session, context| session.released(slot, outcome, context));
    }

    fn stored(&mut self, fails: bool, full: bool) {
        match self.storing.take() {
            None => {}
            Some(Storing::Subscribe(count)) => {
                let result = if full {
                    Err(QuotaExceeded)
                } else {
                    Ok(SubscribeOutcome::New)
                };
                let results = (!fails).then(|| vec![result; count]);
                self.input(|session, context| session.subscribed(results, context));
            }
            Some(Storing::Unsubscribe(count)) => {
                let results = vec![!full; count];
                let results = (!fails).then_some(&results[..]);
                self.input(|session, context| session.unsubscribed(results, context));
            }
        }
    }

    fn retained(&mut self, messages: u8, qos: u8) {
        if let Some(subscription) = self.retained.pop_front() {
            let messages = (0..messages % 4)
                .map(|_| message(quality(qos), 5, 3, None))
                .collect();
            self.input(|session, context| session.retained(&subscription, messages, context));
        }
    }

    /// The next message of the queue, with an id that no other has.
    fn queued(&mut self, qos: u8, state: u8, topic: u8, size: u8, expires: Option<u8>) -> Queued {
        let seq = self.next_seq;
        self.next_seq += 1;
        let mut number = u16::try_from(seq % 65_535).expect("16 bits") + 1;
        while self.is_queued(id(number)) {
            number = number % u16::MAX + 1;
        }
        let qos = if qos & 1 == 0 {
            QoS::AtLeastOnce
        } else {
            QoS::ExactlyOnce
        };
        let state = match state % 8 {
            0 => FlowState::Sent,
            1 if qos == QoS::ExactlyOnce => FlowState::Received,
            _ => FlowState::Waiting,
        };
        let expires_at = expires.map(|seconds| self.now + i64::from(seconds) * 1_000_000);
        let packet_id = id(number);
        let marked = state != FlowState::Waiting;
        self.queue.insert(
            seq,
            Stored {
                packet_id,
                settled: false,
                marked,
                resumed: state == FlowState::Received,
            },
        );
        let message = message(qos, topic, size, expires_at.map(Timestamp::from_micros));
        Queued {
            seq,
            packet_id,
            state,
            message,
        }
    }

    fn packet(&mut self, event: Event) -> Packet {
        match event {
            Event::Publish {
                qos,
                id: number,
                dup,
                topic,
                alias,
                payload,
            } => publish(self.version, qos, number, dup, topic, alias, payload),
            Event::PubRel { id: number } => {
                let packet_id = small_id(number);
                *self.completions.entry(packet_id).or_default() += 1;
                Packet::PubRel(Acknowledgement::success(packet_id))
            }
            Event::PubAck { which, stray } => {
                let wanted = |flow: &Flow| flow.qos == QoS::AtLeastOnce;
                let packet_id = self.flow(which, stray, wanted);
                if self.flows.get(&packet_id).is_some_and(wanted) {
                    self.flows.remove(&packet_id);
                }
                Packet::PubAck(Acknowledgement::success(packet_id))
            }
            Event::PubRec {
                which,
                stray,
                fails,
            } => {
                let wanted = |flow: &Flow| flow.qos == QoS::ExactlyOnce && !flow.received;
                let packet_id = self.flow(which, stray, wanted);
                let fails = fails && self.version == Version::V5;
                match self.flows.get_mut(&packet_id) {
                    Some(flow) if wanted(flow) && fails => drop(self.flows.remove(&packet_id)),
                    Some(flow) if wanted(flow) => flow.received = true,
                    _ => {}
                }
                let reason = if fails {
                    ReasonCode::UNSPECIFIED_ERROR
                } else {
                    ReasonCode::SUCCESS
                };
                Packet::PubRec(Acknowledgement {
                    reason,
                    ..Acknowledgement::success(packet_id)
                })
            }
            Event::PubComp { which, stray } => {
                let wanted = |flow: &Flow| flow.released;
                let packet_id = self.flow(which, stray, wanted);
                if self.flows.get(&packet_id).is_some_and(wanted) {
                    self.flows.remove(&packet_id);
                }
                Packet::PubComp(Acknowledgement::success(packet_id))
            }
            Event::Subscribe { id, filters, first } => {
                let packet_id = small_id(id);
                let options = SubscribeOptions {
                    qos: quality(first),
                    ..Default::default()
                };
                let filters = topics(filters, first)
                    .map(|filter| (filter, options))
                    .collect();
                let subscribe = Subscribe {
                    packet_id,
                    subscription_id: None,
                    filters,
                };
                self.asked.push((true, packet_id, subscribe.filters.len()));
                Packet::Subscribe(subscribe)
            }
            Event::Unsubscribe { id, filters, first } => {
                let filters: Vec<_> = topics(filters, first).collect();
                self.asked.push((false, small_id(id), filters.len()));
                Packet::Unsubscribe(Unsubscribe {
                    packet_id: small_id(id),
                    filters,
                })
            }
            Event::Disconnect { with_will, expiry } => Packet::Disconnect(Disconnect {
                reason: match with_will && self.version == Version::V5 {
                    true => ReasonCode::DISCONNECT_WITH_WILL,
                    false => ReasonCode::SUCCESS,
                },
                session_expiry: expiry
                    .filter(|_| self.version == Version::V5)
                    .map(u32::from),
                reason_string: None,
            }),
            Event::Foreign { kind } if kind % 8 == 0 => Packet::Auth(Auth::default()),
            _ => {
                self.pings += 1;
                Packet::PingReq
            }
        }
    }

    /// The id of one of our flows that is `wanted`, or any other.
    fn flow(&self, which: u8, stray: bool, wanted: impl Fn(&Flow) -> bool) -> PacketId {
        let mut ids: Vec<_> = self
            .flows
            .iter()
            .filter(|(_, flow)| wanted(flow))
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        match ids.get(usize::from(which) % ids.len().max(1)) {
            Some(id) if !stray => *id,
            _ => small_id(which),
        }
    }
}

fn id(number: u16) -> PacketId {
    PacketId::new(number.max(1)).expect("at least 1")
}

/// Few ids, so that they meet.
fn small_id(number: u8) -> PacketId {
    id(u16::from(number % 6) + 1)
}

fn quality(number: u8) -> QoS {
    QoS::from_u8(number % 3).expect("below 3")
}

fn below(topic: u8) -> String {
    format!("{BASE}{}", BELOW[usize::from(topic) % BELOW.len()])
}

fn topics(count: u8, first: u8) -> impl Iterator<Item = ByteString> {
    (0..count % 5 + 1).map(move |index| {
        let suffix = FILTERS[usize::from(first.wrapping_add(index)) % FILTERS.len()];
        if suffix == "#" {
            suffix.into()
        } else {
            format!("{BASE}{suffix}").into()
        }
    })
}

fn message(qos: QoS, topic: u8, size: u8, expires_at: Option<Timestamp>) -> Message {
    // mostly to where the device may be written to
    let topic = if topic < 128 { below(5) } else { below(topic) };
    Message {
        topic: topic.into(),
        payload: vec![0; usize::from(size)].into(),
        qos,
        retain: false,
        expires_at,
        subscription_ids: Vec::new(),
        properties: PublishProperties::default(),
        property: false,
        major: None,
        id: None,
    }
}

fn publish(
    version: Version,
    qos: u8,
    number: u8,
    dup: bool,
    topic: u8,
    alias: Option<u8>,
    payload: u8,
) -> Packet {
    let qos = quality(qos);
    let numbered = qos != QoS::AtMostOnce;
    let alias = alias
        .filter(|_| version == Version::V5)
        .map(|alias| u16::from(alias % 4) + 1);
    // mostly where the device may write
    let full = if topic < 160 { below(4) } else { below(topic) };
    let payload = match payload {
        0..4 => INTROSPECTIONS[usize::from(payload)].into(),
        size => vec![0; size.into()].into(),
    };
    Packet::Publish(Publish {
        dup: dup && numbered,
        qos,
        retain: false,
        topic: if alias.is_some() && topic % 3 == 0 {
            ByteString::new()
        } else {
            full.into()
        },
        packet_id: numbered.then(|| small_id(number)),
        payload,
        topic_alias: alias.and_then(NonZeroU16::new),
        subscription_ids: Vec::new(),
        properties: PublishProperties::default(),
    })
}
