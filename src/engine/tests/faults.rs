//! The store fails: what waits, what is told, and that it heals by itself.

use super::{fake::Fault, *};
use crate::{mqtt::AfterRefusal, store::Effect};

/// A write of the API that changes nothing.
pub(super) fn note() -> Unit {
    Unit {
        identity: device(1),
        receipt: None,
        effects: vec![Effect::PendingEmptyCache(false)],
        counted: None,
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_delays_and_loses_nothing() {
    let bench = Bench::start().await;
    bench
        .store
        .with(|state| state.faults.extend([Fault::Unavailable; 5]));
    for label in 0..20 {
        bench.send(label, "/t.Dev/int", &v(1)).await;
    }
    bench.store.attempted(3).await;
    assert_eq!(bench.acks.now(), []);
    assert!(!bench.engine.counters().store_available());
    let acks = bench.acks.wait(20).await;
    assert_eq!(stored(&acks), (0..20).collect::<Vec<_>>());
    assert_eq!(bench.store.samples().len(), 20);
    assert!(bench.engine.counters().store_available());
    assert_eq!(bench.engine.counters().commit_retries.get(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_read_delays_too() {
    let bench = Bench::start().await;
    bench.store.with(|state| state.reads_fail = 3);
    bench.send(1, "/t.Dev/int", &v(1)).await;
    assert_eq!(stored(&bench.acks.wait(1).await), [1]);
    assert!(bench.engine.counters().store_available());
}

#[tokio::test(start_paused = true)]
async fn a_write_of_the_api_is_told_of_the_outage_and_not_done_later() {
    let bench = Bench::start().await;
    bench.store.stall();
    bench
        .store
        .with(|state| state.faults.extend([Fault::Unavailable; 4]));
    bench.send(1, "/t.Dev/int", &v(1)).await;
    bench.store.attempted(1).await;
    // behind the batch that is failing
    let run = bench.engine.run(note());
    let (answer, ()) = tokio::join!(run, async {
        tokio::task::yield_now().await;
        bench.store.resume();
    });
    assert!(
        matches!(answer, Err(StoreError::Unavailable(_))),
        "{answer:?}"
    );
    assert_eq!(stored(&bench.acks.wait(1).await), [1]);
    bench.engine.drain().await;
    assert_eq!(bench.store.with(|state| state.units.len()), 1);
    // and in the batch that fails itself
    bench
        .store
        .with(|state| state.faults.push_back(Fault::Unavailable));
    assert!(bench.engine.run(note()).await.is_err());
    assert_eq!(bench.engine.run(note()).await.unwrap(), Committed::Done);
}

#[tokio::test]
async fn a_write_whose_caller_has_gone_is_not_done() {
    let bench = Bench::start().await;
    bench.store.stall();
    bench.send(1, "/t.Dev/int", &v(1)).await;
    bench.store.attempted(1).await;
    {
        let mut run = Box::pin(bench.engine.run(note()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(run.as_mut().poll(&mut context).is_pending());
    }
    bench.store.resume();
    bench.engine.drain().await;
    assert_eq!(bench.store.with(|state| state.units.len()), 1);
}

#[tokio::test]
async fn writes_of_the_api_are_in_line_with_the_messages_of_the_device() {
    let bench = Bench::start().await;
    bench.store.stall();
    bench.send(1, "/t.Dev/int", &v(1)).await;
    let (done, ()) = tokio::join!(bench.engine.run(note()), async {
        tokio::task::yield_now().await;
        bench.send(2, "/t.Dev/int", &v(2)).await;
        bench.store.resume();
    });
    assert_eq!(done.unwrap(), Committed::Done);
    bench.acks.wait(2).await;
    let api = bench.store.with(|state| {
        state
            .units
            .iter()
            .position(|unit| matches!(unit.effects[0], Effect::PendingEmptyCache(_)))
    });
    assert_eq!(api, Some(1));
}

fn refused() -> Outcome {
    Outcome::Refused {
        reason: crate::mqtt::packet::ReasonCode::PAYLOAD_FORMAT_INVALID,
        then: AfterRefusal::Continue,
    }
}

#[tokio::test]
async fn a_message_that_the_database_refuses_is_refused_alone_and_in_its_place() {
    for breaks_the_batch in [false, true] {
        let bench = Bench::start().await;
        bench.store.with(|state| {
            state.refused_path = Some("/long");
            state.refusal_breaks_the_batch = breaks_the_batch;
        });
        bench.store.stall();
        bench.send(1, "/t.Dev/int", &v(1)).await;
        bench.send(2, "/t.Dev/long", &v(2)).await;
        bench.send(3, "/t.Dev/int", &v(3)).await;
        bench.store.resume();
        let acks = bench.acks.wait(3).await;
        let stored = Some(Outcome::Stored);
        assert_eq!(acks, [(1, stored), (2, Some(refused())), (3, stored)]);
        assert_eq!(bench.store.samples().len(), 2);
        assert_eq!(bench.store.error_names(), ["internal_error"]);
    }
}

#[tokio::test]
async fn what_a_broken_database_does_not_take_is_not_acknowledged() {
    let bench = Bench::start().await;
    // the batch, the unit alone, its error row
    bench
        .store
        .with(|state| state.faults.extend([Fault::Database; 3]));
    bench.send(1, "/t.Dev/int", &v(1)).await;
    assert_eq!(bench.acks.wait(1).await, [(1, None)]);
    bench.send(2, "/t.Dev/int", &v(2)).await;
    assert_eq!(bench.acks.wait(2).await[1], (2, Some(Outcome::Stored)));
}

#[tokio::test(start_paused = true)]
async fn what_is_left_in_the_outbox_is_delivered_oldest_first() {
    let bench = Bench::start().await;
    let row = |id| crate::store::OutboxRow {
        id,
        identity: device(1),
        topic: "/t.SrvCmd/cmd".into(),
        payload: v("go"),
        qos: 1,
        expires_at: None,
        property: false,
        major: None,
    };
    bench
        .store
        .with(|state| state.outbox.extend([row(1), row(2), row(3)]));
    let mut seen = Vec::new();
    let settled = bench
        .engine
        .replay_outbox(async |row| {
            seen.push(row.id);
            row.id != 2
        })
        .await
        .unwrap();
    assert_eq!((settled, seen), (2, vec![1, 2, 3]));
    let left: Vec<_> = bench
        .store
        .with(|state| state.outbox.iter().map(|row| row.id).collect());
    assert_eq!(left, [2]);
}
