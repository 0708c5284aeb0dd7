//! From the device to the engine: the window, QoS 2 packet ids, topic aliases, and the introspection
//! that rules the access matrix.

use std::{collections::VecDeque, sync::Arc};

use bytestring::ByteString;

use super::{
    super::{
        AfterRefusal, Delivery, Denial, Outcome,
        acl::{Acl, Verdict},
        packet::{Acknowledgement, Packet, PacketId, Publish, QoS, ReasonCode, Version},
        topics::is_valid_topic_name,
    },
    Capabilities, Context, Effect, Limits, Output, Slot, Submission,
    acks::{AckWindow, Owed},
};
use crate::{clock::Timestamp, identity::DeviceTopic, interface::Introspection};

/// Everything on its way from the device into the engine.
///
/// A QoS 2 packet id is in one of three places: in the window until its PUBREC went, in `awaiting`
/// until its PUBREL comes, in `releases` until its receipt is gone and PUBCOMP goes. None of them
/// is on disk: an id that is in none is submitted, and the engine answers from its receipt.
#[derive(Debug)]
pub(super) struct Inbound {
    capabilities: Capabilities,
    limits: Limits,
    window: AckWindow,
    awaiting: Vec<PacketId>,
    releases: VecDeque<Release>,
    next_release: u32,
    aliases: Vec<Option<ByteString>>,
    held: Option<Held>,
    /// A message that the ACL refused: nothing is submitted after it until it is known what the
    /// engine makes of it.
    barred_by: Option<u32>,
    rules: Rules,
}

/// A parsed PUBLISH that is not submitted yet; at most one.
#[derive(Debug)]
struct Held {
    publish: Publish,
    received_at: Timestamp,
    reserving: bool,
}

#[derive(Debug)]
struct Release {
    number: u32,
    packet_id: PacketId,
    /// Whether its PUBLISH was on this connection, and so counts against the Receive Maximum.
    counted: bool,
}

/// Why a PUBLISH ends the connection.
#[derive(Debug, PartialEq)]
pub(super) enum Refusal {
    /// Its topic is not the device's own.
    Foreign,
    /// It breaks the protocol.
    Protocol(ReasonCode),
}

/// What became of the held PUBLISH.
#[derive(Debug, PartialEq)]
pub(super) enum Advance {
    /// There is none, or it waits on.
    Waiting,
    /// It repeats one that is held already; its acknowledgement is in the window.
    Repeated,
}

impl Inbound {
    pub(super) fn new(
        introspection: Arc<Introspection>,
        limits: &Limits,
        version: Version,
    ) -> Self {
        Self {
            capabilities: Capabilities::of(version),
            limits: *limits,
            window: AckWindow::default(),
            awaiting: Vec::new(),
            releases: VecDeque::new(),
            next_release: 0,
            aliases: Vec::new(),
            held: None,
            barred_by: None,
            rules: Rules {
                committed: introspection,
                accepted: VecDeque::new(),
            },
        }
    }

    /// Takes a PUBLISH to be held until there is room.
    pub(super) fn publish(
        &mut self,
        mut publish: Publish,
        acl: &Acl<'_>,
        context: &Context<'_>,
    ) -> Result<(), Refusal> {
        let numbered = publish.qos != QoS::AtMostOnce;
        // subscription ids: [MQTT5-3.3.4-6]
        if !publish.subscription_ids.is_empty() || numbered != publish.packet_id.is_some() {
            return Err(Refusal::Protocol(ReasonCode::PROTOCOL_ERROR));
        }
        self.resolve_alias(&mut publish)
            .map_err(Refusal::Protocol)?;
        if !is_valid_topic_name(&publish.topic) {
            return Err(Refusal::Protocol(ReasonCode::TOPIC_NAME_INVALID));
        }
        if !acl.is_own(&publish.topic) {
            return Err(Refusal::Foreign);
        }
        if numbered && !self.is_repeat(&publish) && self.exceeds_receive_maximum() {
            return Err(Refusal::Protocol(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED));
        }
        self.held = Some(Held {
            publish,
            received_at: context.now,
            reserving: false,
        });
        Ok(())
    }

