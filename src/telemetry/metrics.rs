//! The one list of metrics, in Prometheus' text form.
//!
//! Names carry their unit. Labels are enums and realm names, never a device; the series of a realm
//! vanish with it. Values are read from the parts' own counters when somebody asks.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Registry,
};

use crate::{
    engine::{EngineCounters, HistogramSnapshot},
    identity::RealmName,
    mqtt::{
        broker::{Broker, BrokerCounters, ConnectOutcome},
        packet::QoS,
    },
    pki::Pools,
};

/// Where the numbers are.
#[derive(Clone)]
pub struct Sources {
    /// Of the engine.
    pub engine: Arc<EngineCounters>,
    /// Of the broker.
    pub broker: Broker,
    /// Of the pools of realm CAs.
    pub pools: Pools,
    /// Certificates that end soon, counted from time to time.
    pub expiring: Arc<ExpiringCertificates>,
}

/// Days of [`ExpiringCertificates`].
pub const EXPIRY_DAYS: [u64; 3] = [1, 7, 30];

/// How many certificates of each realm end within 1, 7 and 30 days.
#[derive(Debug, Default)]
pub struct ExpiringCertificates(std::sync::Mutex<Vec<(RealmName, Vec<u64>)>>);

impl ExpiringCertificates {
    /// Replaces the counts.
    pub fn set(&self, counts: Vec<(RealmName, Vec<u64>)>) {
        *self
            .0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = counts;
    }

    fn read(&self) -> Vec<(RealmName, Vec<u64>)> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone()
    }
}

/// Everything that is measured.
pub struct Metrics(Registry);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// Reads from these sources.
    #[must_use]
    pub fn new(sources: Sources) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(List(sources)));
        Self(registry)
    }

    /// The numbers of this moment as text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        if let Err(error) = text::encode(&mut text, &self.0) {
            tracing::error!(%error, "the metrics could not be written");
        }
        text
    }
}

struct List(Sources);

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("List")
    }
}

impl Collector for List {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut list = Encoder(encoder);
        list.broker(&self.0.broker)?;
        list.engine(&self.0.engine)?;
        list.realms(&self.0)
    }
}

type Label = (&'static str, String);

struct Encoder<'e>(DescriptorEncoder<'e>);

