//! Acknowledgements owed to the device, oldest first.
//!
//! The engine may answer in any order; PUBACK and PUBREC leave in the order in which the PUBLISH
//! packets came in [MQTT-4.6.0-2], [MQTT-4.6.0-3] (asked of clients; some of their libraries close
//! when a server does otherwise). A QoS 0 message keeps its place too, until it is committed, so
//! that the window bounds what one connection may have under way.

use std::collections::VecDeque;

use super::super::{
    Outcome,
    packet::{PacketId, ReasonCode},
};

/// What one PUBLISH is owed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owed {
    /// QoS 0: nothing, but it takes room until it is committed.
    Nothing,
    /// QoS 1.
    PubAck(PacketId),
    /// QoS 2. `released`: its PUBREL came before our PUBREC went, so the id is not held after it.
    PubRec {
        /// Of the flow.
        packet_id: PacketId,
        /// PUBREL is in.
        released: bool,
    },
    /// A QoS 2 PUBLISH that was sent again: PUBREC again, with what the first one got.
    Again(PacketId, ReasonCode),
}

#[derive(Debug)]
struct Entry {
    owed: Owed,
    bytes: usize,
    outcome: Option<Outcome>,
}

/// Publishes that are not acknowledged yet, and their size.
#[derive(Debug, Default)]
pub(super) struct AckWindow {
    entries: VecDeque<Entry>,
    /// Number of the oldest entry. Numbers wrap after 2^32 messages, the window is far smaller.
    first: u32,
    bytes: usize,
}

impl AckWindow {
    /// Takes a message in and returns its number.
    pub(super) fn admit(&mut self, owed: Owed, bytes: usize) -> u32 {
        let outcome = matches!(owed, Owed::Again(..)).then_some(Outcome::Stored);
        let index = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        self.entries.push_back(Entry {
            owed,
            bytes,
            outcome,
        });
        self.bytes += bytes;
        self.first.wrapping_add(index)
    }

    /// Notes the outcome of message `number`. A number that is not in the window is ignored.
    pub(super) fn settle(&mut self, number: u32, outcome: Outcome) {
        let index = usize::try_from(number.wrapping_sub(self.first)).unwrap_or(usize::MAX);
        if let Some(entry) = self.entries.get_mut(index) {
            entry.outcome = Some(outcome);
        }
    }

    /// Takes the oldest message out if its outcome is known.
    pub(super) fn pop_done(&mut self) -> Option<(u32, Owed, Outcome)> {
        let outcome = self.entries.front()?.outcome?;
        let entry = self.entries.pop_front()?;
        let number = self.first;
        self.first = self.first.wrapping_add(1);
        self.bytes -= entry.bytes;
        Some((number, entry.owed, outcome))
    }

    /// Whether the QoS 2 flow `packet_id` is in here, its PUBREL not yet seen.
    pub(super) fn holds(&self, packet_id: PacketId) -> bool {
        let this = Owed::PubRec {
            packet_id,
            released: false,
        };
        self.entries.iter().any(|entry| entry.owed == this)
    }

    /// PUBREL came for `packet_id`: it is not to be held after its PUBREC.
    pub(super) fn release(&mut self, packet_id: PacketId) {
        for entry in &mut self.entries {
            if let Owed::PubRec {
                packet_id: id,
                released,
            } = &mut entry.owed
                && *id == packet_id
            {
                *released = true;
            }
        }
    }

    /// The first of `packet_id` was refused: those sent again get the same code.
    pub(super) fn refuse_again(&mut self, packet_id: PacketId, reason: ReasonCode) {
        for entry in &mut self.entries {
            if let Owed::Again(id, code) = &mut entry.owed
                && *id == packet_id
            {
                *code = reason;
            }
        }
    }

    /// Messages in it.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Their bytes.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether nothing is owed.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many of them count against the Receive Maximum: QoS 1 and 2, repeats not.
    pub(super) fn numbered(&self) -> usize {
        let numbered = |entry: &&Entry| matches!(entry.owed, Owed::PubAck(_) | Owed::PubRec { .. });
        self.entries.iter().filter(numbered).count()
    }

    /// How many of them will hold their packet id until PUBREL.
    pub(super) fn qos2(&self) -> usize {
        let qos2 = |entry: &&Entry| {
            matches!(
                entry.owed,
                Owed::PubRec {
                    released: false,
                    ..
                }
            )
        };
        self.entries.iter().filter(qos2).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u16) -> PacketId {
        PacketId::new(number).expect("not 0")
    }

    #[test]
    fn a_later_commit_waits_behind_an_earlier_one() {
        let mut window = AckWindow::default();
        let first = window.admit(Owed::PubAck(id(1)), 10);
        let second = window.admit(Owed::PubAck(id(2)), 10);
        window.settle(second, Outcome::Stored);
        assert_eq!(window.pop_done(), None);
        window.settle(first, Outcome::Stored);
        assert_eq!(
            window.pop_done(),
            Some((first, Owed::PubAck(id(1)), Outcome::Stored))
        );
        assert_eq!(
            window.pop_done(),
            Some((second, Owed::PubAck(id(2)), Outcome::Stored))
        );
        assert_eq!((window.len(), window.bytes()), (0, 0));
    }

    #[test]
    fn numbers_go_on_over_the_wrap() {
        let mut window = AckWindow {
            first: u32::MAX,
            ..AckWindow::default()
        };
        let first = window.admit(Owed::Nothing, 1);
        let second = window.admit(Owed::Nothing, 1);
        assert_eq!((first, second), (u32::MAX, 0));
        window.settle(second, Outcome::Stored);
        window.settle(first, Outcome::Stored);
        assert!(window.pop_done().is_some() && window.pop_done().is_some());
        window.settle(second, Outcome::Stored);
        assert!(window.is_empty());
    }
}
