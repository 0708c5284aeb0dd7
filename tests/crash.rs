//! kill -9 at random moments under load: nothing acknowledged is missing, QoS 2 exactly once.

use std::collections::{BTreeMap, BTreeSet};

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use crate::harness::{
    device::{RawDevice, bson, publish, publish_again, pubrel},
    product::{ALL_INTERFACES, Tanit, TestDevice},
};

/// Rounds of load, each ended by a kill.
const KILLS: usize = 20;

#[expect(clippy::print_stdout, reason = "a failure is repeated by its seed")]
#[tokio::test]
async fn fc_011_kill_9_under_load_loses_nothing_acknowledged() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| rand::rng().next_u64());
    println!("SEED={seed}");
    let mut chance = StdRng::seed_from_u64(seed);
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare(ALL_INTERFACES).await;
    let mut load = Load::new(&device);
    for round in 0..KILLS {
        let publishes = chance.random_range(20..400);
        load.run(&mut connection, publishes, &mut chance).await;
        tanit.kill().await;
        load.drain(&mut connection).await;
        tanit.launch().await;
        let present;
        (connection, present) = device.connect(&tanit).await;
        assert!(present, "round {round}, SEED={seed}: the session was there");
        load.resume(&mut connection).await;
    }
    load.finish(&mut connection).await;
    load.check(&tanit, &device, seed).await;
}

/// What was sent, and how far each message has come. Values are numbers, each sent once, and again
/// only as the protocol says.
struct Load {
    once: String,
    exactly: String,
    next_value: i32,
    next_id: u16,
    /// Unacknowledged by id: value, QoS and whether PUBREC was seen.
    open: BTreeMap<u16, (i32, u8, bool)>,
    order: Vec<u16>,
    acknowledged: [BTreeSet<i32>; 3],
    sent: [BTreeSet<i32>; 3],
}

impl Load {
    fn new(device: &TestDevice) -> Self {
        Self {
            once: format!("{}/t.Dev/int", device.base()),
            exactly: format!("{}/t.Dev/long", device.base()),
            next_value: 0,
            next_id: 1000,
            open: BTreeMap::new(),
            order: Vec::new(),
            acknowledged: Default::default(),
            sent: Default::default(),
        }
    }

    fn topic(&self, qos: u8) -> &str {
        if qos == 2 { &self.exactly } else { &self.once }
    }

    async fn run(&mut self, connection: &mut RawDevice, publishes: usize, chance: &mut StdRng) {
        for _ in 0..publishes {
            while self.open.len() >= 60 {
                let Some(packet) = connection.next().await else {
                    return;
                };
                self.saw(connection, packet.kind(), packet.id()).await;
            }
            let qos = if chance.random_bool(0.5) { 1 } else { 2 };
            let (value, id) = (self.next_value, self.next_id);
            self.next_value += 1;
            self.next_id = if self.next_id > 60_000 {
                1000
            } else {
                self.next_id + 1
            };
            self.open.insert(id, (value, qos, false));
            self.order.push(id);
            self.sent[usize::from(qos)].insert(value);
            connection
                .send_anyway(&publish(self.topic(qos), &bson(value), qos, id))
                .await;
        }
    }

    async fn saw(&mut self, connection: &mut RawDevice, kind: u8, id: u16) {
        match kind {
            4 | 7 => self.close(id),
            5 => {
                if let Some(open) = self.open.get_mut(&id) {
                    open.2 = true;
                    self.acknowledged[2].insert(open.0);
                }
                connection.send_anyway(&pubrel(id)).await;
            }
            _ => {}
        }
    }

    fn close(&mut self, id: u16) {
        if let Some((value, qos, _)) = self.open.remove(&id) {
            self.acknowledged[usize::from(qos)].insert(value);
            self.order.retain(|open| *open != id);
        }
    }

    /// Takes in what the broker had still written.
    async fn drain(&mut self, connection: &mut RawDevice) {
        while let Some(packet) = connection.next().await {
            self.saw(connection, packet.kind(), packet.id()).await;
        }
    }

    /// Sends again what is open, in its order, as a client with a session must.
    async fn resume(&mut self, connection: &mut RawDevice) {
        for id in self.order.clone() {
            let (value, qos, received) = self.open[&id];
            let packet = if received {
                pubrel(id)
            } else {
                publish_again(self.topic(qos), &bson(value), qos, id)
            };
            connection.send_anyway(&packet).await;
        }
    }

    async fn finish(&mut self, connection: &mut RawDevice) {
        while !self.open.is_empty() {
            let packet = connection.next().await.expect("the broker stays up");
            self.saw(connection, packet.kind(), packet.id()).await;
        }
    }

    async fn check(&self, tanit: &Tanit, device: &TestDevice, seed: u64) {
        for (qos, path) in [(1_usize, "/int"), (2, "/long")] {
            let mut stored: BTreeMap<i64, usize> = BTreeMap::new();
            for row in tanit.data(device, "t.Dev", path).await {
                let value = match &row["value"] {
                    serde_json::Value::String(text) => text.parse().expect("a number"),
                    value => value.as_i64().expect("a number"),
                };
                *stored.entry(value).or_default() += 1;
            }
            for value in &self.acknowledged[qos] {
                let count = stored.get(&i64::from(*value)).copied().unwrap_or(0);
                assert!(
                    count > 0,
                    "SEED={seed}: QoS {qos} value {value} was acknowledged and lost"
                );
            }
            if qos == 2 {
                let twice: Vec<_> = stored.iter().filter(|(_, count)| **count > 1).collect();
                assert!(
                    twice.is_empty(),
                    "SEED={seed}: stored more than once: {twice:?}"
                );
            }
            assert!(
                stored.len() <= self.sent[qos].len(),
                "SEED={seed}: more than was sent"
            );
        }
    }
}
