//! Tables and byte layout of `sessions.redb`.
//!
//! A table's name ends in the version of its layout; a layout is never changed, only succeeded.
//! Numbers in keys are big-endian, so that keys sort by them; numbers in values are little-endian.
//! An *identity key* is the realm's name, `/` and the 16 bytes of the device id; a realm's name has
//! no `/`, so that no identity key is the beginning of another one. Times are microseconds since
//! the epoch; `i64::MAX` stands for none.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `meta.v1` | `clean`, `unclean_stops` | u64 |
//! | `sessions.v1` | identity key | epoch u64, protocol level u8, expiry kind u8 (0 with the connection, 1 after, 2 never), expiry µs u64, deadline i64, created i64 |
//! | `subscriptions.v1` | identity key, filter | options u8 (as on the wire), subscription id u32 (0: none) |
//! | `counts.v1` | identity key | next seq u64, messages u32, bytes u64, expired u64, unclean stops u64 |
//! | `queue.v1` | identity key, seq u64 | a message (see [`encode_message`]) |
//! | `flow.v1` | identity key, seq u64 | u8: 1 sent, 2 PUBREC received; waiting messages have no row |
//! | `properties.v1` | identity key, topic | seq u64 of the queued value of that property |
//! | `deadlines.v1` | time u64 (shifted to be unsigned), identity key, seq u64 | nothing |
//! | `ids.v1` | identity key, id u128 | seq u64; 0 once it is settled |
//! | `settled_ids.v1` | time u64 (shifted), identity key, id u128 | nothing |
//! | `retained.v1` | identity key, topic | a message |

mod message;

use std::time::Duration;

use bytestring::ByteString;
use redb::TableDefinition;

use super::{FlowState, SessionExpiry, Subscription};
use crate::{
    clock::Timestamp,
    identity::{DeviceId, Identity},
    mqtt::{
        SessionEpoch,
        packet::{QoS, RetainHandling, SubscribeOptions, Version},
    },
};
pub(super) use message::{cost, decode_head, decode_message, encode_message};

pub(super) type Definition = TableDefinition<'static, &'static [u8], &'static [u8]>;

pub(super) const META: Definition = TableDefinition::new("meta.v1");
pub(super) const SESSIONS: Definition = TableDefinition::new("sessions.v1");
pub(super) const SUBSCRIPTIONS: Definition = TableDefinition::new("subscriptions.v1");
pub(super) const COUNTS: Definition = TableDefinition::new("counts.v1");
pub(super) const QUEUE: Definition = TableDefinition::new("queue.v1");
pub(super) const FLOW: Definition = TableDefinition::new("flow.v1");
pub(super) const PROPERTIES: Definition = TableDefinition::new("properties.v1");
pub(super) const DEADLINES: Definition = TableDefinition::new("deadlines.v1");
pub(super) const IDS: Definition = TableDefinition::new("ids.v1");
pub(super) const SETTLED_IDS: Definition = TableDefinition::new("settled_ids.v1");
pub(super) const RETAINED: Definition = TableDefinition::new("retained.v1");

/// All tables, with their names.
pub(super) const ALL: [(&str, Definition); 11] = [
    ("meta.v1", META),
    ("sessions.v1", SESSIONS),
    ("subscriptions.v1", SUBSCRIPTIONS),
    ("counts.v1", COUNTS),
    ("queue.v1", QUEUE),
    ("flow.v1", FLOW),
    ("properties.v1", PROPERTIES),
    ("deadlines.v1", DEADLINES),
    ("ids.v1", IDS),
    ("settled_ids.v1", SETTLED_IDS),
    ("retained.v1", RETAINED),
];

/// Key of `meta.v1`: 1 when the store was closed in order.
pub(super) const CLEAN: &[u8] = b"clean";
/// Key of `meta.v1`: how often it was not.
pub(super) const UNCLEAN_STOPS: &[u8] = b"unclean_stops";

/// The identity key, which every other key of the device begins with.
pub(super) fn identity_key(identity: &Identity) -> Vec<u8> {
    let mut key = realm_prefix(identity.realm.as_str());
    key.extend_from_slice(identity.device.as_bytes());
    key
}

/// What the identity keys of a realm begin with.
pub(super) fn realm_prefix(realm: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(realm.len() + 25);
    key.extend_from_slice(realm.as_bytes());
    key.push(b'/');
    key
}

/// The identity at the beginning of a key, and what follows it.
pub(super) fn split_identity(key: &[u8]) -> Option<(Identity, &[u8])> {
    let slash = key.iter().position(|byte| *byte == b'/')?;
    let realm = std::str::from_utf8(&key[..slash]).ok()?.parse().ok()?;
    let (device, rest) = key[slash + 1..].split_first_chunk::<16>()?;
    Some((Identity::new(realm, DeviceId::from_bytes(*device)), rest))
}

/// The identity key followed by `rest`.
pub(super) fn key(identity: &Identity, rest: &[u8]) -> Vec<u8> {
    let mut key = identity_key(identity);
    key.extend_from_slice(rest);
    key
}

