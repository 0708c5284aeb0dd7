//! The machine against models: random clients, an engine that answers in any order, connections
//! that are cut at any step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;

use super::{
    tests::{Bench, ack, connect, data, id, queued},
    *,
};
use crate::mqtt::{packet::Publish, sessions::FlowState};

/// What a client or the engine does next. Numbers choose among what is possible.
#[derive(Clone, Copy, Debug)]
enum Step {
    Publish(QoS),
    Repeat(usize),
    Release(usize),
    Commit(usize),
    Ping,
}

fn step() -> impl Strategy<Value = Step> {
    let qos = prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
    prop_oneof![
        4 => qos.prop_map(Step::Publish),
        1 => any::<prop::sample::Index>().prop_map(|at| Step::Repeat(at.index(1 << 16))),
        2 => any::<prop::sample::Index>().prop_map(|at| Step::Release(at.index(1 << 16))),
        5 => any::<prop::sample::Index>().prop_map(|at| Step::Commit(at.index(1 << 16))),
        1 => Just(Step::Ping),
    ]
}

/// A client that keeps to the protocol, with what it may expect.
struct Client {
    bench: Bench,
    limit: usize,
    next_id: u16,
    /// QoS 1 and 2 publishes in the order they were sent, each with whether it is QoS 2.
    owed: VecDeque<(u16, bool)>,
    /// QoS 2 ids: `false` while PUBREC is awaited, `true` once PUBREL may go.
    open: BTreeMap<u16, bool>,
    /// PUBREL was sent, PUBCOMP is awaited.
    releasing: BTreeSet<u16>,
    /// Submissions that the engine has not answered.
    uncommitted: Vec<usize>,
    seen: usize,
    /// Receipts that the engine was asked to remove and has not.
    settling: VecDeque<Slot>,
    published: usize,
}

impl Client {
    fn new(version: Version, limit: u16) -> Self {
        let limits = Limits {
            window_messages_max: limit.into(),
            qos2_ids_max: limit,
            ..Limits::default()
        };
        Self {
            bench: Bench::start(connect(version), limits),
            limit: limit.into(),
            next_id: 1,
            owed: VecDeque::new(),
            open: BTreeMap::new(),
            releasing: BTreeSet::new(),
            uncommitted: Vec::new(),
            seen: 0,
            settling: VecDeque::new(),
            published: 0,
        }
    }

