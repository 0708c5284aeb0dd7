//! Server to device: into the queue first, to the device next.
//!
//! A publish is checked, handed to the session store, and its fate told to the caller. What a
//! device may be sent is decided when it is sent, by its introspection of that moment; here the
//! topic only has to be a valid one inside the device's own subtree.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    broker::BrokerCounters,
    packet::{PublishProperties, QoS},
    sessions::{Enqueued, Message, Sessions},
    topics,
};
use crate::{clock::Timestamp, identity::Identity};

/// A message for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboundMessage {
    /// To whom.
    pub identity: Identity,
    /// Topic below the device's base topic, with its leading slash: `/org.example.Valve/open`.
    pub topic: String,
    /// Payload.
    pub payload: Bytes,
    /// QoS; the device gets it with the lower of this and what its subscription was granted.
    pub qos: QoS,
    /// Keep it as the topic's retained message; an empty payload removes that one.
    pub retain: bool,
    /// Not delivered after this moment.
    pub expires_at: Option<Timestamp>,
    /// A newer one of the same topic takes the place of one that was not sent yet.
    pub property: bool,
    /// Major of the interface it is for: it is never sent once the device declares another one.
    pub major: Option<u32>,
    /// By which a message that is published again after a crash is known; unique per device.
    pub id: Option<u128>,
}

/// What became of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Published {
    /// A live connection has it; QoS 1 and 2 are on disk too until the device acknowledges.
    Delivered,
    /// On disk, to be delivered when the device comes back.
    Queued {
        /// The earlier of the message's and the session's end; `None`: no end.
        until: Option<Timestamp>,
    },
    /// The device has no session. Nothing is queued; a retained message is stored all the same.
    NoSession,
    /// It has no subscription that matches. As above.
    NoSubscription,
    /// QoS 0 and the device is not connected. As above.
    NotConnected,
    /// The device's queue is full (QoS 0: its connection does not keep up). Nothing is stored.
    QueueFull,
    /// A message of the same id was taken before.
    Duplicate,
    /// Its time is over already.
    Expired,
    /// It can never be sent.
    Refused(Refusal),
    /// It could not be written; nothing is stored, try again later.
    Unavailable,
}

/// Why a message can never be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Not below the device's base topic, wildcards, U+0000, too long or too many levels.
    #[error("the topic is not a valid one below the device's base topic")]
    Topic,
    /// Larger than a packet may be.
    #[error("the message is larger than a packet may be")]
    TooLarge,
}

/// Publishes to devices. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Publisher {
    sessions: Sessions,
    counters: Arc<BrokerCounters>,
    topic_levels_max: usize,
    packet_bytes_max: usize,
}

impl Publisher {
    /// Room for what surrounds topic and payload in a packet.
    const OVERHEAD_BYTES: usize = 64;

    pub(super) const fn new(
        sessions: Sessions,
        counters: Arc<BrokerCounters>,
        topic_levels_max: usize,
        packet_bytes_max: usize,
    ) -> Self {
        Self {
            sessions,
            counters,
            topic_levels_max,
            packet_bytes_max,
        }
    }

    /// Publishes a message. QoS 1 and 2 are durable when this says `Delivered` or `Queued`.
    pub async fn publish(&self, message: OutboundMessage) -> Published {
        let identity = message.identity.clone();
        let message = match self.check(message) {
            Ok(message) => message,
            Err(refusal) => return Published::Refused(refusal),
        };
        let published = self.told(self.sessions.enqueue(&identity, message).await, &identity);
        if published == Published::QueueFull {
            self.counters.queue_full.increment();
            self.counters.refuse(&identity.realm, "queue_full");
        }
        published
    }

    /// What [`Publisher::publish`] would say at this moment, without doing it.
    pub async fn probe(&self, message: OutboundMessage) -> Published {
        let identity = message.identity.clone();
        match self.check(message) {
            Ok(message) => self.told(self.sessions.probe(&identity, message).await, &identity),
            Err(refusal) => Published::Refused(refusal),
        }
    }

    fn told(
        &self,
        outcome: Result<Enqueued, super::sessions::SessionsError>,
        identity: &Identity,
    ) -> Published {
        match outcome {
            Ok(Enqueued::Delivering) => Published::Delivered,
            Ok(Enqueued::Queued { until }) => Published::Queued { until },
            Ok(Enqueued::NoSession) => Published::NoSession,
            Ok(Enqueued::NoSubscription) => Published::NoSubscription,
            Ok(Enqueued::NotConnected) => Published::NotConnected,
            Ok(Enqueued::QueueFull) => Published::QueueFull,
            Ok(Enqueued::Duplicate) => Published::Duplicate,
            Ok(Enqueued::Expired) => Published::Expired,
            Err(error) => {
                self.counters
                    .refuse(&identity.realm, "sessions_unavailable");
                tracing::debug!(%identity, %error, "publish could not be written");
                Published::Unavailable
            }
        }
    }