/// Key of a place in a device's queue.
pub(super) fn seq_key(identity: &Identity, seq: u64) -> Vec<u8> {
    key(identity, &seq.to_be_bytes())
}

/// Key that sorts by time, then continues with `rest`.
pub(super) fn time_key(at: Timestamp, rest: &[u8]) -> Vec<u8> {
    let shifted = at.as_micros().cast_unsigned() ^ (1 << 63);
    let mut key = shifted.to_be_bytes().to_vec();
    key.extend_from_slice(rest);
    key
}

/// The time at the beginning of a key made by [`time_key`], and what follows it.
pub(super) fn split_time(key: &[u8]) -> Option<(Timestamp, &[u8])> {
    let (shifted, rest) = key.split_first_chunk::<8>()?;
    let micros = (u64::from_be_bytes(*shifted) ^ (1 << 63)).cast_signed();
    Some((Timestamp::from_micros(micros), rest))
}

/// The end (exclusive) of the keys that begin with `prefix`, which is not all `0xFF`.
pub(super) fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            break;
        }
    }
    end
}

/// A number that is a whole value or the rest of a key in value's byte order.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// A row of `sessions.v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SessionRow {
    pub(super) epoch: SessionEpoch,
    pub(super) version: Version,
    pub(super) expiry: SessionExpiry,
    pub(super) deadline: Option<Timestamp>,
    pub(super) created_at: Timestamp,
}

impl SessionRow {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(34);
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.push(match self.version {
            Version::V311 => 4,
            Version::V5 => 5,
        });
        let (kind, micros) = match self.expiry {
            SessionExpiry::WithConnection => (0, 0),
            SessionExpiry::After(after) => {
                (1, u64::try_from(after.as_micros()).unwrap_or(u64::MAX))
            }
            SessionExpiry::Never => (2, 0),
        };
        out.push(kind);
        out.extend_from_slice(&micros.to_le_bytes());
        put_time(&mut out, self.deadline);
        put_time(&mut out, Some(self.created_at));
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        let epoch = SessionEpoch(input.u64()?);
        let version = match input.u8()? {
            4 => Version::V311,
            5 => Version::V5,
            _ => return None,
        };
        let (kind, micros) = (input.u8()?, input.u64()?);
        let expiry = match kind {
            0 => SessionExpiry::WithConnection,
            1 => SessionExpiry::After(Duration::from_micros(micros)),
            2 => SessionExpiry::Never,
            _ => return None,
        };
        let deadline = input.time()?;
        let created_at = input.time()?.unwrap_or_default();
        Some(Self {
            epoch,
            version,
            expiry,
            deadline,
            created_at,
        })
    }
}

/// A row of `counts.v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountsRow {
    pub(super) next_seq: u64,
    pub(super) messages: u32,
    pub(super) bytes: u64,
    pub(super) expired: u64,
    pub(super) unclean_stops: u64,
}

impl CountsRow {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(36);
        out.extend_from_slice(&self.next_seq.to_le_bytes());
        out.extend_from_slice(&self.messages.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.expired.to_le_bytes());
        out.extend_from_slice(&self.unclean_stops.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut input = Input(bytes);
        Some(Self {
            next_seq: input.u64()?,
            messages: input.u32()?,
            bytes: input.u64()?,
            expired: input.u64()?,
            unclean_stops: input.u64()?,
        })
    }
}

/// The value of `subscriptions.v1`.
pub(super) fn encode_subscription(subscription: &Subscription) -> [u8; 5] {
    let options = subscription.options;
    let handling = match options.retain_handling {
        RetainHandling::AtSubscribe => 0,
        RetainHandling::AtNewSubscribe => 1,
        RetainHandling::Never => 2,
    };
    let flags = options.qos as u8
        | (u8::from(options.no_local) << 2)
        | (u8::from(options.retain_as_published) << 3)
        | (handling << 4);
    let id = subscription.id.unwrap_or(0).to_le_bytes();
    [flags, id[0], id[1], id[2], id[3]]
}

/// A subscription from the rest of its key and its value.
pub(super) fn decode_subscription(filter: &[u8], value: &[u8]) -> Option<Subscription> {
    let mut input = Input(value);
    let flags = input.u8()?;
    let options = SubscribeOptions {
        qos: QoS::from_u8(flags & 3)?,
        no_local: flags & 4 != 0,
        retain_as_published: flags & 8 != 0,
        retain_handling: match flags >> 4 {
            0 => RetainHandling::AtSubscribe,
            1 => RetainHandling::AtNewSubscribe,
            2 => RetainHandling::Never,
            _ => return None,
        },
    };
    let id = input.u32()?;
    let filter = ByteString::from(std::str::from_utf8(filter).ok()?);
    Some(Subscription {
        filter,
        options,
        id: (id != 0).then_some(id),
    })
}

/// The value of `flow.v1`.
pub(super) const fn encode_flow(state: FlowState) -> [u8; 1] {
    [match state {
        FlowState::Waiting => 0,
        FlowState::Sent => 1,
        FlowState::Received => 2,
    }]
}

