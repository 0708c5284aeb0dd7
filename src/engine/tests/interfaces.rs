//! Installing, updating and deleting interfaces, and that it is live at once.

use super::*;
use crate::interface::{InterfaceKey, UpdateRefused};

fn key(name: &str, major: u32) -> InterfaceKey {
    InterfaceKey {
        name: Arc::from(name),
        major,
    }
}

fn with_version(mut document: Json, major: u32, minor: u32) -> Json {
    document["version_major"] = major.into();
    document["version_minor"] = minor.into();
    document
}

fn t_dev_1_1() -> Json {
    let mut document = with_version(t_dev(), 1, 1);
    let new = json!({"endpoint": "/new", "type": "integer", "database_retention_policy": "use_ttl",
                     "database_retention_ttl": 60});
    document["mappings"].as_array_mut().unwrap().push(new);
    document
}

#[tokio::test]
async fn fc_119_a_minor_upgrade_is_live_when_the_call_returns_whatever_minor_is_declared() {
    let bench = Bench::start().await;
    bench.send(1, "/t.Dev/int", &v(1)).await;
    bench.acks.wait(1).await;
    let interfaces = bench.engine.interfaces();
    interfaces
        .update(&realm(), &key("t.Dev", 1), &t_dev_1_1(), audit())
        .await
        .unwrap();
    bench.send(2, "/t.Dev/new", &v(2)).await;
    bench
        .send(3, "", DECLARED.replace("t.Dev:1:0", "t.Dev:1:1").as_bytes())
        .await;
    bench.send(4, "/t.Dev/new", &v(3)).await;
    bench.send(5, "/t.Dev/int", &v(4)).await;
    assert_eq!(stored(&bench.acks.wait(5).await), [1, 2, 3, 4, 5]);
    let expiries = bench.store.effects(|effect| match effect {
        crate::store::Effect::AppendSample {
            expires_at,
            received_at,
            ..
        } => Some(expires_at.map(|at| at.saturating_since(*received_at).as_secs())),
        _ => None,
    });
    assert_eq!(expiries, [None, Some(60), Some(60), None]);
}

#[tokio::test]
async fn fc_119_no_message_is_judged_by_a_mixture() {
    let bench = Bench::start().await;
    let before = bench.engine.interfaces().of_realm(&realm());
    bench
        .engine
        .interfaces()
        .update(&realm(), &key("t.Dev", 1), &t_dev_1_1(), audit())
        .await
        .unwrap();
    assert_eq!(
        before.get("t.Dev", 1).unwrap().minor(),
        0,
        "a snapshot stays what it was"
    );
    assert!(before.get("t.Dev", 1).unwrap().resolve("/new").is_err());
    let after = bench.engine.interfaces().of_realm(&realm());
    assert!(after.get("t.Dev", 1).unwrap().resolve("/new").is_ok());
}

#[tokio::test]
async fn fc_120_each_message_is_judged_by_the_introspection_before_it() {
    let bench = Bench::start().await;
    let mut two = with_version(t_dev(), 2, 0);
    two["mappings"] = json!([{"endpoint": "/int", "type": "string"}]);
    bench
        .engine
        .interfaces()
        .install(&realm(), &two, audit())
        .await
        .unwrap();
    bench.store.stall();
    bench.send(1, "/t.Dev/int", &v(1)).await;
    bench.send(2, "", b"t.Dev:2:0").await;
    bench.send(3, "/t.Dev/int", &v("two")).await;
    bench.send(4, "", b"t.Dev:1:0").await;
    bench.send(5, "/t.Dev/int", &v(5)).await;
    bench.send(6, "/t.Dev/int", &v("two")).await;
    bench.store.resume();
    assert_eq!(stored(&bench.acks.wait(6).await), [1, 2, 3, 4, 5]);
    assert_eq!(bench.store.error_names(), ["unexpected_value_type"]);
    let majors = bench.store.effects(|effect| match effect {
        crate::store::Effect::AppendSample { interface, .. } => Some(interface.major),
        _ => None,
    });
    assert_eq!(majors, [1, 2, 1]);
}

#[tokio::test]
async fn installing_checks_in_order_and_stores_a_document_that_reads_back() {
    let bench = Bench::start().await;
    let interfaces = bench.engine.interfaces();
    let install = async |document: Json| interfaces.install(&realm(), &document, audit()).await;
    assert!(matches!(
        install(json!({"interface_name": "a.B"})).await,
        Err(InterfaceChangeError::Invalid(_))
    ));
    assert!(matches!(
        install(t_dev()).await,
        Err(InterfaceChangeError::AlreadyInstalled(_))
    ));
    let mut close = t_dev();
    close["interface_name"] = "t.DEV".into();
    assert!(matches!(
        install(close).await,
        Err(InterfaceChangeError::NameCollision(_))
    ));
    let nowhere = "globex".parse().unwrap();
    assert!(matches!(
        interfaces.install(&nowhere, &t_dev(), audit()).await,
        Err(InterfaceChangeError::RealmNotFound)
    ));
    // an installed key counts before overlapping endpoints, these before being installed
    let mut overlapping = t_dev();
    overlapping["mappings"].as_array_mut().unwrap().push(json!(
        {"endpoint": "/at", "type": "integer"}
    ));
    assert!(matches!(
        install(overlapping.clone()).await,
        Err(InterfaceChangeError::AlreadyInstalled(_))
    ));
    overlapping["interface_name"] = "t.Overlap".into();
    assert!(matches!(
        install(overlapping).await,
        Err(InterfaceChangeError::Invalid(_))
    ));
    assert_eq!(interfaces.majors(&realm(), "t.Dev"), [1]);

    let two = install(with_version(t_dev(), 2, 0)).await.unwrap();
    assert_eq!(interfaces.majors(&realm(), "t.Dev"), [1, 2]);
    interfaces.load().await.unwrap();
    assert_eq!(
        *interfaces.get(&realm(), "t.Dev", 2).unwrap(),
        *two,
        "after a restart"
    );
    let names: Vec<String> = interfaces
        .names(&realm())
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(names, ["t.Dev", "t.DevObj", "t.DevProp", "t.SrvCmd"]);
}

