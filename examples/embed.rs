//! Tanit's broker in another program, with an engine of its own that prints what devices publish.
//! `mosquitto_pub -p 1883 -i acme/Zm9vYmFyYmF6cXV4MTIzNA -t acme/Zm9vYmFyYmF6cXV4MTIzNA -m '' -q 1`
#![expect(clippy::wildcard_imports, reason = "to be short")]
use std::{net::IpAddr, sync::Arc, time::Duration};
use tanit::{
    clock::{SystemClock, Timestamp},
    identity::{Identity, RealmName},
    interface::{Introspection, Ownership},
    mqtt::{broker::*, packet::PacketId, sessions::Sessions, *},
};

struct Printer;

#[async_trait::async_trait]
impl Intake for Printer {
    async fn reserve(&self, _: &Identity, _bytes: usize) -> Permit {
        Permit::new(()) // a real one waits here while it is full
    }
    fn submit(&self, _: Permit, message: InboundMessage) {
        eprintln!("{}: {:?}", message.topic, message.payload);
        message.ack.release(Outcome::Stored); // a real one commits first
    }
    fn settle(&self, _: &Identity, _: SessionEpoch, _: PacketId, ack: Ack) {
        ack.release(Outcome::Stored);
    }
    fn forget(&self, _: &Identity, _: SessionEpoch) {}
}

#[async_trait::async_trait]
impl DeviceRegistry for Printer {
    async fn admit(&self, _: &Identity, _: Option<&PeerCertificate>) -> Admission {
        let introspection = Arc::new(Introspection::default());
        Admission::Allowed { introspection }
    }
    fn ownership(&self, _: &RealmName, _: &str, _: u32) -> Option<Ownership> {
        Some(Ownership::Device)
    }
}

#[async_trait::async_trait]
impl LifecycleSink for Printer {
    async fn connected(&self, _: &Identity, _: Option<IpAddr>, _: Timestamp) {}
    async fn disconnected(&self, _: &Identity, _: DisconnectReason, _: Timestamp) {}
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings = BrokerSettings::development("127.0.0.1:1883".parse()?);
    let (clock, engine) = (SystemClock::shared(), Arc::new(Printer));
    let sessions = Sessions::open("sessions.redb".as_ref(), settings.queue, clock.clone())?;
    let (intake, registry, lifecycle) = (engine.clone(), engine.clone(), engine);
    let (tls, pools, counters) = Default::default();
    #[rustfmt::skip]
    let parts = BrokerParts { sessions, intake, registry, lifecycle, tls, pools, clock, counters };
    let broker = Broker::start(settings, parts).await?;
    tokio::signal::ctrl_c().await?;
    broker.close(Duration::from_secs(10)).await;
    Ok(())
}
