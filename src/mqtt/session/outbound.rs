//! From the queue to the device: the outbound window and the flows in it.
//!
//! What is in flight is on disk too, so that a flow survives connections: messages come back with
//! their state, in their order, before anything newer. Retained messages are the exception: they
//! are not in the queue, take a packet id that no flow has, and are not sent again.

use std::collections::VecDeque;

use bytestring::ByteString;

use super::{
    super::{
        acl::Acl,
        packet::{Acknowledgement, Packet, PacketId, Publish, PublishProperties, QoS, ReasonCode},
        sessions::{FlowState, Message, Queued, Settled},
    },
    Capabilities, Context, Effect, Output,
};
use crate::{clock::Timestamp, interface::Introspection};

/// Everything on its way to the device.
#[derive(Debug)]
pub(super) struct Outbound {
    capabilities: Capabilities,
    /// Publishes of QoS 1 and 2 that may be unacknowledged; never 0.
    window: usize,
    packet_bytes_max: Option<u32>,
    /// In the order in which they were sent.
    flows: VecDeque<Flow>,
    /// How many of them take room in the window.
    counted: usize,
    pending: VecDeque<Item>,
    last_seq: u64,
    next_unstored_id: u16,
}

#[derive(Debug)]
struct Flow {
    packet_id: PacketId,
    /// Place in the queue; `None` for a retained message.
    seq: Option<u64>,
    stage: Stage,
    /// Whether its PUBLISH was sent on this connection. A flow that is resumed with PUBREL takes no
    /// room [MQTT5-4.9.0-1].
    counted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// PUBLISH was sent with QoS 1.
    PubAck,
    /// PUBLISH was sent with QoS 2.
    PubRec,
    /// PUBREC came in and is being written down.
    Marking,
    /// PUBREL was sent.
    PubComp,
}

#[derive(Debug)]
enum Item {
    Queued(Queued),
    /// QoS 0, or a retained message.
    Unstored(Message),
}

/// What a message is sent as, or why it is not.
type Prepared = Result<Publish, Settled>;

impl Outbound {
    pub(super) fn new(
        window: usize,
        packet_bytes_max: Option<u32>,
        capabilities: Capabilities,
    ) -> Self {
        Self {
            capabilities,
            window: window.max(1),
            packet_bytes_max,
            flows: VecDeque::new(),
            counted: 0,
            pending: VecDeque::new(),
            last_seq: 0,
            next_unstored_id: u16::MAX,
        }
    }

    /// Whether all that was handed over is sent.
    pub(super) fn is_drained(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) const fn last_seq(&self) -> u64 {
        self.last_seq
    }

    /// Free places in the window.
    pub(super) fn room(&self) -> usize {
        self.window.saturating_sub(self.counted)
    }

    /// Takes a message from the queue; `false` when it was seen before.
    pub(super) fn queue(&mut self, queued: Queued) -> bool {
        if queued.seq <= self.last_seq {
            return false;
        }
        self.last_seq = queued.seq;
        self.pending.push_back(Item::Queued(queued));
        true
    }

    /// Takes a message that is not in the queue.
    pub(super) fn queue_unstored(&mut self, message: Message) {
        if message.qos == QoS::AtMostOnce {
            // takes no room, so nothing holds it up
            self.pending.push_front(Item::Unstored(message));
        } else {
            self.pending.push_back(Item::Unstored(message));
        }
    }

    /// Sends what there is room for.
    pub(super) fn pump(
        &mut self,
        acl: &Acl<'_>,
        introspection: &Introspection,
        context: &Context<'_>,
        outputs: &mut VecDeque<Output>,
    ) {
        while let Some(item) = self.pending.pop_front() {
            if !self.may_go(&item) {
                self.pending.push_front(item);
                return;
            }
            // judged at the last moment: whatever was queued before the device went to another
            // major, or meanwhile, does not reach that one
            let allowed = |message: &Message| {
                acl.deliver(
                    introspection,
                    context.ownership,
                    &message.topic,
                    message.major,
                )
            };
            match item {
                Item::Queued(queued) if queued.state == FlowState::Received => {
                    self.resume_received(&queued, outputs);
                }
                Item::Queued(queued) => {
                    let allowed = allowed(&queued.message);
                    self.send_queued(queued, allowed, context.now, outputs);
                }
                Item::Unstored(message) => {
                    if allowed(&message) {
                        self.send_unstored(message, context.now, outputs);
                    }
                }
            }
        }
    }

