//! What client and server agree on at CONNECT, for both versions.

use std::time::Duration;

use super::super::{
    packet::{ConnAck, Connect, ReasonCode, Version, Will},
    sessions::SessionExpiry,
};
use crate::identity::Identity;

/// What the server grants at most.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Longest life of a session without a connection; `None`: for ever.
    pub session_expiry_max: Option<Duration>,
    /// Longest keep-alive, announced to 5.0 clients; `None`: any, none too.
    pub keep_alive_max: Option<Duration>,
    /// Announced to 5.0 clients.
    pub packet_bytes_max: usize,
    /// Inbound QoS 1 and 2 publishes under way; announced to 5.0 clients.
    pub receive_max: u16,
    /// Announced to 5.0 clients.
    pub topic_alias_max: u16,
}

/// What was agreed.
#[derive(Debug)]
pub struct Agreed {
    /// Protocol version.
    pub version: Version,
    /// Clean Session or Clean Start.
    pub clean_start: bool,
    /// How long the session outlives the connection.
    pub expiry: SessionExpiry,
    /// The cap on that, for a DISCONNECT that asks anew.
    pub expiry_cap: Option<Duration>,
    /// The client's keep-alive; `None`: none.
    pub keep_alive: Option<Duration>,
    /// The client's Receive Maximum; 65,535 when it gave none.
    pub peer_receive_max: u16,
    /// The client's Maximum Packet Size in bytes.
    pub peer_packet_bytes_max: Option<u32>,
    /// The will.
    pub will: Option<Will>,
    /// The CONNACK that accepts; Session Present is filled in once the session was started.
    pub connack: ConnAck,
}

/// Agrees on what `connect` asks for.
///
/// # Errors
/// The reason to refuse it: enhanced authentication [MQTT5-4.12.0-1].
pub fn agree(connect: Connect, identity: &Identity, policy: &Policy) -> Result<Agreed, ReasonCode> {
    if connect.authentication_method.is_some() {
        return Err(ReasonCode::BAD_AUTHENTICATION_METHOD);
    }
    let cap = policy.session_expiry_max;
    let expiry = match connect.version {
        Version::V311 if connect.clean_start => SessionExpiry::WithConnection,
        Version::V311 => cap.map_or(SessionExpiry::Never, SessionExpiry::After),
        Version::V5 => expiry_of(connect.session_expiry.unwrap_or(0), cap),
    };
    let asked = Duration::from_secs(connect.keep_alive.into());
    let asked = (!asked.is_zero()).then_some(asked);
    // 3.1.1 cannot be told another one than it asked for
    let ours = policy
        .keep_alive_max
        .filter(|max| connect.version == Version::V5 && asked.is_none_or(|asked| asked > *max))
        .map(|max| u16::try_from(max.as_secs()).unwrap_or(u16::MAX).max(1));
    let keep_alive = ours
        .map(|seconds| Duration::from_secs(seconds.into()))
        .or(asked);
    let connack = match connect.version {
        Version::V311 => ConnAck::default(),
        Version::V5 => ConnAck {
            session_expiry: announced_expiry(connect.session_expiry.unwrap_or(0), cap),
            receive_maximum: std::num::NonZeroU16::new(policy.receive_max),
            maximum_packet_size: u32::try_from(policy.packet_bytes_max).ok(),
            assigned_client_id: connect
                .client_id
                .is_empty()
                .then(|| identity.to_string().into()),
            topic_alias_maximum: policy.topic_alias_max,
            server_keep_alive: ours,
            shared_subscription_available: Some(false),
            ..ConnAck::default()
        },
    };
    Ok(Agreed {
        version: connect.version,
        clean_start: connect.clean_start,
        expiry,
        expiry_cap: cap,
        keep_alive,
        peer_receive_max: connect
            .receive_maximum
            .map_or(u16::MAX, std::num::NonZeroU16::get),
        peer_packet_bytes_max: connect.maximum_packet_size,
        will: connect.will,
        connack,
    })
}

/// What a Session Expiry Interval of `seconds` becomes under `cap`.
pub(super) fn expiry_of(seconds: u32, cap: Option<Duration>) -> SessionExpiry {
    match (seconds, cap) {
        (0, _) => SessionExpiry::WithConnection,
        (u32::MAX, None) => SessionExpiry::Never,
        (u32::MAX, Some(cap)) => SessionExpiry::After(cap),
        (seconds, cap) => {
            let asked = Duration::from_secs(seconds.into());
            SessionExpiry::After(cap.map_or(asked, |cap| asked.min(cap)))
        }
    }
}