impl Encoder<'_> {
    fn broker(&mut self, broker: &Broker) -> fmt::Result {
        let counters: &BrokerCounters = broker.counters();
        self.gauge(
            "tanit_connections",
            "Connected devices",
            to_i64(broker.live_sessions()),
        )?;
        self.counters(
            "tanit_connects",
            "Attempts to connect, by how they ended",
            ConnectOutcome::ALL.iter().map(|outcome| {
                (
                    label("outcome", outcome.as_str()),
                    counters.connects(*outcome),
                )
            }),
        )?;
        self.counters(
            "tanit_disconnects",
            "Ended connections, by reason",
            counters
                .disconnects()
                .into_iter()
                .map(|(reason, count)| (label("reason", reason.as_str()), count)),
        )?;
        self.counters(
            "tanit_publishes",
            "Publishes taken from devices",
            each_qos().map(|(name, qos)| (label("qos", name), counters.publishes(qos))),
        )?;
        self.counters(
            "tanit_deliveries",
            "Messages sent to devices",
            each_qos().map(|(name, qos)| (label("qos", name), counters.deliveries(qos))),
        )?;
        self.counters(
            "tanit_acl_denied",
            "Refused by the topic ACL",
            counters
                .denials()
                .into_iter()
                .map(|(denial, count)| (label("reason", denial.as_str()), count))
                .chain([(
                    label("reason", "subscription"),
                    counters.subscriptions_denied.count(),
                )]),
        )?;
        for (name, help, counter) in [
            (
                "tanit_acknowledged",
                "PUBACK and PUBREC sent",
                &counters.acknowledged,
            ),
            (
                "tanit_received_bytes",
                "Bytes read from devices, after TLS",
                &counters.bytes_in,
            ),
            (
                "tanit_sent_bytes",
                "Bytes written to devices, before TLS",
                &counters.bytes_out,
            ),
            (
                "tanit_expired_messages",
                "Messages for devices that expired",
                &counters.expired,
            ),
        ] {
            self.counter(name, help, counter.count())?;
        }
        Ok(())
    }

    fn engine(&mut self, engine: &EngineCounters) -> fmt::Result {
        let available = i64::from(engine.store_available());
        self.gauge(
            "tanit_store_available",
            "Whether the last commit reached the store",
            available,
        )?;
        for (name, help, gauge) in [
            (
                "tanit_intake_messages",
                "Messages in the intake",
                &engine.intake_messages,
            ),
            ("tanit_intake_bytes", "Their bytes", &engine.intake_bytes),
            (
                "tanit_intake_waiting",
                "Reservations that wait for room",
                &engine.intake_waiting,
            ),
        ] {
            self.gauge(name, help, i64::try_from(gauge.get()).unwrap_or(i64::MAX))?;
        }
        self.counters(
            "tanit_messages",
            "Messages judged, by outcome",
            [
                ("stored", &engine.messages_stored),
                ("repeated", &engine.messages_repeated),
                ("refused", &engine.messages_refused),
                ("dropped", &engine.messages_dropped),
            ]
            .map(|(outcome, counter)| (label("outcome", outcome), counter.get())),
        )?;
        for (name, help, counter) in [
            (
                "tanit_store_commits",
                "Transactions of messages",
                &engine.batches,
            ),
            ("tanit_store_units", "Units in them", &engine.units),
            (
                "tanit_store_retries",
                "Commits tried again",
                &engine.commit_retries,
            ),
        ] {
            self.counter(name, help, counter.get())?;
        }
        self.histogram(
            "tanit_commit_seconds",
            "Time of one commit",
            &engine.commit_seconds.snapshot(),
        )
    }

    /// Everything with a realm in it; only of realms that exist.
    fn realms(&mut self, sources: &Sources) -> fmt::Result {
        let realms = sources.pools.realms();
        let of_realm = |realm: &RealmName| vec![("realm", realm.to_string())];
        self.gauges(
            "tanit_realm_connections",
            "Connected devices of a realm",
            realms.iter().map(|realm| {
                (
                    of_realm(realm),
                    to_i64(sources.broker.connected_in_realm(realm)),
                )
            }),
        )?;
        self.counters(
            "tanit_realm_refusals",
            "What was refused to devices of a realm",
            sources.broker.counters().refusals().into_iter().filter_map(
                |((realm, reason), count)| {
                    realms.contains(&realm).then(|| {
                        (
                            labels([("realm", realm.as_str()), ("reason", reason)]),
                            count,
                        )
                    })
                },
            ),
        )?;
        self.counters(
            "tanit_certificates_refused",
            "Device certificates refused in handshakes; realm is empty where there is none such",
            sources
                .pools
                .refusals()
                .into_iter()
                .filter(|refusal| {
                    let realm = refusal.realm.as_ref();
                    realm.is_none_or(|realm| realms.contains(realm))
                })
                .map(|refusal| {
                    let realm = refusal.realm.as_ref().map_or("", RealmName::as_str);
                    let reason = refusal.reason.as_str();
                    (
                        labels([("realm", realm), ("reason", reason)]),
                        refusal.count,
                    )
                }),
        )?;
        self.counters(
            "tanit_device_errors",
            "Messages of devices that were refused",
            sources
                .engine
                .errors()
                .into_iter()
                .filter_map(|(realm, error, count)| {
                    realms.contains(&realm).then(|| {
                        (
                            labels([("realm", realm.as_str()), ("name", error.as_str())]),
                            count,
                        )
                    })
                }),
        )?;
        self.gauges(
            "tanit_expiring_certificates",
            "Newest certificates of devices that end within so many days",
            sources
                .expiring
                .read()
                .into_iter()
                .filter(|(realm, _)| realms.contains(realm))
                .flat_map(|(realm, counts)| {
                    EXPIRY_DAYS.iter().zip(counts).map(move |(days, count)| {
                        let days = days.to_string();
                        let labels = labels([("realm", realm.as_str()), ("days", days.as_str())]);
                        (labels, i64::try_from(count).unwrap_or(i64::MAX))
                    })
                }),
        )
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        ConstCounter::new(value).encode(metric)
    }

    fn gauge(&mut self, name: &str, help: &str, value: i64) -> fmt::Result {
        let metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn counters(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Vec<Label>, u64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, value) in series {
            ConstCounter::new(value).encode(member(&mut family, &labels)?)?;
        }
        Ok(())
    }

    fn gauges(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (Vec<Label>, i64)>,
    ) -> fmt::Result {
        let mut family = self
            .0
            .encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in series {
            ConstGauge::new(value).encode(member(&mut family, &labels)?)?;
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, snapshot: &HistogramSnapshot) -> fmt::Result {
        let mut metric = self
            .0
            .encode_descriptor(name, help, None, MetricType::Histogram)?;
        // the encoder adds up, the snapshot has done so already
        let mut below = 0;
        let mut buckets = Vec::with_capacity(snapshot.buckets.len() + 1);
        for (bound, count) in &snapshot.buckets {
            buckets.push((*bound, count - below));
            below = *count;
        }
        buckets.push((f64::MAX, snapshot.count.saturating_sub(below)));
        let sum = snapshot.sum_seconds;
        metric.encode_histogram::<[(&str, &str); 0]>(sum, snapshot.count, &buckets, None)
    }
}

fn member<'m>(
    family: &'m mut MetricEncoder<'_>,
    labels: &'m Vec<Label>,
) -> Result<MetricEncoder<'m>, fmt::Error> {
    family.encode_family(labels)
}

fn label(name: &'static str, value: &str) -> Vec<Label> {
    labels([(name, value)])
}

fn labels<const N: usize>(pairs: [(&'static str, &str); N]) -> Vec<Label> {
    pairs.map(|(name, value)| (name, value.to_owned())).to_vec()
}

fn each_qos() -> impl Iterator<Item = (&'static str, QoS)> {
    [
        ("0", QoS::AtMostOnce),
        ("1", QoS::AtLeastOnce),
        ("2", QoS::ExactlyOnce),
    ]
    .into_iter()
}

fn to_i64(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
