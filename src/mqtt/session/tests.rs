//! The machine, case by case.

mod inbound;
mod outbound;
mod presence;
mod subscriptions;

use bytes::Bytes;

use super::*;
use crate::{
    interface::{MajorMinor, Ownership},
    mqtt::packet::{Acknowledgement, Connect, Publish, PublishProperties, Subscribe},
};

pub(super) const BASE: &str = "acme/Zm9vYmFyYmF6cXV4MTIzNA";

pub(in crate::mqtt) fn identity() -> Identity {
    BASE.parse().expect("canonical")
}

pub(in crate::mqtt) fn connect(version: Version) -> Connect {
    Connect {
        version,
        clean_start: true,
        keep_alive: 60,
        client_id: "any".into(),
        will: None,
        username: None,
        password: None,
        session_expiry: None,
        receive_maximum: None,
        maximum_packet_size: None,
        topic_alias_maximum: 0,
        request_response_information: false,
        request_problem_information: true,
        authentication_method: None,
        authentication_data: None,
        user_properties: Vec::new(),
    }
}

pub(super) fn id(number: u16) -> PacketId {
    PacketId::new(number).expect("not 0")
}

pub(super) fn ack(number: u16) -> Acknowledgement {
    Acknowledgement::success(id(number))
}

pub(super) fn coded(number: u16, reason: ReasonCode) -> Acknowledgement {
    Acknowledgement {
        reason,
        ..ack(number)
    }
}

/// A PUBLISH of the device on `<base><below>`; packet id 0 is QoS 0.
pub(super) fn publish(qos: QoS, packet_id: u16, below: &str) -> Publish {
    Publish {
        dup: false,
        qos,
        retain: false,
        topic: format!("{BASE}{below}").into(),
        packet_id: PacketId::new(packet_id),
        payload: Bytes::from_static(b"x"),
        topic_alias: None,
        subscription_ids: Vec::new(),
        properties: PublishProperties::default(),
    }
}

pub(super) fn data(qos: QoS, packet_id: u16) -> Publish {
    publish(qos, packet_id, "/t.Dev/int")
}

/// `t.Dev` and `t.New` are the device's, `t.Srv` is the server's; all are installed.
pub(super) fn ownership(interface: &str, _: u32) -> Option<Ownership> {
    match interface {
        "t.Dev" | "t.New" => Some(Ownership::Device),
        "t.Srv" => Some(Ownership::Server),
        _ => None,
    }
}

pub(super) fn declared(names: &[&str]) -> Arc<Introspection> {
    let version = MajorMinor { major: 1, minor: 0 };
    Arc::new(
        names
            .iter()
            .map(|name| (Arc::from(*name), version))
            .collect(),
    )
}

/// A message for the device on `t.Srv/cmd`.
pub(super) fn message(qos: QoS) -> Message {
    Message {
        topic: format!("{BASE}/t.Srv/cmd").into(),
        payload: Bytes::from_static(b"y"),
        qos,
        retain: false,
        expires_at: None,
        subscription_ids: Vec::new(),
        properties: PublishProperties::default(),
        property: false,
        major: None,
        id: None,
    }
}

pub(super) fn queued(seq: u16, qos: QoS) -> Queued {
    use crate::mqtt::sessions::FlowState;
    let packet_id = id(seq);
    Queued {
        seq: seq.into(),
        packet_id,
        state: FlowState::Waiting,
        message: message(qos),
    }
}

/// A session with what it has put out so far, sorted.
pub(super) struct Bench {
    pub(super) session: Session,
    pub(super) now: Timestamp,
    /// Whether permits are granted as soon as they are asked for.
    pub(super) grants: bool,
    pub(super) reservations: usize,
    pub(super) sent: Vec<Packet>,
    pub(super) submitted: Vec<Submission>,
    pub(super) effects: Vec<Effect>,
    pub(super) closing: Option<Closing>,
}

impl Bench {
    pub(super) fn new(version: Version) -> Self {
        Self::start(connect(version), Limits::default())
    }

