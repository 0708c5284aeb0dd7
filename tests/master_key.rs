//! The master key: made once, and never replaced behind the operator's back.

use std::fs;

use crate::harness::product::Tanit;

#[tokio::test]
async fn a_node_without_the_key_that_its_realms_were_made_with_does_not_start() {
    let mut tanit = Tanit::start().await;
    tanit.realm("acme").await;
    let device = tanit.device("acme").await;
    tanit.terminate().await;
    let path = tanit.data_dir().join("master.key");
    let ours = fs::read(&path).unwrap();

    fs::remove_file(&path).unwrap();
    tanit.spawn();
    assert_eq!(tanit.ended().await.code(), Some(78));
    assert!(!path.exists(), "a new key was made over an old database");

    let other = Tanit::start().await;
    fs::copy(other.data_dir().join("master.key"), &path).unwrap();
    tanit.spawn();
    assert_eq!(tanit.ended().await.code(), Some(78));
    let log = tanit.log();
    for said in ["is missing", "another master key", "master.key"] {
        assert!(log.contains(said), "{said} is not said: {log}");
    }

    fs::write(&path, ours).unwrap();
    tanit.launch().await;
    device.connect(&tanit).await;
}