    fn under_way(&self) -> usize {
        self.owed.iter().filter(|(_, two)| !two).count() + self.open.len() + self.releasing.len()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Publish(qos) => self.publish(qos),
            Step::Repeat(at) => {
                if let Some((number, _)) =
                    pick(&self.open.clone().into_iter().collect::<Vec<_>>(), at)
                    && self.bench.session.wants_input()
                {
                    let repeat = Publish {
                        dup: true,
                        ..data(QoS::ExactlyOnce, number)
                    };
                    self.owed.push_back((number, true));
                    self.bench.publish(repeat);
                }
            }
            Step::Release(at) => {
                let ready = self.open.iter().filter(|(_, received)| **received);
                let ready: Vec<u16> = ready.map(|(number, _)| *number).collect();
                let repeated = |number: &u16| self.owed.iter().any(|(owed, _)| owed == number);
                if let Some(number) = pick(&ready, at)
                    && self.bench.session.wants_input()
                    && !repeated(&number)
                {
                    self.open.remove(&number);
                    self.releasing.insert(number);
                    self.bench.receive(Packet::PubRel(ack(number)));
                }
            }
            Step::Commit(at) => self.answer(at),
            Step::Ping => {
                if self.bench.session.wants_input() {
                    self.bench.receive(Packet::PingReq);
                    assert!(self.bench.sent.contains(&Packet::PingResp));
                }
            }
        }
        self.look();
    }

    fn publish(&mut self, qos: QoS) {
        if !self.bench.session.wants_input() {
            return;
        }
        if qos == QoS::AtMostOnce {
            self.bench.publish(data(qos, 0));
            self.published += 1;
            return;
        }
        if self.under_way() >= self.limit {
            return;
        }
        let number = self.next_id;
        self.next_id += 1;
        self.owed.push_back((number, qos == QoS::ExactlyOnce));
        if qos == QoS::ExactlyOnce {
            self.open.insert(number, false);
        }
        self.bench.publish(data(qos, number));
        self.published += 1;
    }

    /// The engine answers something.
    fn answer(&mut self, at: usize) {
        if at.is_multiple_of(2)
            && let Some(slot) = self.settling.pop_front()
        {
            self.bench.release(slot, Outcome::Stored);
        } else if !self.uncommitted.is_empty() {
            let index = self.uncommitted.swap_remove(at % self.uncommitted.len());
            self.bench.commit(index);
        }
    }

    /// Looks at all that came out.
    fn look(&mut self) {
        assert!(
            self.bench.closing.is_none(),
            "a client within its limits is not closed"
        );
        self.uncommitted
            .extend(self.seen..self.bench.submitted.len());
        self.seen = self.bench.submitted.len();
        assert!(
            self.uncommitted.len() <= self.limit,
            "the window is a bound"
        );
        for effect in self.bench.effects() {
            match effect {
                Effect::Settle {
                    slot: Some(slot), ..
                } => self.settling.push_back(slot),
                other => panic!("{other:?} was not asked for"),
            }
        }
        for packet in self.bench.sent() {
            match packet {
                Packet::PubAck(ack) => self.acknowledged(ack.packet_id.get(), false),
                Packet::PubRec(ack) => self.acknowledged(ack.packet_id.get(), true),
                Packet::PubComp(ack) => {
                    assert!(
                        self.releasing.remove(&ack.packet_id.get()),
                        "PUBCOMP without PUBREL"
                    );
                }
                Packet::PingResp => {}
                other => panic!("{other:?} is no answer"),
            }
        }
    }

    fn acknowledged(&mut self, number: u16, is_two: bool) {
        assert_eq!(
            self.owed.pop_front(),
            Some((number, is_two)),
            "in the order of the publishes"
        );
        if is_two {
            self.open.insert(number, true);
        }
    }

    /// Everything is answered and released: nothing may be left.
    fn finish(mut self) {
        while !(self.uncommitted.is_empty() && self.settling.is_empty() && self.open.is_empty()) {
            self.take(Step::Commit(1));
            self.take(Step::Commit(0));
            self.take(Step::Release(0));
        }
        assert_eq!(self.owed, []);
        assert_eq!(self.bench.session.inbound.held_ids(), 0);
        assert!(self.bench.session.wants_input());
        assert_eq!(
            self.bench.submitted.len(),
            self.published,
            "each message exactly once"
        );
    }
}

fn pick<T: Clone>(from: &[T], at: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[at % from.len()].clone())
}

/// What happens to a message on its way to the device.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// The client answers one of the packets that it has received.
    Answer(usize),
    /// A write of a PUBREC ends.
    Marked,
    /// The connection is cut, and perhaps the process dies with it: soft marks are lost.
    Cut { crash: bool },
    /// The connection reads on.
    Read,
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        6 => any::<prop::sample::Index>().prop_map(|at| Turn::Answer(at.index(1 << 16))),
        4 => Just(Turn::Marked),
        1 => any::<bool>().prop_map(|crash| Turn::Cut { crash }),
        4 => Just(Turn::Read),
    ]
}

/// The store, a client with its own state of QoS 2, and the connection between them.
struct Route {
    bench: Bench,
    version: Version,
    window: u16,
    /// The queue as it is on disk.
    disk: Vec<Queued>,
    /// Writes that nobody has waited for yet: lost by a crash.
    soft: Vec<Effect>,
    marking: VecDeque<u64>,
    /// Packets that the client has received and not answered.
    inbox: Vec<Packet>,
    /// QoS 2 ids that the client holds.
    held: BTreeSet<u16>,
    /// Messages as the client's application got them.
    got: Vec<u16>,
    under_way: BTreeSet<u16>,
}

