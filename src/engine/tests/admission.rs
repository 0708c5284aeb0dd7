//! Who may connect.

use super::*;
use crate::{
    interface::Ownership,
    mqtt::{Admission, DeviceRegistry as _, PeerCertificate},
    store::RevocationRow,
};

fn certificate(serial: &str) -> PeerCertificate {
    PeerCertificate {
        serial: serial.into(),
        not_after: NOW,
        ca_fingerprint: String::new(),
        chain: Vec::new(),
    }
}

#[tokio::test]
async fn a_known_device_is_let_in_with_what_it_declares() {
    let bench = Bench::start().await;
    let admission = bench
        .engine
        .admit(&device(1), Some(&certificate("1")))
        .await;
    let Admission::Allowed { introspection } = admission else {
        panic!("{admission:?}")
    };
    assert_eq!(
        *introspection,
        Introspection::parse(DECLARED.as_bytes()).unwrap()
    );
    assert!(matches!(
        bench.engine.admit(&device(9), None).await,
        Admission::Unknown
    ));
}

#[tokio::test]
async fn every_change_counts_at_the_next_connect() {
    let bench = Bench::start().await;
    let change = |change: fn(&mut DeviceRow)| {
        bench
            .store
            .with(|state| change(state.devices.get_mut(&device(1)).unwrap()));
    };
    change(|row| row.credentials_inhibited = true);
    assert!(matches!(
        bench.engine.admit(&device(1), None).await,
        Admission::Inhibited
    ));
    change(|row| row.credentials_inhibited = false);
    assert!(matches!(
        bench.engine.admit(&device(1), None).await,
        Admission::Allowed { .. }
    ));
    change(|row| row.deletion_in_progress = true);
    assert!(matches!(
        bench.engine.admit(&device(1), None).await,
        Admission::Deleting
    ));
}

#[tokio::test]
async fn inhibited_devices_may_go_on_where_the_setting_says_so() {
    let settings = EngineSettings {
        inhibited_devices: InhibitedDevices::UntilCertificateExpiry,
        ..EngineSettings::default()
    };
    let bench = Bench::with_settings(settings).await;
    bench.store.with(|state| {
        state
            .devices
            .get_mut(&device(1))
            .unwrap()
            .credentials_inhibited = true;
    });
    assert!(matches!(
        bench.engine.admit(&device(1), None).await,
        Admission::Allowed { .. }
    ));
}

#[tokio::test]
async fn revoked_and_superseded_certificates_are_refused() {
    let settings = EngineSettings {
        enforce_latest_certificate: true,
        ..EngineSettings::default()
    };
    let bench = Bench::with_settings(settings).await;
    bench.store.with(|state| {
        state
            .devices
            .get_mut(&device(1))
            .unwrap()
            .certificate_serial = Some("2".into());
        let revoked = |number, serial: &str| RevocationRow {
            identity: device(number),
            serial: serial.into(),
            revoked_at: NOW,
        };
        state.revocations.extend([revoked(1, "3"), revoked(2, "2")]);
    });
    let admit = async |serial: &str| {
        bench
            .engine
            .admit(&device(1), Some(&certificate(serial)))
            .await
    };
    assert!(
        matches!(admit("2").await, Admission::Allowed { .. }),
        "another device's revocation"
    );
    assert!(matches!(admit("1").await, Admission::Superseded));
    assert!(matches!(admit("3").await, Admission::Revoked));
}

#[tokio::test]
async fn fc_098_a_store_that_does_not_answer_is_never_a_wrong_refusal() {
    let bench = Bench::start().await;
    bench.store.with(|state| state.reads_fail = 1);
    assert!(matches!(
        bench.engine.admit(&device(1), None).await,
        Admission::Unavailable
    ));
    assert!(matches!(
        bench.engine.admit(&device(1), None).await,
        Admission::Allowed { .. }
    ));
}

#[tokio::test]
async fn ownership_is_that_of_the_installed_interface() {
    let bench = Bench::start().await;
    let ownership = |name, major| bench.engine.ownership(&realm(), name, major);
    assert_eq!(ownership("t.Dev", 1), Some(Ownership::Device));
    assert_eq!(ownership("t.SrvCmd", 1), Some(Ownership::Server));
    assert_eq!(ownership("t.Dev", 2), None);
    assert_eq!(ownership("t.Ghost", 1), None);
}