    /// PUBACK.
    pub(super) fn puback(&mut self, ack: &Acknowledgement, outputs: &mut VecDeque<Output>) {
        if let Some(flow) = self.take(ack.packet_id, Stage::PubAck) {
            settle(&flow, how(ack.reason), outputs);
        }
    }

    /// PUBREC. It is written down before PUBREL leaves, or a crash would send the PUBLISH again
    /// after the client has forgotten its id.
    pub(super) fn pubrec(&mut self, ack: &Acknowledgement, outputs: &mut VecDeque<Output>) {
        let packet_id = ack.packet_id;
        if ack.reason.is_failure() {
            // the flow ends here [MQTT5-4.3.3-4]
            if let Some(flow) = self.take(packet_id, Stage::PubRec) {
                settle(&flow, Settled::Refused, outputs);
            }
            return;
        }
        let Some(flow) = self
            .flows
            .iter_mut()
            .find(|flow| flow.packet_id == packet_id)
        else {
            // the client can only go on with a PUBREL
            let reason = if self.capabilities.reason_codes {
                ReasonCode::PACKET_IDENTIFIER_NOT_FOUND
            } else {
                ReasonCode::SUCCESS
            };
            outputs.push_back(pubrel(packet_id, reason));
            return;
        };
        match (flow.stage, flow.seq) {
            (Stage::PubRec, Some(seq)) => {
                flow.stage = Stage::Marking;
                outputs.push_back(Output::Do(Effect::MarkReceived(seq)));
            }
            (Stage::PubRec, None) | (Stage::PubComp, _) => {
                flow.stage = Stage::PubComp;
                outputs.push_back(pubrel(packet_id, ReasonCode::SUCCESS));
            }
            // PUBREL is on its way; or PUBREC for a QoS 1 message, which means nothing
            (Stage::Marking | Stage::PubAck, _) => {}
        }
    }

    /// PUBREC of the message at `seq` is on disk.
    pub(super) fn marked_received(&mut self, seq: u64, outputs: &mut VecDeque<Output>) {
        let this = |flow: &&mut Flow| flow.seq == Some(seq) && flow.stage == Stage::Marking;
        if let Some(flow) = self.flows.iter_mut().find(this) {
            flow.stage = Stage::PubComp;
            outputs.push_back(pubrel(flow.packet_id, ReasonCode::SUCCESS));
        }
    }

    /// PUBCOMP.
    pub(super) fn pubcomp(&mut self, ack: &Acknowledgement, outputs: &mut VecDeque<Output>) {
        if let Some(flow) = self.take(ack.packet_id, Stage::PubComp) {
            settle(&flow, Settled::Delivered, outputs);
        }
    }

    /// Whether nothing has to come in before `item` is sent.
    fn may_go(&self, item: &Item) -> bool {
        match item {
            // the id may be a retained message's, for a moment
            Item::Queued(queued) if self.has_flow(queued.packet_id) => false,
            Item::Queued(queued) => queued.state == FlowState::Received || self.room() > 0,
            Item::Unstored(message) => message.qos == QoS::AtMostOnce || self.room() > 0,
        }
    }

    fn resume_received(&mut self, queued: &Queued, outputs: &mut VecDeque<Output>) {
        let packet_id = queued.packet_id;
        let flow = Flow {
            packet_id,
            seq: Some(queued.seq),
            stage: Stage::PubComp,
            counted: false,
        };
        self.flows.push_back(flow);
        outputs.push_back(pubrel(packet_id, ReasonCode::SUCCESS));
    }