/// The state from the value of `flow.v1`, if there is one.
pub(super) fn decode_flow(value: Option<&[u8]>) -> FlowState {
    match value {
        Some([1]) => FlowState::Sent,
        Some([2]) => FlowState::Received,
        _ => FlowState::Waiting,
    }
}

fn put_time(out: &mut Vec<u8>, at: Option<Timestamp>) {
    out.extend_from_slice(&at.map_or(i64::MAX, Timestamp::as_micros).to_le_bytes());
}

/// What is left to be read of a value.
struct Input<'b>(&'b [u8]);

impl<'b> Input<'b> {
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    #[expect(clippy::option_option, reason = "damaged, none, a time")]
    fn time(&mut self) -> Option<Option<Timestamp>> {
        let micros = i64::from_le_bytes(self.array()?);
        Some((micros != i64::MAX).then(|| Timestamp::from_micros(micros)))
    }

    fn bytes(&mut self) -> Option<&'b [u8]> {
        let len = usize::try_from(self.u32()?).ok()?;
        self.take(len)
    }

    #[expect(clippy::option_option, reason = "damaged, absent, present")]
    fn optional(&mut self) -> Option<Option<&'b [u8]>> {
        match self.u8()? {
            0 => Some(None),
            _ => self.bytes().map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::mqtt::{packet::PublishProperties, sessions::Message};

    fn message() -> Message {
        Message {
            topic: "acme/Zm9vYmFyYmF6cXV4MTIzNA/t.SrvCmd/cmd".into(),
            payload: Bytes::from_static(b"\x00\x01payload"),
            qos: QoS::ExactlyOnce,
            retain: true,
            expires_at: Some(Timestamp::from_micros(-5)),
            subscription_ids: vec![1, 268_435_455],
            properties: PublishProperties {
                payload_is_utf8: Some(false),
                message_expiry: None,
                response_topic: Some("a/b".into()),
                correlation_data: Some(Bytes::new()),
                content_type: None,
                user_properties: vec![("a".into(), "1".into()), ("a".into(), String::new().into())],
            },
            property: true,
            major: Some(u32::MAX),
            id: Some(u128::MAX),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let message = message();
        let bytes = encode_message(&message);
        assert_eq!(decode_message(&bytes), Some(message.clone()));
        let head = decode_head(&bytes).expect("whole");
        assert_eq!((head.topic, head.cost), (&*message.topic, cost(&message)));
        assert_eq!((head.id, head.property), (message.id, true));
        for cut in 0..bytes.len() {
            assert_eq!(decode_message(&bytes[..cut]), None, "cut at {cut}");
        }
        let without = Message {
            major: None,
            ..message
        };
        let shorter = encode_message(&without);
        assert_eq!(
            shorter.len() + 4,
            bytes.len(),
            "as rows without a major always were"
        );
        assert_eq!(decode_message(&shorter), Some(without.clone()));
        let head = decode_head(&shorter).expect("whole");
        assert_eq!((head.topic, head.cost), (&*without.topic, cost(&without)));

        let row = SessionRow {
            epoch: SessionEpoch(7),
            version: Version::V5,
            expiry: SessionExpiry::After(Duration::from_secs(3)),
            deadline: None,
            created_at: Timestamp::from_micros(9),
        };
        assert_eq!(SessionRow::decode(&row.encode()), Some(row));
        let counts = CountsRow {
            next_seq: 1,
            messages: 2,
            bytes: 3,
            expired: 4,
            unclean_stops: 5,
        };
        assert_eq!(CountsRow::decode(&counts.encode()), Some(counts));
    }

    #[test]
    fn the_layout_of_a_session_row_is_pinned() {
        let row = SessionRow {
            epoch: SessionEpoch(0x0102),
            version: Version::V311,
            expiry: SessionExpiry::Never,
            deadline: Some(Timestamp::from_micros(1)),
            created_at: Timestamp::from_micros(2),
        };
        let mut expected = vec![2, 1, 0, 0, 0, 0, 0, 0, 4, 2];
        expected.extend_from_slice(&[0; 8]);
        expected.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(row.encode(), expected);
    }

    #[test]
    fn time_keys_sort_by_time_and_prefixes_end_behind_their_keys() {
        let times = [i64::MIN, -1, 0, 1, i64::MAX].map(Timestamp::from_micros);
        let keys = times.map(|at| time_key(at, b"x"));
        assert!(keys.is_sorted());
        for (at, key) in times.iter().zip(&keys) {
            assert_eq!(split_time(key), Some((*at, &b"x"[..])));
        }
        assert_eq!(prefix_end(b"a/\xff\xff"), b"a0");
        let identity = Identity::new("acme".parse().unwrap(), DeviceId::from_bytes([0xff; 16]));
        let key = seq_key(&identity, u64::MAX);
        assert!(key < prefix_end(&identity_key(&identity)));
        assert_eq!(split_identity(&key), Some((identity, &[0xff; 8][..])));
    }
}