impl Route {
    fn new(version: Version, window: u16, messages: &[QoS]) -> Self {
        let disk = (1..)
            .zip(messages)
            .map(|(seq, qos)| queued(seq, *qos))
            .collect();
        Self {
            bench: Self::connection(version, window),
            version,
            window,
            disk,
            soft: Vec::new(),
            marking: VecDeque::new(),
            inbox: Vec::new(),
            held: BTreeSet::new(),
            got: Vec::new(),
            under_way: BTreeSet::new(),
        }
    }

    fn connection(version: Version, window: u16) -> Bench {
        let limits = Limits {
            inflight_max: window,
            ..Limits::default()
        };
        Bench::start(connect(version), limits)
    }

    fn take(&mut self, turn: Turn) {
        match turn {
            Turn::Read => self.read(),
            Turn::Marked => {
                if let Some(seq) = self.marking.pop_front() {
                    self.on_disk(seq, FlowState::Received);
                    self.bench.marked(seq);
                }
            }
            Turn::Answer(at) => {
                if !self.inbox.is_empty() {
                    let packet = self.inbox.remove(at % self.inbox.len());
                    self.answer(&packet);
                }
            }
            Turn::Cut { crash } => self.cut(crash),
        }
        self.look();
    }

    fn read(&mut self) {
        while self.bench.session.wants_deliveries() {
            let after = self.bench.session.last_seq();
            let Some(next) = self.disk.iter().find(|queued| queued.seq > after) else {
                return;
            };
            self.bench.deliver(next.clone());
        }
    }

    fn answer(&mut self, packet: &Packet) {
        match packet {
            Packet::Publish(publish) => {
                let packet_id = publish.packet_id.expect("QoS 1 or 2").get();
                if publish.qos == QoS::AtLeastOnce {
                    self.got.push(packet_id);
                    self.under_way.remove(&packet_id);
                    self.bench.receive(Packet::PubAck(ack(packet_id)));
                } else {
                    if self.held.insert(packet_id) {
                        self.got.push(packet_id);
                    }
                    self.bench.receive(Packet::PubRec(ack(packet_id)));
                }
            }
            Packet::PubRel(pubrel) => {
                self.held.remove(&pubrel.packet_id.get());
                self.under_way.remove(&pubrel.packet_id.get());
                self.bench
                    .receive(Packet::PubComp(ack(pubrel.packet_id.get())));
            }
            other => panic!("{other:?} was not expected"),
        }
    }

    fn cut(&mut self, crash: bool) {
        if crash {
            self.soft.clear();
        }
        self.write_soft();
        self.marking.clear();
        self.inbox.clear();
        self.under_way.clear();
        self.bench = Self::connection(self.version, self.window);
        self.read();
    }

    fn on_disk(&mut self, seq: u64, state: FlowState) {
        if let Some(queued) = self.disk.iter_mut().find(|queued| queued.seq == seq) {
            queued.state = state;
        }
    }

    fn write_soft(&mut self) {
        for effect in std::mem::take(&mut self.soft) {
            match effect {
                Effect::MarkSent(seq) => self.on_disk(seq, FlowState::Sent),
                Effect::SettleQueued(seq, Settled::Delivered) => {
                    self.disk.retain(|queued| queued.seq != seq);
                }
                other => panic!("{other:?} was not expected"),
            }
        }
    }

    fn look(&mut self) {
        for effect in self.bench.effects() {
            match effect {
                // a durable write takes the soft ones before it along
                Effect::MarkReceived(seq) => {
                    self.write_soft();
                    self.marking.push_back(seq);
                }
                soft => self.soft.push(soft),
            }
        }
        for packet in self.bench.sent() {
            if let Packet::Publish(publish) = &packet {
                let packet_id = publish.packet_id.expect("QoS 1 or 2").get();
                assert!(
                    self.under_way.insert(packet_id),
                    "sent twice on one connection"
                );
                assert!(
                    self.under_way.len() <= self.window.into(),
                    "the window is a bound"
                );
            }
            self.inbox.push(packet);
        }
    }

