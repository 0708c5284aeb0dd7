//! QoS flows and packet identifiers, both ways.

use crate::harness::{
    device::{bson, puback, publish, publish_again, pubrel},
    product::Tanit,
};

#[tokio::test]
async fn fc_026_a_repeated_qos_2_publish_is_acknowledged_each_time_and_committed_once() {
    let mut tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.Dev:1:0").await;
    let topic = connection.topic("t.Dev/int");
    for (round, variant) in ["same connection", "reconnect", "restart"]
        .into_iter()
        .enumerate()
    {
        let value = bson(i32::try_from(round).expect("small"));
        connection.send(&publish(&topic, &value, 2, 700)).await;
        assert_eq!(connection.expect(5).await.id(), 700, "{variant}");
        if variant != "same connection" {
            connection.cut();
            if variant == "restart" {
                tanit.kill().await;
                tanit.launch().await;
            }
            let present;
            (connection, present) = device.connect(&tanit).await;
            assert!(present, "{variant}");
        }
        for _ in 0..5 {
            connection
                .send(&publish_again(&topic, &value, 2, 700))
                .await;
            assert_eq!(connection.expect(5).await.id(), 700, "{variant}");
        }
        connection.send(&pubrel(700)).await;
        assert_eq!(connection.expect(7).await.id(), 700, "{variant}");
        let rows = tanit.data(&device, "t.Dev", "/int").await;
        assert_eq!(rows.len(), round + 1, "{variant}: one row");
    }
}

#[tokio::test]
async fn fc_028_device_ids_and_broker_ids_do_not_collide() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.Dev:1:0;t.SrvCmd:1:0").await;
    connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
    tanit
        .cli(&["publish", "acme", &device.id, "t.SrvCmd", "/cmd", "x"])
        .await;
    let outstanding = connection
        .expect(3)
        .await
        .publish()
        .packet_id
        .expect("an id");
    let topic = connection.topic("t.Dev/int");
    connection
        .send(&publish(&topic, &bson(1), 2, outstanding))
        .await;
    assert_eq!(connection.expect(5).await.id(), outstanding);
    connection.send(&pubrel(outstanding)).await;
    assert_eq!(connection.expect(7).await.id(), outstanding);
    connection.send(&puback(outstanding)).await;
    connection.expect_only_pong().await;
    assert_eq!(tanit.data(&device, "t.Dev", "/int").await.len(), 1);
    connection.disconnect().await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present);
    connection.expect_only_pong().await;
}

/// 1,000 publishes instead of 200,000.
#[tokio::test]
async fn fc_032_a_client_that_never_sends_pubrel_is_bounded() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, "t.Dev:1:0").await;
    let topic = connection.topic("t.Dev/int");
    for id in 1000..2000 {
        connection
            .send_anyway(&publish(&topic, &bson(i32::from(id)), 2, id))
            .await;
    }
    let seen = connection.expect_closed().await;
    let received = seen.iter().filter(|packet| packet.kind() == 5).count();
    assert!(received <= 100, "{received} ids were let in");
    let stored = tanit.data(&device, "t.Dev", "/int").await.len();
    assert!(
        (received..=100).contains(&stored),
        "{stored} rows for {received} PUBRECs"
    );
}