#[tokio::test]
async fn a_retention_above_the_realms_is_refused_and_shorter_ones_are_capped() {
    let bench = Bench::start().await;
    let interfaces = bench.engine.interfaces();
    bench.store.with(|state| {
        let row = state.realms.get_mut(&realm()).unwrap();
        row.datastream_maximum_storage_retention = 100;
    });
    let mut document = t_dev_1_1();
    document["interface_name"] = "t.Kept".into();
    document["mappings"][10]["database_retention_ttl"] = 101.into();
    assert!(matches!(
        interfaces.install(&realm(), &document, audit()).await,
        Err(InterfaceChangeError::Invalid(_))
    ));
    document["mappings"][10]["database_retention_ttl"] = 100.into();
    let installed = interfaces
        .install(&realm(), &document, audit())
        .await
        .unwrap();
    interfaces.refresh_realm(&realm()).await.unwrap();
    let snapshot = interfaces.of_realm(&realm());
    let seconds = |path: &str| {
        snapshot
            .retention(installed.resolve(path).unwrap())
            .map(|kept| kept.as_secs())
    };
    assert_eq!((seconds("/int"), seconds("/new")), (Some(100), Some(100)));
    bench.store.with(|state| {
        let row = state.realms.get_mut(&realm()).unwrap();
        row.datastream_maximum_storage_retention = 70;
    });
    interfaces.refresh_realm(&realm()).await.unwrap();
    let capped = interfaces
        .of_realm(&realm())
        .retention(installed.resolve("/new").unwrap());
    assert_eq!(capped.map(|kept| kept.as_secs()), Some(70));
}

#[tokio::test]
async fn updating_checks_the_address_then_the_change() {
    let bench = Bench::start().await;
    let interfaces = bench.engine.interfaces();
    let update = async |name: &str, major: u32, document: Json| {
        interfaces
            .update(&realm(), &key(name, major), &document, audit())
            .await
            .map(|_| ())
    };
    assert!(matches!(
        update("t.Other", 1, t_dev_1_1()).await,
        Err(InterfaceChangeError::NameMismatch)
    ));
    assert!(matches!(
        update("t.Dev", 3, t_dev_1_1()).await,
        Err(InterfaceChangeError::MajorMismatch)
    ));
    assert!(matches!(
        update("t.Dev", 3, with_version(t_dev(), 3, 0)).await,
        Err(InterfaceChangeError::NotInstalled(_))
    ));
    assert!(matches!(
        update("t.Dev", 1, t_dev()).await,
        Err(InterfaceChangeError::UpdateRefused(
            UpdateRefused::NotIncreased(0)
        ))
    ));
    assert_eq!(interfaces.get(&realm(), "t.Dev", 1).unwrap().minor(), 0);
}

#[tokio::test]
async fn only_unused_drafts_can_be_deleted() {
    let bench = Bench::start().await;
    let interfaces = bench.engine.interfaces();
    let delete = async |name: &str, major| {
        interfaces
            .delete(&realm(), &key(name, major), audit())
            .await
    };
    assert!(matches!(
        delete("t.Dev", 1).await,
        Err(InterfaceChangeError::MajorNotZero)
    ));
    assert!(matches!(
        delete("t.Dev", 0).await,
        Err(InterfaceChangeError::NotInstalled(_))
    ));
    let draft = with_version(t_dev(), 0, 1);
    interfaces.install(&realm(), &draft, audit()).await.unwrap();
    bench.send(1, "", b"t.Dev:0:1").await;
    bench.acks.wait(1).await;
    assert!(matches!(
        delete("t.Dev", 0).await,
        Err(InterfaceChangeError::InUse(_))
    ));
    bench.send(2, "", b"").await;
    bench.acks.wait(2).await;
    delete("t.Dev", 0).await.unwrap();
    assert_eq!(interfaces.majors(&realm(), "t.Dev"), [1]);
    assert!(
        !bench
            .store
            .with(|state| state.interfaces.iter().any(|row| row.key.major == 0))
    );
}

#[tokio::test]
async fn a_deleted_realm_leaves_nothing_in_memory() {
    let bench = Bench::start().await;
    bench.engine.interfaces().drop_realm(&realm());
    assert!(bench.engine.interfaces().all(&realm()).is_empty());
}