    fn check(&self, message: OutboundMessage) -> Result<Message, Refusal> {
        if !message.topic.starts_with('/') {
            return Err(Refusal::Topic);
        }
        let topic = format!("{}{}", message.identity, message.topic);
        let levels = topic.bytes().filter(|byte| *byte == b'/').count() + 1;
        if !topics::is_valid_topic_name(&topic) || levels > self.topic_levels_max {
            return Err(Refusal::Topic);
        }
        let bytes = topic.len().saturating_add(message.payload.len());
        if bytes.saturating_add(Self::OVERHEAD_BYTES) > self.packet_bytes_max {
            return Err(Refusal::TooLarge);
        }
        Ok(Message {
            topic: topic.into(),
            payload: message.payload,
            qos: message.qos,
            retain: message.retain,
            expires_at: message.expires_at,
            subscription_ids: Vec::new(),
            properties: PublishProperties::default(),
            property: message.property,
            major: message.major,
            id: message.id,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        clock::{Clock, ManualClock},
        mqtt::{
            packet::{SubscribeOptions, Version},
            sessions::{QueueLimits, SessionExpiry, StartRequest, Started, Subscription},
        },
    };

    struct Bench {
        _directory: tempfile::TempDir,
        clock: Arc<ManualClock>,
        sessions: Sessions,
        counters: Arc<BrokerCounters>,
        publisher: Publisher,
    }

    impl Bench {
        fn new() -> Self {
            let directory = tempfile::tempdir().expect("temporary directory");
            let clock = ManualClock::new(Timestamp::from_micros(0));
            let limits = QueueLimits {
                messages: 3,
                ..QueueLimits::default()
            };
            let path = directory.path().join("sessions.redb");
            let sessions = Sessions::open(&path, limits, Arc::clone(&clock) as _).expect("creates");
            let counters = Arc::<BrokerCounters>::default();
            let publisher = Publisher::new(sessions.clone(), Arc::clone(&counters), 72, 10_000);
            Self {
                _directory: directory,
                clock,
                sessions,
                counters,
                publisher,
            }
        }

        async fn connect(&self, expiry: SessionExpiry) -> Started {
            let request = StartRequest {
                clean_start: false,
                expiry,
                version: Version::V311,
                now: self.clock.wall(),
            };
            let started = self
                .sessions
                .start(&device(), request)
                .await
                .expect("starts");
            let options = SubscribeOptions {
                qos: QoS::AtLeastOnce,
                ..Default::default()
            };
            let filter = format!("{}/t.SrvCmd/#", device()).into();
            let wanted = vec![Subscription {
                filter,
                options,
                id: None,
            }];
            self.sessions
                .subscribe(&device(), started.epoch, wanted)
                .await
                .expect("subscribes");
            started
        }
    }

    fn device() -> Identity {
        "acme/Zm9vYmFyYmF6cXV4MTIzNA".parse().expect("canonical")
    }

    fn message(topic: &str) -> OutboundMessage {
        OutboundMessage {
            identity: device(),
            topic: topic.to_owned(),
            payload: Bytes::from_static(b"payload"),
            qos: QoS::AtLeastOnce,
            retain: false,
            expires_at: None,
            property: false,
            major: None,
            id: None,
        }
    }

    #[tokio::test]
    async fn the_caller_is_told_what_became_of_the_message() {
        let bench = Bench::new();
        let publish = |message| bench.publisher.publish(message);
        let command = || message("/t.SrvCmd/cmd");
        assert_eq!(publish(command()).await, Published::NoSession);
        let expiry = SessionExpiry::After(Duration::from_mins(1));
        let started = bench.connect(expiry).await;
        assert_eq!(
            publish(message("/t.Other/cmd")).await,
            Published::NoSubscription
        );
        assert_eq!(publish(command()).await, Published::Delivered);
        let zero = || OutboundMessage {
            qos: QoS::AtMostOnce,
            ..command()
        };
        assert_eq!(publish(zero()).await, Published::Delivered);
        let now = bench.clock.wall();
        bench
            .sessions
            .stop(&device(), started.epoch, expiry, now)
            .await
            .expect("stops");
        assert_eq!(publish(zero()).await, Published::NotConnected);
        let until = Some(now.saturating_add(Duration::from_mins(1)));
        assert_eq!(publish(command()).await, Published::Queued { until });
        let sooner = Some(now.saturating_add(Duration::from_secs(5)));
        let sent = OutboundMessage {
            expires_at: sooner,
            id: Some(1),
            ..command()
        };
        assert_eq!(
            publish(sent.clone()).await,
            Published::Queued { until: sooner }
        );
        assert_eq!(publish(sent).await, Published::Duplicate);
        assert_eq!(publish(command()).await, Published::QueueFull);
        let refusals = bench.counters.refusals();
        assert_eq!(refusals, [((device().realm, "queue_full"), 1)]);
        let late = OutboundMessage {
            expires_at: Some(now),
            ..command()
        };
        assert_eq!(publish(late).await, Published::Expired);
        bench.sessions.close().await;
        assert_eq!(publish(command()).await, Published::Unavailable);
    }

    #[tokio::test]
    async fn what_can_never_be_sent_is_refused_and_why() {
        let bench = Bench::new();
        bench.connect(SessionExpiry::Never).await;
        let deep = "/x".repeat(80);
        for topic in ["", "t.SrvCmd/cmd", "/t.SrvCmd/+", "/#", "/t\0", &deep] {
            let published = bench.publisher.publish(message(topic)).await;
            assert_eq!(published, Published::Refused(Refusal::Topic), "{topic:?}");
        }
        let large = OutboundMessage {
            payload: Bytes::from(vec![0; 10_000]),
            ..message("/t.SrvCmd/cmd")
        };
        let published = bench.publisher.publish(large).await;
        assert_eq!(published, Published::Refused(Refusal::TooLarge));
    }
}
