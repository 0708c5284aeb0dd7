//! Random streams of several devices over a store that fails now and then, against a plain model.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{fake::Fault, *};
use crate::{mqtt::AfterRefusal, payload::Value, store::Effect};

#[derive(Clone, Copy, Debug)]
enum What {
    Good,
    /// A QoS 2 message that was sent before, once more.
    Repeated,
    /// No kick.
    Unset,
    /// Clean kick.
    Junk,
    /// From now on `t.Dev` is not declared.
    Undeclare,
    Declare,
    /// The session is erased; the next one begins.
    Erase,
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        8 => Just(What::Good),
        2 => Just(What::Repeated),
        1 => Just(What::Unset),
        1 => Just(What::Junk),
        1 => Just(What::Undeclare),
        2 => Just(What::Declare),
        2 => Just(What::Erase),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stored,
    Refused(AfterRefusal),
    Dropped,
}

/// What is to become of the messages of one device.
#[derive(Debug)]
struct Model {
    epoch: u64,
    kicked: bool,
    declared: bool,
    last_good: Option<(u64, u16, i32)>,
    fates: Vec<(u32, Fate)>,
    values: Vec<i32>,
}

impl Model {
    fn new() -> Self {
        Self {
            epoch: 1,
            kicked: false,
            declared: true,
            last_good: None,
            fates: Vec::new(),
            values: Vec::new(),
        }
    }

    fn take(&mut self, label: u32, what: What, value: i32) {
        let fate = match what {
            _ if self.kicked => Fate::Dropped,
            What::Good if self.declared => {
                self.values.push(value);
                Fate::Stored
            }
            // whatever is declared now
            What::Repeated => Fate::Stored,
            What::Unset if self.declared => Fate::Refused(AfterRefusal::Continue),
            What::Undeclare | What::Declare => {
                self.declared = matches!(what, What::Declare);
                Fate::Stored
            }
            _ => Fate::Refused(AfterRefusal::CleanKick),
        };
        self.kicked |= fate == Fate::Refused(AfterRefusal::CleanKick);
        self.fates.push((label, fate));
    }
}

async fn play(script: Vec<(u8, What, bool)>, faults: Vec<u8>, cached_devices: usize) {
    let settings = EngineSettings {
        cached_devices,
        batch_messages: NonZeroUsize::new(5).unwrap(),
        ..EngineSettings::default()
    };
    let bench = Bench::with_settings(settings).await;
    let mut models: BTreeMap<u8, Model> = (1..=3).map(|number| (number, Model::new())).collect();
    let mut faults = faults.into_iter();
    for (index, (number, what, pause)) in script.into_iter().enumerate() {
        let label = u32::try_from(index).unwrap();
        let model = models.get_mut(&number).unwrap();
        let value = i32::try_from(index).unwrap();
        let mut packet_id = u16::try_from(index + 1).unwrap();
        let mut session = model.epoch;
        let (below, payload) = match what {
            What::Good => ("/t.Dev/int", v(value)),
            What::Repeated => {
                let Some(last) = model.last_good else {
                    continue;
                };
                (session, packet_id) = (last.0, last.1);
                if session != model.epoch {
                    continue;
                }
                ("/t.Dev/int", v(last.2))
            }
            What::Unset => ("/t.Dev/int", Vec::new()),
            What::Junk => ("/t.Dev/int", b"junk".to_vec()),
            What::Undeclare => ("", b"t.DevProp:1:0".to_vec()),
            What::Declare => ("", b"t.Dev:1:0".to_vec()),
            What::Erase => {
                bench
                    .engine
                    .forget(&device(number), SessionEpoch(model.epoch));
                model.epoch += 1;
                model.kicked = false;
                continue;
            }
        };
        let mut message = bench.message(number, label, below, &payload);
        message.session = SessionEpoch(session);
        message.delivery = Some(Delivery {
            packet_id: NonZeroU16::new(packet_id).unwrap(),
            qos: QoS::ExactlyOnce,
            dup: matches!(what, What::Repeated),
        });
        bench.submit(message).await;
        if matches!(what, What::Good) && model.declared && !model.kicked {
            model.last_good = Some((session, packet_id, value));
        }
        model.take(label, what, value);
        if pause {
            let fault = faults.next().unwrap_or(0);
            bench.store.with(|state| {
                state.faults.extend((0..fault).map(|_| Fault::Unavailable));
            });
            tokio::task::yield_now().await;
        }
    }
    bench.engine.drain().await;

    check(&bench, &models);
}

/// Holds what was answered and stored against the model.
fn check(bench: &Bench, models: &BTreeMap<u8, Model>) {
    let acks = bench.acks.now();
    for (number, model) in models {
        let own: BTreeMap<u32, Fate> = model.fates.iter().copied().collect();
        let seen: Vec<(u32, Fate)> = acks
            .iter()
            .filter(|(label, _)| own.contains_key(label))
            .map(|(label, outcome)| {
                let fate = match outcome {
                    Some(Outcome::Stored) => Fate::Stored,
                    Some(Outcome::Refused { then, .. }) => Fate::Refused(*then),
                    None => Fate::Dropped,
                };
                (*label, fate)
            })
            .collect();
        assert_eq!(
            seen, model.fates,
            "device {number}: answers and their order"
        );
        let values = bench.store.with(|state| {
            let of_device = |unit: &&Unit| unit.identity == device(*number);
            let effects = state
                .units
                .iter()
                .filter(of_device)
                .flat_map(|unit| &unit.effects);
            let value = |effect: &Effect| match effect {
                Effect::AppendSample {
                    value: Value::Integer(value),
                    ..
                } => Some(*value),
                _ => None,
            };
            effects.filter_map(value).collect::<Vec<_>>()
        });
        assert_eq!(
            values, model.values,
            "device {number}: each value once, in order"
        );
    }
    assert_eq!(bench.engine.counters().intake_messages.get(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn answers_and_values_are_those_of_the_model_whatever_the_store_does(
        script in proptest::collection::vec((1_u8..=3, what(), any::<bool>()), 1..120),
        faults in proptest::collection::vec(0_u8..3, 0..20),
        cached_devices in 1_usize..4,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(play(script, faults, cached_devices));
    }
}