    fn send_queued(
        &mut self,
        queued: Queued,
        allowed: bool,
        now: Timestamp,
        outputs: &mut VecDeque<Output>,
    ) {
        let Queued {
            seq,
            packet_id,
            state,
            message,
        } = queued;
        let resumed = state == FlowState::Sent;
        let qos = message.qos;
        // what was begun is brought to its end, also after its time [MQTT5-3.3.2-5]
        let deadline = message.expires_at.filter(|_| !resumed);
        let prepared = if !allowed {
            Err(Settled::Refused)
        } else if deadline.is_some_and(|at| at <= now) {
            Err(Settled::Expired)
        } else {
            self.prepare(message, Some(packet_id), resumed, now)
        };
        match prepared {
            Err(how) => outputs.push_back(Output::Do(Effect::SettleQueued(seq, how))),
            Ok(publish) => {
                outputs.push_back(Output::Send(Packet::Publish(publish)));
                if !resumed {
                    outputs.push_back(Output::Do(Effect::MarkSent(seq)));
                }
                self.begin(packet_id, Some(seq), qos);
            }
        }
    }

    fn send_unstored(&mut self, message: Message, now: Timestamp, outputs: &mut VecDeque<Output>) {
        if message.expires_at.is_some_and(|at| at <= now) {
            return;
        }
        let qos = message.qos;
        let packet_id = (qos != QoS::AtMostOnce).then(|| self.unstored_id());
        if let Ok(publish) = self.prepare(message, packet_id, false, now) {
            outputs.push_back(Output::Send(Packet::Publish(publish)));
            if let Some(packet_id) = packet_id {
                self.begin(packet_id, None, qos);
            }
        }
    }

    fn begin(&mut self, packet_id: PacketId, seq: Option<u64>, qos: QoS) {
        let stage = if qos == QoS::ExactlyOnce {
            Stage::PubRec
        } else {
            Stage::PubAck
        };
        self.flows.push_back(Flow {
            packet_id,
            seq,
            stage,
            counted: true,
        });
        self.counted += 1;
    }

    fn take(&mut self, packet_id: PacketId, stage: Stage) -> Option<Flow> {
        let this = |flow: &Flow| flow.packet_id == packet_id && flow.stage == stage;
        let index = self.flows.iter().position(this)?;
        let flow = self.flows.remove(index)?;
        self.counted -= usize::from(flow.counted);
        Some(flow)
    }

    fn has_flow(&self, packet_id: PacketId) -> bool {
        self.flows.iter().any(|flow| flow.packet_id == packet_id)
    }

    /// A packet id that no flow has: the window is far smaller than their number.
    fn unstored_id(&mut self) -> PacketId {
        loop {
            let id = PacketId::new(self.next_unstored_id).unwrap_or(PacketId::MAX);
            self.next_unstored_id = id
                .get()
                .checked_sub(1)
                .filter(|next| *next > 0)
                .unwrap_or(u16::MAX);
            if !self.has_flow(id) {
                return id;
            }
        }
    }

    fn prepare(
        &self,
        message: Message,
        packet_id: Option<PacketId>,
        dup: bool,
        now: Timestamp,
    ) -> Prepared {
        let mut publish = Publish {
            dup,
            qos: message.qos,
            retain: message.retain,
            topic: message.topic,
            packet_id,
            payload: message.payload,
            topic_alias: None,
            subscription_ids: Vec::new(),
            properties: PublishProperties::default(),
        };
        if self.capabilities.properties {
            publish.subscription_ids = message.subscription_ids;
            publish.properties = message.properties;
            publish.properties.message_expiry = message.expires_at.map(|at| whole_seconds(now, at));
        }
        match self.packet_bytes_max {
            Some(max) if publish_bytes(&publish) > usize::try_from(max).unwrap_or(usize::MAX) => {
                Err(Settled::TooLarge)
            }
            _ => Ok(publish),
        }
    }

