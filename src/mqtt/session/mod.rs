//! The session of a device while it is connected, as a pure state machine.
//!
//! Inputs are packets, released acks, granted permits, messages to deliver and completions of what
//! was asked for; each is a method, and each pushes [`Output`]s: packets to send and effects to
//! perform, in that order. The machine does no I/O and reads no clock. One machine serves both
//! versions; what differs is in [`Capabilities`].
//!
//! Invariants:
//! - PUBACK and PUBREC leave in the order of their PUBLISH packets, each after its ack was released.
//! - At most one parsed PUBLISH is held (no room in the window, no permit, a SUBSCRIBE before it is
//!   not yet on disk); then [`Session::wants_input`] is false, and TCP carries that to the device.
//! - After [`Effect::Close`] nothing more comes out and nothing goes in.
//!
//! Where to look: `inbound.rs` device to engine, `acks.rs` the order of acknowledgements,
//! `outbound.rs` messages to the device, `subscriptions.rs`, `will.rs`, `negotiation.rs` CONNECT.

mod acks;
mod inbound;
mod negotiation;
mod outbound;
mod subscriptions;
mod will;

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use bytestring::ByteString;

use super::{
    AfterRefusal, Denial, DisconnectReason, Outcome,
    acl::{Acl, OwnershipLookup},
    packet::{Disconnect, Packet, PacketId, QoS, ReasonCode, SubscribeOptions, Version, Will},
    sessions::{
        Message, Queued, QuotaExceeded, SessionExpiry, Settled, SubscribeOutcome, Subscription,
    },
};
use crate::{clock::Timestamp, identity::Identity, interface::Introspection};
use inbound::Inbound;
pub use negotiation::{Agreed, Policy, agree};
use outbound::Outbound;
use subscriptions::Subscriptions;
pub use will::{FiringWill, PendingWill};

/// Bounds of one session's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Levels of a topic name or filter.
    pub topic_levels_max: usize,
    /// Publishes that await our PUBACK or PUBREC, QoS 0 until they are committed.
    pub window_messages_max: usize,
    /// Their topics and payloads, in bytes. One larger message is let in when it is alone.
    pub window_bytes_max: usize,
    /// Inbound QoS 2 packet ids that are open; announced as Receive Maximum.
    pub qos2_ids_max: u16,
    /// Outbound messages under way; the client's Receive Maximum may lower it.
    pub inflight_max: u16,
    /// Filters of one SUBSCRIBE; the excess is refused with 0x97.
    pub filters_max: usize,
    /// Topic aliases that a client may use (5.0).
    pub topic_alias_max: u16,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            topic_levels_max: 72,
            window_messages_max: 100,
            window_bytes_max: 256 << 10,
            qos2_ids_max: 100,
            inflight_max: 100,
            filters_max: 1_024,
            topic_alias_max: 16,
        }
    }
}

/// What differs between the versions of MQTT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// PUBACK and its kin carry reason codes, the server may send DISCONNECT.
    reason_codes: bool,
    /// Messages carry properties, remaining expiry and subscription ids.
    properties: bool,
    /// Either side may not have more than a Receive Maximum of publishes under way.
    receive_maximum: bool,
}

impl Capabilities {
    const fn of(version: Version) -> Self {
        let v5 = matches!(version, Version::V5);
        Self {
            reason_codes: v5,
            properties: v5,
            receive_maximum: v5,
        }
    }
}

/// A duty to answer that the engine holds: the number its ack reports with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    /// Of a PUBLISH.
    Publish(u32),
    /// Of a PUBREL, answered by PUBCOMP.
    Release(u32),
}

/// What an input is judged by beside the session's own state.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    /// The wall clock: stamps and deadlines.
    pub now: Timestamp,
    /// Who owns an installed interface of the device's realm.
    pub ownership: &'a OwnershipLookup<'a>,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// What the machine wants done, in order.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Send this packet.
    Send(Packet),
    /// Perform this.
    Do(Effect),
}

