//! Bytes to packets and back, for 3.1.1 and 5.0; the only module that names the codec library.
//!
//! A [`Decoder`] frames by itself, so that a packet over the limit is refused when its header is
//! in and before anything is kept, and a first packet that is no CONNECT at its first byte. The
//! grammar is walked strictly (`check`), then `rmqtt-codec` builds the values, then they become
//! those of [`packet`](super::packet). Whatever breaks a rule is a [`Violation`], which says how
//! it is counted and what the peer is told. [`encode()`] goes the other way and leaves its output as
//! it was when it fails. Nothing here panics on any input, waits, or keeps a buffer.
//!
//! Choices where the standard leaves room, the same in both versions: an overlong length is
//! refused; an empty client id is accepted with and without a clean session; filters are only
//! checked to be text; one packet has at most [`USER_PROPERTIES_MAX`] user properties and
//! [`FILTERS_MAX`] filters; DUP with QoS 0 and packet id 0 are refused.

mod check;
mod encode;
mod properties;
mod reader;
mod v3;
mod v5;
mod violation;

use bytes::{Buf, BytesMut};

pub use self::{
    check::FILTERS_MAX,
    encode::{EncodeError, encode},
    properties::USER_PROPERTIES_MAX,
    violation::{Farewell, Violation},
};
use self::{
    check::{Repairs, kind},
    reader::{Reader, variable_length},
};
use super::packet::{Packet, Version};

/// How large packets may be, in bytes with their fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketLimits {
    /// The first packet, which must be CONNECT and comes before the peer is known.
    pub first_packet: usize,
    /// Every later packet. Announced to 5.0 clients as Maximum Packet Size.
    pub packet: usize,
}

impl Default for PacketLimits {
    fn default() -> Self {
        Self {
            first_packet: 80 * 1024,
            packet: 300 * 1024,
        }
    }
}

/// Who sends what a [`Decoder`] reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Client,
    Server,
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// CONNECT is awaited; its version, as soon as its first bytes told it.
    Connect(Option<Version>),
    /// Other packets of this version.
    Open(Version),
}

/// Reads the packets of one connection, in order. Keeps no bytes.
#[derive(Clone, Debug)]
pub struct Decoder {
    limits: PacketLimits,
    sender: Sender,
    state: State,
    failed: Option<Violation>,
}

impl Decoder {
    /// Reads what a client sends, from its CONNECT on.
    #[must_use]
    pub const fn new(limits: PacketLimits) -> Self {
        Self {
            limits,
            sender: Sender::Client,
            state: State::Connect(None),
            failed: None,
        }
    }

    /// Reads what a server sends to a client of `version`; for clients made of this crate.
    #[must_use]
    pub const fn of_server(limits: PacketLimits, version: Version) -> Self {
        Self {
            limits,
            sender: Sender::Server,
            state: State::Open(version),
            failed: None,
        }
    }

    /// The connection's version: known from the first bytes of an acceptable CONNECT on, also when
    /// the rest of it is refused.
    #[must_use]
    pub const fn version(&self) -> Option<Version> {
        match self.state {
            State::Connect(version) => version,
            State::Open(version) => Some(version),
        }
    }

    /// Takes the next packet off the head of `buf`; `None` when it is not whole yet, and then
    /// nothing is taken and no room is reserved.
    ///
    /// A packet has an allocation of its own, so that it does not keep the read buffer alive; its
    /// text and payload are slices of that.
    ///
    /// # Errors
    /// What the peer did wrong, as early as the bytes tell. The connection has to be closed: every
    /// later call gives the same error.
    pub fn decode(&mut self, buf: &mut BytesMut) -> Result<Option<Packet>, Violation> {
        if let Some(violation) = self.failed {
            return Err(violation);
        }
        self.next(buf)
            .inspect_err(|violation| self.failed = Some(*violation))
    }

    /// What the client is to be told about `violation` before its connection is closed.
    #[must_use]
    pub fn farewell(&self, violation: Violation) -> Farewell {
        match (self.sender, self.state) {
            (Sender::Server, _) => Farewell::Silence,
            (_, State::Connect(version)) => Farewell::to_connect(violation, version),
            (_, State::Open(version)) => Farewell::to_packet(violation, version),
        }
    }

    fn next(&mut self, buf: &mut BytesMut) -> Result<Option<Packet>, Violation> {
        let Some(&first) = buf.first() else {
            return Ok(None);
        };
        self.check_first_byte(first)?;
        let Some((length, length_size)) = variable_length(&buf[1..])? else {
            return Ok(None);
        };
        let header = 1 + length_size;
        let total = header + usize::try_from(length).unwrap_or(usize::MAX - header);
        let max = self.packet_max();
        if total > max {
            return Err(Violation::PacketTooLarge { bytes: total, max });
        }
        let is_whole = buf.len() >= total;
        if let State::Connect(version) = &mut self.state {
            *version = check::check_protocol(&buf[header..total.min(buf.len())])?;
        }
        if !is_whole {
            return Ok(None);
        }
        let version = self.version().ok_or(Violation::Truncated)?;
        let body = Reader::new(&buf[header..total], header);
        let repairs = check::check_packet(first, body, version, self.sender)?;
        let packet = build(own(&buf[..total]), header, version, repairs)?;
        buf.advance(total);
        self.state = State::Open(version);
        Ok(Some(packet))
    }

    fn check_first_byte(&self, first: u8) -> Result<(), Violation> {
        match self.state {
            State::Connect(_) if first >> 4 != kind::CONNECT => Err(Violation::ConnectExpected),
            State::Connect(_) => check::check_first_byte(first, Version::V311, self.sender),
            State::Open(version) => {
                check::check_first_byte(first, version, self.sender)?;
                if first >> 4 == kind::CONNECT {
                    Err(Violation::ConnectRepeated)
                } else {
                    Ok(())
                }
            }
        }
    }

    fn packet_max(&self) -> usize {
        match self.state {
            State::Connect(_) => self.limits.first_packet.min(self.limits.packet),
            State::Open(_) => self.limits.packet,
        }
    }
}

/// A copy of a packet, with room for the five bytes that the library reserves behind it, or it
/// would allocate once more for them.
fn own(packet: &[u8]) -> BytesMut {
    let mut copy = BytesMut::with_capacity(packet.len() + 5);
    copy.extend_from_slice(packet);
    copy
}

/// Builds a packet that has passed the checks.
fn build(
    mut frame: BytesMut,
    header: usize,
    version: Version,
    repairs: Repairs,
) -> Result<Packet, Violation> {
    if let Some(at) = repairs.clean_flag_at {
        frame[at] |= 0x02;
    }
    if let Some(at) = repairs.expiry_zero_at {
        frame[at + 3] = 1;
    }
    let mut packet = match version {
        Version::V311 if repairs.filter_empty => {
            let kind = frame[0] >> 4;
            frame.advance(header);
            v3::decode_filters(kind, frame.freeze())?
        }
        Version::V311 => v3::decode(frame)?,
        Version::V5 => v5::decode(frame)?,
    };
    undo(&mut packet, repairs);
    Ok(packet)
}

/// Puts back what was changed for the library.
fn undo(packet: &mut Packet, repairs: Repairs) {
    match packet {
        Packet::Connect(connect) => {
            connect.clean_start &= repairs.clean_flag_at.is_none();
            if let (Some(will), Some(_)) = (&mut connect.will, repairs.expiry_zero_at) {
                will.properties.message_expiry = Some(0);
            }
        }
        Packet::Publish(publish) if repairs.expiry_zero_at.is_some() => {
            publish.properties.message_expiry = Some(0);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