    #[cfg(test)]
    pub(super) fn flows(&self) -> usize {
        self.flows.len()
    }
}

const fn how(reason: ReasonCode) -> Settled {
    if reason.is_failure() {
        Settled::Refused
    } else {
        Settled::Delivered
    }
}

fn settle(flow: &Flow, how: Settled, outputs: &mut VecDeque<Output>) {
    if let Some(seq) = flow.seq {
        outputs.push_back(Output::Do(Effect::SettleQueued(seq, how)));
    }
}

const fn pubrel(packet_id: PacketId, reason: ReasonCode) -> Output {
    Output::Send(Packet::PubRel(Acknowledgement {
        packet_id,
        reason,
        reason_string: None,
    }))
}

/// Whole seconds from `now` to `deadline`, rounded up: the Message Expiry Interval that is left
/// [MQTT5-3.3.2-6].
fn whole_seconds(now: Timestamp, deadline: Timestamp) -> u32 {
    let left = deadline.saturating_since(now);
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}

/// Bytes of `publish` as a 5.0 packet, to be compared with the client's Maximum Packet Size before
/// the message takes a place in the window.
fn publish_bytes(publish: &Publish) -> usize {
    let text = |text: &ByteString| 2 + text.len();
    let properties = &publish.properties;
    let optional = |value: &Option<ByteString>| value.as_ref().map_or(0, |value| 1 + text(value));
    let pairs = properties
        .user_properties
        .iter()
        .map(|(name, value)| 1 + text(name) + text(value));
    let ids = publish.subscription_ids.iter();
    let properties_bytes = properties.payload_is_utf8.map_or(0, |_| 2)
        + properties.message_expiry.map_or(0, |_| 5)
        + optional(&properties.response_topic)
        + properties
            .correlation_data
            .as_ref()
            .map_or(0, |data| 3 + data.len())
        + optional(&properties.content_type)
        + pairs.sum::<usize>()
        + ids
            .map(|id| 1 + variable_bytes(usize::try_from(*id).unwrap_or(usize::MAX)))
            .sum::<usize>();
    let body = text(&publish.topic)
        + publish.packet_id.map_or(0, |_| 2)
        + variable_bytes(properties_bytes)
        + properties_bytes
        + publish.payload.len();
    1 + variable_bytes(body) + body
}

/// Bytes of a variable byte integer (1.5.5 of 5.0).
const fn variable_bytes(number: usize) -> usize {
    match number {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};

    use super::*;
    use crate::mqtt::{codec::encode, packet::Version};

    #[test]
    fn the_size_of_a_publish_is_that_of_its_bytes() {
        for length in [0, 100, 127, 128, 200, 16_300, 20_000] {
            let full = Publish {
                dup: false,
                qos: QoS::AtLeastOnce,
                retain: false,
                topic: "acme/x".into(),
                packet_id: PacketId::new(7),
                payload: Bytes::from(vec![0; length]),
                topic_alias: None,
                subscription_ids: vec![1, 300],
                properties: PublishProperties {
                    payload_is_utf8: Some(true),
                    message_expiry: Some(9),
                    response_topic: Some("r".into()),
                    correlation_data: Some(Bytes::from_static(b"c")),
                    content_type: Some("t".into()),
                    user_properties: vec![("a".into(), "b".repeat(length % 300).into())],
                },
            };
            let bare = Publish {
                qos: QoS::AtMostOnce,
                packet_id: None,
                subscription_ids: Vec::new(),
                properties: PublishProperties::default(),
                ..full.clone()
            };
            for publish in [full, bare] {
                let expected = publish_bytes(&publish);
                let mut bytes = BytesMut::new();
                encode(&Packet::Publish(publish), Version::V5, None, &mut bytes).expect("valid");
                assert_eq!(bytes.len(), expected);
            }
        }
    }
}