/// Something to perform outside of the machine.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Wait for room in the intake, then call [`Session::permit_granted`]. One at a time.
    Reserve {
        /// Topic and payload.
        bytes: usize,
    },
    /// Hand this over with the permit that was granted.
    Submit(Submission),
    /// The receipt goes; [`Session::released`] follows when there is a slot.
    Settle {
        /// Whom the ack reports to; `None`: nobody waits.
        slot: Option<Slot>,
        /// Of the QoS 2 flow.
        packet_id: PacketId,
    },
    /// Store these; [`Session::subscribed`] follows. One subscription effect at a time.
    Subscribe(Vec<Subscription>),
    /// Remove these; [`Session::unsubscribed`] follows.
    Unsubscribe(Vec<ByteString>),
    /// Look up retained messages; [`Session::retained`] follows.
    Retained(Subscription),
    /// A queued message was sent.
    MarkSent(u64),
    /// PUBREC came in; [`Session::marked_received`] follows once that is on disk. In order.
    MarkReceived(u64),
    /// A queued message is done with.
    SettleQueued(u64, Settled),
    /// The connection ends: write what was sent, close the socket, clear up.
    Close(Closing),
}

/// A message for the engine.
#[derive(Debug, PartialEq)]
pub struct Submission {
    /// Whom its ack reports to.
    pub slot: Slot,
    /// Packet id, QoS and DUP for QoS 1 and 2.
    pub delivery: Option<super::Delivery>,
    /// Inside the own subtree.
    pub topic: ByteString,
    /// Payload.
    pub payload: Bytes,
    /// When it was read.
    pub received_at: Timestamp,
    /// Set when the ACL refused it.
    pub denied: Option<Denial>,
}

/// How a connection ends.
#[derive(Debug, PartialEq)]
pub struct Closing {
    /// Why; operators see it.
    pub reason: DisconnectReason,
    /// Whether the session is erased: subscriptions, queue, receipts.
    pub erase: bool,
    /// How long the session lives on, unless erased.
    pub expiry: SessionExpiry,
    /// The will, if it is to be published.
    pub will: Option<PendingWill>,
}

/// What a session begins with.
#[derive(Debug)]
pub struct Start {
    /// Whose session.
    pub identity: Identity,
    /// As stored when the device was admitted.
    pub introspection: Arc<Introspection>,
    /// What was agreed at CONNECT.
    pub agreed: Agreed,
    /// Bounds.
    pub limits: Limits,
}

/// The state machine of one connection's session.
#[derive(Debug)]
pub struct Session {
    identity: Identity,
    version: Version,
    capabilities: Capabilities,
    limits: Limits,
    inbound: Inbound,
    outbound: Outbound,
    subscriptions: Subscriptions,
    will: Option<Will>,
    expiry: SessionExpiry,
    /// Caps what a DISCONNECT may ask for.
    expiry_cap: Option<std::time::Duration>,
    state: State,
    outputs: VecDeque<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The node stops: nothing is read any more, owed acknowledgements are waited for.
    Draining,
    Closed,
}

impl Session {
    /// A session whose CONNACK comes next.
    #[must_use]
    pub fn new(start: Start) -> Self {
        let Start {
            identity,
            introspection,
            agreed,
            limits,
        } = start;
        let capabilities = Capabilities::of(agreed.version);
        Self {
            version: agreed.version,
            capabilities,
            limits,
            inbound: Inbound::new(introspection, &limits, agreed.version),
            outbound: Outbound::new(
                usize::from(limits.inflight_max.min(agreed.peer_receive_max)),
                agreed.peer_packet_bytes_max,
                capabilities,
            ),
            subscriptions: Subscriptions::default(),
            will: agreed.will,
            expiry: agreed.expiry,
            expiry_cap: agreed.expiry_cap,
            state: State::Open,
            outputs: VecDeque::new(),
            identity,
        }
    }