    /// The client answers all: everything is delivered, and nothing is left.
    fn finish(mut self, messages: &[QoS]) {
        for _ in 0..messages.len() * 8 + 8 {
            self.take(Turn::Read);
            self.take(Turn::Answer(0));
            self.take(Turn::Marked);
        }
        self.write_soft();
        assert_eq!(self.disk, [], "everything is settled");
        assert_eq!(
            self.bench.session.outbound_room(),
            usize::from(self.window),
            "no place leaked"
        );
        assert_eq!(self.bench.session.outbound.flows(), 0);
        let mut first = self.got.clone();
        let mut seen = BTreeSet::new();
        first.retain(|number| seen.insert(*number));
        assert_eq!(first.len(), messages.len(), "everything arrives");
        for (number, qos) in (1..).zip(messages) {
            let times = self.got.iter().filter(|got| **got == number).count();
            assert!(
                times == 1 || (times > 1 && *qos == QoS::AtLeastOnce),
                "{number}: {times}"
            );
        }
    }
}

fn qos_1_or_2() -> impl Strategy<Value = QoS> {
    prop::sample::select(vec![QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn version() -> impl Strategy<Value = Version> {
    prop::sample::select(vec![Version::V311, Version::V5])
}

proptest! {
    #[test]
    fn fc_026_fc_031_a_client_within_its_limits_is_always_served(
        version in version(),
        limit in 1_u16..12,
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let mut client = Client::new(version, limit);
        for step in steps {
            client.take(step);
        }
        client.finish();
    }

    #[test]
    fn fc_008_fc_031_messages_arrive_whatever_is_cut_and_the_window_never_leaks(
        version in version(),
        window in 1_u16..8,
        messages in prop::collection::vec(qos_1_or_2(), 1..30),
        turns in prop::collection::vec(turn(), 0..200),
    ) {
        let mut route = Route::new(version, window, &messages);
        for turn in turns {
            route.take(turn);
        }
        route.finish(&messages);
    }

    #[test]
    fn no_sequence_of_packets_makes_it_panic_or_speak_after_the_close(
        version in version(),
        packets in prop::collection::vec((0_u8..9, 0_u16..6, 0_u8..3), 0..200),
    ) {
        let limits = Limits { window_messages_max: 3, qos2_ids_max: 3, ..Limits::default() };
        let mut bench = Bench::start(connect(version), limits);
        for (kind, number, choice) in packets {
            random_input(&mut bench, kind, number, choice);
        }
    }
}

fn random_input(bench: &mut Bench, kind: u8, number: u16, choice: u8) {
    let qos = QoS::from_u8(choice).unwrap_or_default();
    let packet_id = if qos == QoS::AtMostOnce {
        0
    } else {
        number.max(1)
    };
    let some = id(number.max(1)).get();
    let packet = match kind {
        0 => Packet::Publish(data(qos, packet_id)),
        1 => Packet::PubRel(ack(some)),
        2 => Packet::PubRec(ack(some)),
        3 => Packet::PubAck(ack(some)),
        4 => Packet::PubComp(ack(some)),
        5 => super::tests::subscribe(some, &[("acme/Zm9vYmFyYmF6cXV4MTIzNA/#", qos)]),
        6 => {
            let slot = if choice == 0 {
                Slot::Release(number.into())
            } else {
                Slot::Publish(number.into())
            };
            let then = if choice == 2 && number == 5 {
                AfterRefusal::CleanKick
            } else {
                AfterRefusal::Continue
            };
            let refused = Outcome::Refused {
                reason: ReasonCode::NOT_AUTHORIZED,
                then,
            };
            let outcome = if choice == 1 {
                Outcome::Stored
            } else {
                refused
            };
            return bench.release(slot, outcome);
        }
        7 => return bench.deliver(queued(number.max(1), qos.max(QoS::AtLeastOnce))),
        _ => {
            return match choice {
                0 => bench.marked(number.into()),
                1 => bench.stored(&[]),
                _ => bench.step(|session, _| session.drain()),
            };
        }
    };
    bench.step(|session, context| {
        if session.wants_input() {
            session.packet(packet, context);
        }
    });
}