/// The interval to announce, when it is not the one that was asked for.
fn announced_expiry(seconds: u32, cap: Option<Duration>) -> Option<u32> {
    let cap = u32::try_from(cap?.as_secs()).unwrap_or(u32::MAX);
    (seconds > cap).then_some(cap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::session::tests::connect;

    const POLICY: Policy = Policy {
        session_expiry_max: None,
        keep_alive_max: None,
        packet_bytes_max: 300 << 10,
        receive_max: 100,
        topic_alias_max: 16,
    };

    fn agree_with(connect: Connect, policy: &Policy) -> Agreed {
        let identity = crate::mqtt::session::tests::identity();
        agree(connect, &identity, policy).expect("nothing to refuse")
    }

    #[test]
    fn a_3_1_1_session_ends_with_its_connection_exactly_when_it_is_clean() {
        let clean = Connect {
            clean_start: true,
            ..connect(Version::V311)
        };
        assert_eq!(
            agree_with(clean, &POLICY).expiry,
            SessionExpiry::WithConnection
        );
        let kept = Connect {
            clean_start: false,
            ..connect(Version::V311)
        };
        assert_eq!(
            agree_with(kept.clone(), &POLICY).expiry,
            SessionExpiry::Never
        );
        let day = Duration::from_hours(24);
        let capped = Policy {
            session_expiry_max: Some(day),
            ..POLICY
        };
        assert_eq!(agree_with(kept, &capped).expiry, SessionExpiry::After(day));
    }

    #[test]
    fn the_setting_caps_what_5_0_asks_and_the_client_is_told() {
        let hour = Duration::from_hours(1);
        let capped = Policy {
            session_expiry_max: Some(hour),
            ..POLICY
        };
        for (asked, granted, told) in [
            (None, SessionExpiry::WithConnection, None),
            (Some(0), SessionExpiry::WithConnection, None),
            (Some(60), SessionExpiry::After(Duration::from_mins(1)), None),
            (Some(7200), SessionExpiry::After(hour), Some(3600)),
            (Some(u32::MAX), SessionExpiry::After(hour), Some(3600)),
        ] {
            let connect = Connect {
                session_expiry: asked,
                ..connect(Version::V5)
            };
            let agreed = agree_with(connect, &capped);
            assert_eq!(
                (agreed.expiry, agreed.connack.session_expiry),
                (granted, told),
                "{asked:?}"
            );
        }
        let endless = Connect {
            session_expiry: Some(u32::MAX),
            ..connect(Version::V5)
        };
        assert_eq!(agree_with(endless, &POLICY).expiry, SessionExpiry::Never);
    }

    #[test]
    fn a_longest_keep_alive_is_told_to_5_0_alone() {
        let minute = Duration::from_mins(1);
        let capped = Policy {
            keep_alive_max: Some(minute),
            ..POLICY
        };
        for asked in [0, 61] {
            let connect = Connect {
                keep_alive: asked,
                ..connect(Version::V5)
            };
            let agreed = agree_with(connect, &capped);
            assert_eq!(agreed.connack.server_keep_alive, Some(60));
            assert_eq!(agreed.keep_alive, Some(minute));
        }
        let old = Connect {
            keep_alive: 0,
            ..connect(Version::V311)
        };
        assert_eq!(agree_with(old, &capped).keep_alive, None);
    }

    #[test]
    fn an_empty_client_id_is_given_the_identity() {
        let connect = Connect {
            client_id: "".into(),
            ..connect(Version::V5)
        };
        let agreed = agree_with(connect, &POLICY);
        let identity = crate::mqtt::session::tests::identity().to_string();
        assert_eq!(
            agreed.connack.assigned_client_id.as_deref(),
            Some(identity.as_str())
        );
    }

    #[test]
    fn enhanced_authentication_is_refused() {
        let connect = Connect {
            authentication_method: Some("SCRAM".into()),
            ..connect(Version::V5)
        };
        let refused = agree(connect, &crate::mqtt::session::tests::identity(), &POLICY);
        assert_eq!(refused.err(), Some(ReasonCode::BAD_AUTHENTICATION_METHOD));
    }
}