    /// Moves the held PUBLISH on if there is room: it asks for a permit.
    pub(super) fn advance(
        &mut self,
        outputs: &mut VecDeque<Output>,
    ) -> Result<Advance, ReasonCode> {
        let Some(held) = &self.held else {
            return Ok(Advance::Waiting);
        };
        if held.reserving || self.barred_by.is_some() {
            return Ok(Advance::Waiting);
        }
        let has_place = self.window.len() < self.limits.window_messages_max;
        if let (QoS::ExactlyOnce, Some(packet_id)) = (held.publish.qos, held.publish.packet_id) {
            if self.is_repeat(&held.publish) {
                if !has_place {
                    return Ok(Advance::Waiting);
                }
                self.window
                    .admit(Owed::Again(packet_id, ReasonCode::SUCCESS), 0);
                self.held = None;
                return Ok(Advance::Repeated);
            }
            let uncommitted = self.window.qos2();
            if self.awaiting.len() + uncommitted >= usize::from(self.limits.qos2_ids_max) {
                // never by not reading alone, or the PUBREL that frees one would not be read
                return if uncommitted > 0 {
                    Ok(Advance::Waiting)
                } else {
                    Err(ReasonCode::RECEIVE_MAXIMUM_EXCEEDED)
                };
            }
        }
        let bytes = size(&held.publish);
        let fits = self.window.is_empty()
            || self.window.bytes().saturating_add(bytes) <= self.limits.window_bytes_max;
        if !(has_place && fits) {
            return Ok(Advance::Waiting);
        }
        if let Some(held) = &mut self.held {
            held.reserving = true;
        }
        outputs.push_back(Output::Do(Effect::Reserve { bytes }));
        Ok(Advance::Waiting)
    }

    /// Submits the PUBLISH that a permit was asked for.
    pub(super) fn permit_granted(
        &mut self,
        acl: &Acl<'_>,
        context: &Context<'_>,
        outputs: &mut VecDeque<Output>,
    ) {
        let Some(Held {
            publish,
            received_at,
            ..
        }) = self.held.take_if(|held| held.reserving)
        else {
            return;
        };
        let denied = match acl.publish(self.introspection(), context.ownership, &publish.topic) {
            Verdict::Allowed => None,
            Verdict::Denied(denial) => Some(denial),
            // `publish` has refused these
            Verdict::Foreign => Some(Denial::InvalidPath),
        };
        let owed = match (publish.qos, publish.packet_id) {
            (QoS::AtLeastOnce, Some(packet_id)) => Owed::PubAck(packet_id),
            (QoS::ExactlyOnce, Some(packet_id)) => Owed::PubRec {
                packet_id,
                released: false,
            },
            (_, _) => Owed::Nothing,
        };
        let number = self.window.admit(owed, size(&publish));
        if denied.is_some() {
            self.barred_by = Some(number);
        } else if DeviceTopic::parse(acl.identity, &publish.topic)
            == Some(DeviceTopic::Introspection)
            && let Some(introspection) = introspection_of(&publish.payload)
        {
            self.rules
                .accepted
                .push_back((number, Arc::new(introspection)));
        }
        let delivery = publish.packet_id.map(|packet_id| Delivery {
            packet_id,
            qos: publish.qos,
            dup: publish.dup,
        });
        outputs.push_back(Output::Do(Effect::Submit(Submission {
            slot: Slot::Publish(number),
            delivery,
            topic: publish.topic,
            payload: publish.payload,
            received_at,
            denied,
        })));
    }

    /// Notes what the engine decided about message `number`.
    pub(super) fn settled(&mut self, number: u32, outcome: Outcome) {
        self.window.settle(number, outcome);
    }

    /// Acknowledges the oldest message if its outcome is known; says what follows.
    pub(super) fn acknowledge_next(
        &mut self,
        outputs: &mut VecDeque<Output>,
    ) -> Option<(ReasonCode, AfterRefusal)> {
        let (number, owed, outcome) = self.window.pop_done()?;
        let (reason, then) = match outcome {
            Outcome::Stored => (ReasonCode::SUCCESS, AfterRefusal::Continue),
            Outcome::Refused { reason, then } => (reason, then),
        };
        self.rules.settled(number, outcome);
        if self.barred_by == Some(number) {
            self.barred_by = None;
        }
        let code = if self.capabilities.reason_codes {
            reason
        } else {
            ReasonCode::SUCCESS
        };
        match owed {
            Owed::Nothing => {}
            Owed::PubAck(packet_id) => {
                outputs.push_back(Output::Send(Packet::PubAck(answer(packet_id, code))));
            }
            Owed::PubRec {
                packet_id,
                released,
            } => {
                outputs.push_back(Output::Send(Packet::PubRec(answer(packet_id, code))));
                if code.is_failure() {
                    // no PUBREL follows [MQTT5-4.3.3-4], so the receipt would stay
                    outputs.push_back(Output::Do(Effect::Settle {
                        slot: None,
                        packet_id,
                    }));
                    self.window.refuse_again(packet_id, code);
                } else if !released {
                    self.awaiting.push(packet_id);
                }
            }
            Owed::Again(packet_id, code) => {
                outputs.push_back(Output::Send(Packet::PubRec(answer(packet_id, code))));
            }
        }
        Some((reason, then))
    }

    /// PUBREL: the receipt has to go before PUBCOMP, whether or not we know the id.
    pub(super) fn pubrel(&mut self, packet_id: PacketId, outputs: &mut VecDeque<Output>) {
        self.window.release(packet_id);
        let held = self.awaiting.len();
        self.awaiting.retain(|id| *id != packet_id);
        let number = self.next_release;
        self.next_release = number.wrapping_add(1);
        let counted = self.awaiting.len() < held;
        self.releases.push_back(Release {
            number,
            packet_id,
            counted,
        });
        let slot = Some(Slot::Release(number));
        outputs.push_back(Output::Do(Effect::Settle { slot, packet_id }));
    }