    /// The next thing to send or to do.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Whether the next packet may be read. While it is false the device is not at fault for
    /// being silent.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.state == State::Open
            && !self.inbound.is_holding()
            && !self.subscriptions.is_full()
            && !self.inbound.is_releasing_too_much()
    }

    /// Whether messages may be handed to [`Session::deliver`]: all that were before are sent.
    #[must_use]
    pub fn wants_deliveries(&self) -> bool {
        self.state == State::Open && self.outbound.is_drained()
    }

    /// Whether it has closed.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The place in the queue up to which messages were handed over; 0 before the first.
    #[must_use]
    pub const fn last_seq(&self) -> u64 {
        self.outbound.last_seq()
    }

    /// Whose session it is.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Its version.
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// How long it outlives its connection.
    #[must_use]
    pub const fn expiry(&self) -> SessionExpiry {
        self.expiry
    }

    /// Introspection that rules it now.
    #[must_use]
    pub fn introspection(&self) -> &Arc<Introspection> {
        self.inbound.introspection()
    }

    /// Outbound messages that may still be sent before an acknowledgement comes in.
    #[must_use]
    pub fn outbound_room(&self) -> usize {
        self.outbound.room()
    }

    /// A packet came in. Call it only while [`Session::wants_input`].
    pub fn packet(&mut self, packet: Packet, context: &Context<'_>) {
        if self.state != State::Open {
            return;
        }
        match packet {
            Packet::Publish(publish) => self.publish(publish, context),
            Packet::PubRel(ack) => self.inbound.pubrel(ack.packet_id, &mut self.outputs),
            Packet::PubAck(ack) => {
                self.outbound.puback(&ack, &mut self.outputs);
                self.pump(context);
            }
            Packet::PubRec(ack) => {
                self.outbound.pubrec(&ack, &mut self.outputs);
                self.pump(context);
            }
            Packet::PubComp(ack) => {
                self.outbound.pubcomp(&ack, &mut self.outputs);
                self.pump(context);
            }
            Packet::Subscribe(subscribe) => self.subscribe(subscribe),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(unsubscribe),
            Packet::PingReq => self.outputs.push_back(Output::Send(Packet::PingResp)),
            Packet::Disconnect(disconnect) => self.disconnect(&disconnect),
            // a second CONNECT [MQTT-3.1.0-2]; AUTH without an agreed method [MQTT5-4.12.0-6]; or
            // what only a server may send
            Packet::Connect(_)
            | Packet::ConnAck(_)
            | Packet::SubAck(_)
            | Packet::UnsubAck(_)
            | Packet::PingResp
            | Packet::Auth(_) => self.protocol_error(ReasonCode::PROTOCOL_ERROR),
        }
    }

    /// Bytes came in that are no MQTT; `reason` is what 5.0 is told.
    pub fn violated(&mut self, reason: ReasonCode) {
        self.protocol_error(reason);
    }

    /// The engine answered; `None`: it dropped the ack, and the device has to send again.
    pub fn released(&mut self, slot: Slot, outcome: Option<Outcome>, context: &Context<'_>) {
        if self.state == State::Closed {
            return;
        }
        let Some(outcome) = outcome else {
            self.close(
                DisconnectReason::InternalError,
                Some(ReasonCode::UNSPECIFIED_ERROR),
            );
            return;
        };
        match slot {
            Slot::Publish(number) => {
                self.inbound.settled(number, outcome);
                self.acknowledge(context);
            }
            Slot::Release(number) => self.inbound.receipt_gone(number, &mut self.outputs),
        }
        self.close_if_drained();
    }

    /// There is room in the intake for the publish that asked for it.
    pub fn permit_granted(&mut self, context: &Context<'_>) {
        if self.state != State::Open {
            return;
        }
        let acl = acl(&self.identity, &self.limits);
        self.inbound
            .permit_granted(&acl, context, &mut self.outputs);
    }

    /// A message from the queue, in order of its place. One that was seen before is skipped.
    pub fn deliver(&mut self, queued: Queued, context: &Context<'_>) {
        if self.state == State::Open && self.outbound.queue(queued) {
            self.pump(context);
        }
    }

    /// A message of QoS 0.
    pub fn deliver_qos0(&mut self, message: Message, context: &Context<'_>) {
        if self.state == State::Open {
            self.outbound.queue_unstored(Message {
                qos: QoS::AtMostOnce,
                ..message
            });
            self.pump(context);
        }
    }

    /// PUBREC of that message is on disk (or could not be written).
    pub fn marked_received(&mut self, seq: u64, stored: bool) {
        if self.state == State::Closed {
            return;
        }
        if stored {
            self.outbound.marked_received(seq, &mut self.outputs);
        } else {
            self.close(
                DisconnectReason::InternalError,
                Some(ReasonCode::UNSPECIFIED_ERROR),
            );
        }
    }

    /// Subscriptions are on disk, in the order of [`Effect::Subscribe`]; `None`: they could not be
    /// stored.
    pub fn subscribed(
        &mut self,
        results: Option<Vec<Result<SubscribeOutcome, QuotaExceeded>>>,
        context: &Context<'_>,
    ) {
        if self.state == State::Closed {
            return;
        }
        self.subscriptions.subscribed(results, &mut self.outputs);
        self.continue_held(context);
        self.close_if_drained();
    }

    /// Subscriptions are gone from disk, in the order of [`Effect::Unsubscribe`], `true` for each
    /// that was there; `None`: they could not be removed.
    pub fn unsubscribed(&mut self, results: Option<&[bool]>, context: &Context<'_>) {
        if self.state == State::Closed {
            return;
        }
        let Some(results) = results.or_else(|| self.capabilities.reason_codes.then_some(&[]))
        else {
            // UNSUBACK of 3.1.1 cannot say no
            self.close(DisconnectReason::InternalError, None);
            return;
        };
        self.subscriptions.unsubscribed(results, &mut self.outputs);
        self.continue_held(context);
        self.close_if_drained();
    }

    /// Retained messages of a new subscription.
    pub fn retained(
        &mut self,
        subscription: &Subscription,
        messages: Vec<Message>,
        context: &Context<'_>,
    ) {
        if self.state != State::Open {
            return;
        }
        for mut message in messages {
            message.qos = message.qos.min(subscription.options.qos);
            message.retain = true;
            message.subscription_ids = subscription.id.into_iter().collect();
            self.outbound.queue_unstored(message);
            self.pump(context);
        }
    }

    /// The engine's or an operator's word on what the device declares.
    pub fn refresh_introspection(&mut self, introspection: Arc<Introspection>) {
        self.inbound.refresh_introspection(introspection);
    }

    /// The socket ended, or it cannot be written to; nothing can be sent any more.
    pub fn lost(&mut self, reason: DisconnectReason) {
        self.close(reason, None);
    }

    /// The node stops: nothing is taken any more, and once all that is owed was answered the
    /// connection ends.
    pub fn drain(&mut self) {
        if self.state == State::Open {
            self.state = State::Draining;
            self.inbound.drop_held();
            self.close_if_drained();
        }
    }

    /// Ends the connection for `reason` now; 5.0 is told.
    pub fn end(&mut self, reason: DisconnectReason) {
        self.close(reason, disconnect_code(reason));
    }

    fn publish(&mut self, publish: super::packet::Publish, context: &Context<'_>) {
        let acl = acl(&self.identity, &self.limits);
        match self.inbound.publish(publish, &acl, context) {
            Ok(()) => self.continue_held(context),
            Err(inbound::Refusal::Foreign) => {
                self.close(
                    DisconnectReason::NotAuthorized,
                    Some(ReasonCode::NOT_AUTHORIZED),
                );
            }
            Err(inbound::Refusal::Protocol(reason)) => self.protocol_error(reason),
        }
    }

    /// Lets the held publish go on if what it waited for is there.
    fn continue_held(&mut self, context: &Context<'_>) {
        if self.state != State::Open || self.subscriptions.is_busy() {
            return;
        }
        match self.inbound.advance(&mut self.outputs) {
            Ok(inbound::Advance::Waiting) => {}
            Ok(inbound::Advance::Repeated) => self.acknowledge(context),
            Err(reason) => self.protocol_error(reason),
        }
    }

    /// Sends what is owed, as far as it is done.
    fn acknowledge(&mut self, context: &Context<'_>) {
        while let Some((reason, then)) = self.inbound.acknowledge_next(&mut self.outputs) {
            if then == AfterRefusal::CleanKick {
                self.close_with(DisconnectReason::CleanKick, Some(reason), true);
                return;
            }
        }
        self.continue_held(context);
    }

    /// Sends what the outbound window lets through.
    fn pump(&mut self, context: &Context<'_>) {
        let acl = acl(&self.identity, &self.limits);
        self.outbound.pump(
            &acl,
            self.inbound.introspection(),
            context,
            &mut self.outputs,
        );
    }

    fn subscribe(&mut self, subscribe: super::packet::Subscribe) {
        let acl = acl(&self.identity, &self.limits);
        let taken = self.subscriptions.subscribe(
            subscribe,
            &acl,
            &self.limits,
            self.version,
            &mut self.outputs,
        );
        if let Err(reason) = taken {
            self.protocol_error(reason);
        }
    }

    fn unsubscribe(&mut self, unsubscribe: super::packet::Unsubscribe) {
        let acl = acl(&self.identity, &self.limits);
        self.subscriptions
            .unsubscribe(unsubscribe, &acl, self.version, &mut self.outputs);
    }

    /// DISCONNECT of the client. Its will is dropped exactly when it says that all is well
    /// [MQTT-3.14.4-3], [MQTT5-3.14.4-3].
    fn disconnect(&mut self, disconnect: &Disconnect) {
        if let Some(seconds) = disconnect.session_expiry {
            if self.expiry == SessionExpiry::WithConnection && seconds != 0 {
                // [MQTT5-3.14.2-2]
                self.protocol_error(ReasonCode::PROTOCOL_ERROR);
                return;
            }
            self.expiry = negotiation::expiry_of(seconds, self.expiry_cap);
        }
        let reason = if disconnect.reason == ReasonCode::SUCCESS {
            self.will = None;
            DisconnectReason::ClientDisconnect
        } else {
            DisconnectReason::ClientDisconnectWithWill
        };
        self.close(reason, None);
    }

    fn protocol_error(&mut self, reason: ReasonCode) {
        self.close(DisconnectReason::ProtocolError, Some(reason));
    }

    fn close_if_drained(&mut self) {
        if self.state == State::Draining
            && self.inbound.is_settled()
            && !self.subscriptions.is_busy()
        {
            self.end(DisconnectReason::Shutdown);
        }
    }

    fn close(&mut self, reason: DisconnectReason, code: Option<ReasonCode>) {
        self.close_with(reason, code, false);
    }

    fn close_with(&mut self, reason: DisconnectReason, code: Option<ReasonCode>, erase: bool) {
        if self.state == State::Closed {
            return;
        }
        self.state = State::Closed;
        if let Some(code) = code.filter(|_| self.capabilities.reason_codes) {
            let disconnect = Disconnect {
                reason: code,
                ..Disconnect::default()
            };
            self.outputs
                .push_back(Output::Send(Packet::Disconnect(disconnect)));
        }
        let will = self.will.take().map(|will| {
            PendingWill::new(
                will,
                erase,
                self.expiry,
                Arc::clone(self.inbound.introspection()),
            )
        });
        self.outputs.push_back(Output::Do(Effect::Close(Closing {
            reason,
            erase,
            expiry: self.expiry,
            will,
        })));
    }
}