    pub(super) fn start(connect: Connect, limits: Limits) -> Self {
        let policy = Policy {
            session_expiry_max: None,
            keep_alive_max: None,
            packet_bytes_max: 300 << 10,
            receive_max: limits.qos2_ids_max,
            topic_alias_max: limits.topic_alias_max,
        };
        let agreed = agree(connect, &identity(), &policy).expect("nothing to refuse");
        let introspection = declared(&["t.Dev", "t.Srv"]);
        Self {
            session: Session::new(Start {
                identity: identity(),
                introspection,
                agreed,
                limits,
            }),
            now: Timestamp::from_micros(1_700_000_000_000_000),
            grants: true,
            reservations: 0,
            sent: Vec::new(),
            submitted: Vec::new(),
            effects: Vec::new(),
            closing: None,
        }
    }

    pub(super) fn step(&mut self, step: impl FnOnce(&mut Session, &Context<'_>)) {
        let context = Context {
            now: self.now,
            ownership: &ownership,
        };
        step(&mut self.session, &context);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some(output) = self.session.next_output() {
            assert!(self.closing.is_none(), "{output:?} comes after the close");
            match output {
                Output::Send(packet) => self.sent.push(packet),
                Output::Do(Effect::Submit(submission)) => self.submitted.push(submission),
                Output::Do(Effect::Close(closing)) => self.closing = Some(closing),
                Output::Do(Effect::Reserve { .. }) => {
                    self.reservations += 1;
                    if self.grants {
                        let context = Context {
                            now: self.now,
                            ownership: &ownership,
                        };
                        self.session.permit_granted(&context);
                    }
                }
                Output::Do(effect) => self.effects.push(effect),
            }
        }
    }

    pub(super) fn receive(&mut self, packet: Packet) {
        assert!(self.session.wants_input(), "{packet:?} would not be read");
        self.step(|session, context| session.packet(packet, context));
    }

    pub(super) fn publish(&mut self, publish: Publish) {
        self.receive(Packet::Publish(publish));
    }

    pub(super) fn grant(&mut self) {
        self.step(Session::permit_granted);
    }

    pub(super) fn release(&mut self, slot: Slot, outcome: Outcome) {
        self.step(|session, context| session.released(slot, Some(outcome), context));
    }

    /// The `index`th submission is committed.
    pub(super) fn commit(&mut self, index: usize) {
        self.release(self.submitted[index].slot, Outcome::Stored);
    }

    pub(super) fn refuse(&mut self, index: usize, reason: ReasonCode, then: AfterRefusal) {
        self.release(
            self.submitted[index].slot,
            Outcome::Refused { reason, then },
        );
    }

    pub(super) fn deliver(&mut self, queued: Queued) {
        self.step(|session, context| session.deliver(queued, context));
    }

    pub(super) fn marked(&mut self, seq: u64) {
        self.step(|session, _| session.marked_received(seq, true));
    }

    pub(super) fn stored(&mut self, results: &[SubscribeOutcome]) {
        let results = results.iter().map(|outcome| Ok(*outcome)).collect();
        self.step(|session, context| session.subscribed(Some(results), context));
    }

    /// What was sent since the last call.
    pub(super) fn sent(&mut self) -> Vec<Packet> {
        std::mem::take(&mut self.sent)
    }

    /// Effects since the last call, without submissions and the close.
    pub(super) fn effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The close: its reason, whether the session is erased, and the code that 5.0 was told last.
    pub(super) fn closed(&mut self) -> (DisconnectReason, bool, Option<ReasonCode>) {
        let closing = self.closing.as_ref().expect("the connection has ended");
        let code = match self.sent.last() {
            Some(Packet::Disconnect(disconnect)) => Some(disconnect.reason),
            _ => None,
        };
        (closing.reason, closing.erase, code)
    }
}

pub(super) fn subscribe(packet_id: u16, filters: &[(&str, QoS)]) -> Packet {
    let options = |qos| SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    };
    let filters = filters
        .iter()
        .map(|(filter, qos)| ((*filter).into(), options(*qos)))
        .collect();
    Packet::Subscribe(Subscribe {
        packet_id: id(packet_id),
        subscription_id: None,
        filters,
    })
}