    /// The receipt is gone durably: PUBCOMP may go.
    pub(super) fn receipt_gone(&mut self, number: u32, outputs: &mut VecDeque<Output>) {
        let Some(index) = self
            .releases
            .iter()
            .position(|release| release.number == number)
        else {
            return;
        };
        if let Some(release) = self.releases.remove(index) {
            let pubcomp = Acknowledgement::success(release.packet_id);
            outputs.push_back(Output::Send(Packet::PubComp(pubcomp)));
        }
    }

    /// Whether a PUBLISH waits, so that no packet may be read.
    pub(super) const fn is_holding(&self) -> bool {
        self.held.is_some()
    }

    /// Gives up the held PUBLISH; the device sends it again when it comes back.
    pub(super) fn drop_held(&mut self) {
        self.held = None;
    }

    /// Whether more PUBRELs wait for the engine than a client within its limits can send.
    pub(super) fn is_releasing_too_much(&self) -> bool {
        self.releases.len() > usize::from(self.limits.qos2_ids_max)
    }

    /// Whether no answer is owed.
    pub(super) fn is_settled(&self) -> bool {
        self.window.is_empty() && self.releases.is_empty()
    }

    /// What the device declares: the last one accepted here, or the stored one.
    pub(super) fn introspection(&self) -> &Arc<Introspection> {
        self.rules
            .accepted
            .back()
            .map_or(&self.rules.committed, |(_, accepted)| accepted)
    }

    pub(super) fn refresh_introspection(&mut self, introspection: Arc<Introspection>) {
        self.rules.committed = introspection;
    }

    /// Puts the topic in for a Topic Alias, or learns it [MQTT5-3.3.2-7] to [MQTT5-3.3.2-12].
    fn resolve_alias(&mut self, publish: &mut Publish) -> Result<(), ReasonCode> {
        let Some(alias) = publish.topic_alias.take() else {
            return if publish.topic.is_empty() {
                Err(ReasonCode::PROTOCOL_ERROR)
            } else {
                Ok(())
            };
        };
        if alias.get() > self.limits.topic_alias_max {
            return Err(ReasonCode::TOPIC_ALIAS_INVALID);
        }
        let index = usize::from(alias.get()) - 1;
        if publish.topic.is_empty() {
            let known = self.aliases.get(index).and_then(Option::as_ref);
            publish.topic = known.ok_or(ReasonCode::PROTOCOL_ERROR)?.clone();
        } else {
            if self.aliases.len() <= index {
                self.aliases.resize(index + 1, None);
            }
            // a copy, so that the frame it came in can go
            self.aliases[index] = Some(ByteString::from(publish.topic.as_ref() as &str));
        }
        Ok(())
    }

    /// Whether a PUBLISH repeats a QoS 2 flow that is open in memory [MQTT-4.3.3-2].
    fn is_repeat(&self, publish: &Publish) -> bool {
        publish.qos == QoS::ExactlyOnce
            && publish
                .packet_id
                .is_some_and(|id| self.awaiting.contains(&id) || self.window.holds(id))
    }

    /// Whether one more PUBLISH of QoS 1 or 2 is more than a 5.0 client may send
    /// [MQTT5-3.3.4-9].
    fn exceeds_receive_maximum(&self) -> bool {
        let releasing = self
            .releases
            .iter()
            .filter(|release| release.counted)
            .count();
        let under_way = self.window.numbered() + self.awaiting.len() + releasing;
        self.capabilities.receive_maximum && under_way >= usize::from(self.limits.qos2_ids_max)
    }

    #[cfg(test)]
    pub(super) fn held_ids(&self) -> usize {
        self.awaiting.len() + self.releases.len() + self.window.len()
    }
}

/// The introspection that rules a connection: accepted ones, oldest first, until the engine has
/// committed them.
#[derive(Debug)]
struct Rules {
    committed: Arc<Introspection>,
    accepted: VecDeque<(u32, Arc<Introspection>)>,
}

impl Rules {
    fn settled(&mut self, number: u32, outcome: Outcome) {
        if let Some((_, introspection)) = self.accepted.pop_front_if(|(of, _)| *of == number)
            && outcome == Outcome::Stored
        {
            self.committed = introspection;
        }
    }
}

/// Bytes that a message takes in the window and in the intake.
fn size(publish: &Publish) -> usize {
    publish.topic.len() + publish.payload.len()
}

const fn answer(packet_id: PacketId, reason: ReasonCode) -> Acknowledgement {
    Acknowledgement {
        packet_id,
        reason,
        reason_string: None,
    }
}

/// The introspection that a payload is, if its grammar is valid. One that is not goes to the engine
/// as it is, which refuses it.
fn introspection_of(payload: &[u8]) -> Option<Introspection> {
    Introspection::parse(payload).ok()
}