const fn acl<'a>(identity: &'a Identity, limits: &Limits) -> Acl<'a> {
    Acl {
        identity,
        levels_max: limits.topic_levels_max,
    }
}

/// What 5.0 is told when the connection ends for `reason`; `None` where nothing can be said.
const fn disconnect_code(reason: DisconnectReason) -> Option<ReasonCode> {
    Some(match reason {
        DisconnectReason::ClientDisconnect
        | DisconnectReason::ClientDisconnectWithWill
        | DisconnectReason::ConnectionLost
        | DisconnectReason::NodeRestart
        | DisconnectReason::SlowConsumer => return None,
        DisconnectReason::KeepAliveTimeout => ReasonCode::KEEP_ALIVE_TIMEOUT,
        DisconnectReason::TakenOver => ReasonCode::SESSION_TAKEN_OVER,
        DisconnectReason::ProtocolError => ReasonCode::PROTOCOL_ERROR,
        DisconnectReason::NotAuthorized
        | DisconnectReason::Inhibited
        | DisconnectReason::Deleted
        | DisconnectReason::Revoked
        | DisconnectReason::Superseded
        | DisconnectReason::CertificateExpired
        | DisconnectReason::CaRemoved => ReasonCode::NOT_AUTHORIZED,
        DisconnectReason::CleanKick | DisconnectReason::Administrative => {
            ReasonCode::ADMINISTRATIVE_ACTION
        }
        DisconnectReason::InternalError => ReasonCode::UNSPECIFIED_ERROR,
        DisconnectReason::Shutdown => ReasonCode::SERVER_SHUTTING_DOWN,
    })
}

/// Options of a subscription, as granted: all that was asked for.
const fn granted(options: SubscribeOptions) -> ReasonCode {
    match options.qos {
        QoS::AtMostOnce => ReasonCode::GRANTED_QOS_0,
        QoS::AtLeastOnce => ReasonCode::GRANTED_QOS_1,
        QoS::ExactlyOnce => ReasonCode::GRANTED_QOS_2,
    }
}

#[cfg(test)]
pub(super) use tests::connect as connect_for_tests;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
