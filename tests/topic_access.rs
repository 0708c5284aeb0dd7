//! Who may publish, subscribe to and receive what.

use crate::harness::{
    device::{bson, connect_with_will, frame, subscribe},
    product::{ALL_INTERFACES, Tanit},
};

const OTHER: &str = "Zm9vYmFyYmF6cXV4MTIzNA";

#[tokio::test]
async fn fc_087_foreign_and_malformed_filters_are_refused_when_asked_for() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
    let own = device.base();
    let cases = [
        ("#".to_owned(), 0x80),
        ("+/#".to_owned(), 0x80),
        ("acme/#".to_owned(), 0x80),
        ("acme/+".to_owned(), 0x80),
        ("acme/+/t.SrvCmd/#".to_owned(), 0x80),
        (format!("+/{}/#", device.id), 0x80),
        (format!("acme/{OTHER}/#"), 0x80),
        (own.clone(), 1),
        (format!("{own}/#"), 1),
        (format!("{own}/+/cmd"), 1),
        ("##".to_owned(), 0x80),
        (format!("{own}#"), 0x80),
        (format!("{own}/t.SrvCmd/cm+"), 0x80),
        ("$SYS/x".to_owned(), 0x80),
        ("$share".to_owned(), 0x80),
        (format!("$share/group/{own}/#"), 0x80),
        (format!("${own}/t.Dev/int"), 0x80),
    ];
    let filters: Vec<(&str, u8)> = cases
        .iter()
        .map(|(filter, _)| (filter.as_str(), 1))
        .collect();
    connection.send(&subscribe(77, &filters)).await;
    let answer = connection.expect(9).await;
    let expected: Vec<u8> = cases.iter().map(|(_, code)| *code).collect();
    assert_eq!(
        &answer.body[2..],
        &expected[..],
        "one code for each filter, in order"
    );
}

#[tokio::test]
async fn fc_089_one_subscribe_gets_one_code_for_each_filter_and_a_repeat_replaces() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
    let own = device.base();
    let commands = format!("{own}/t.SrvCmd/#");
    let properties = format!("{own}/t.SrvProp/#");
    let control = format!("{own}/control/consumer/properties");
    let foreign = format!("acme/{OTHER}/#");
    connection
        .send(&subscribe(
            5,
            &[
                (&commands, 1),
                (&foreign, 1),
                (&properties, 0),
                ("a#b", 1),
                (&control, 2),
                ("+/#", 0),
            ],
        ))
        .await;
    assert_eq!(
        connection.expect(9).await.body,
        [0, 5, 1, 0x80, 0, 0x80, 2, 0x80]
    );
    connection
        .send(&subscribe(6, &[(&commands, 2), (&commands, 0)]))
        .await;
    assert_eq!(connection.expect(9).await.body, [0, 6, 2, 0]);
    tanit
        .cli(&["publish", "acme", &device.id, "t.SrvCmd", "/cmd", "x"])
        .await;
    assert_eq!(
        connection.receive().await.qos,
        0,
        "the last one replaced the earlier"
    );

    let many: Vec<String> = (0..1500).map(|number| format!("{own}/x{number}")).collect();
    let filters: Vec<(&str, u8)> = many.iter().map(|filter| (filter.as_str(), 0)).collect();
    connection.send(&subscribe(7, &filters)).await;
    let answer = connection.expect(9).await;
    let granted = answer.body[2..]
        .iter()
        .filter(|code| **code != 0x80)
        .count();
    assert_eq!(answer.body.len() - 2, 1500);
    assert!((1000..=1024).contains(&granted), "{granted} were granted");
}

#[tokio::test]
async fn fc_061_topics_that_begin_with_a_dollar_are_refused_and_harmless() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let own = device.base();
    for topic in [
        "$SYS/x".to_owned(),
        "$CONTROL/x".to_owned(),
        format!("${own}/t.Dev/int"),
    ] {
        let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
        connection
            .send(&crate::harness::device::publish(&topic, &bson(1), 1, 9))
            .await;
        assert!(
            connection.expect_closed().await.is_empty(),
            "{topic} was acknowledged"
        );
        let mut connection = device.open(&tanit).await;
        let will = connect_with_will("", true, 60, Some((&topic, b"x", 0, false)));
        assert_eq!(
            connection.connect_refused(&will).await,
            5,
            "a will on {topic}"
        );
    }
    assert!(
        tanit.errors(&device).await.is_empty(),
        "foreign topics are not device errors"
    );
}

#[tokio::test]
async fn fc_090_a_will_obeys_the_rules_of_a_publish() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let own = device.base();
    device
        .connect_clean(&tanit, ALL_INTERFACES)
        .await
        .disconnect()
        .await;
    for topic in [
        format!("acme/{OTHER}/t.Dev/int"),
        format!("globex/{}/x", device.id),
    ] {
        let mut connection = device.open(&tanit).await;
        let will = connect_with_will("", true, 60, Some((&topic, b"x", 1, true)));
        assert_eq!(
            connection.connect_refused(&will).await,
            5,
            "a will on {topic}"
        );
    }
    // inside the own tree it is judged when it fires
    let will_topic = format!("{own}/control/consumer/properties");
    let mut connection = device.open(&tanit).await;
    connection
        .send(&connect_with_will(
            "",
            true,
            60,
            Some((&will_topic, b"x", 1, true)),
        ))
        .await;
    assert_eq!(connection.expect(2).await.body[1], 0);
    connection.cut();
    tanit
        .until_device(&device, "disconnected", |device| {
            device["connected"] == false
        })
        .await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.expect_only_pong().await;
    assert_eq!(tanit.errors(&device).await, ["unexpected_control_message"]);
}

#[tokio::test]
async fn fc_091_one_rule_for_empty_and_trailing_levels() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    for foreign in [
        format!("acme//{}/t.Dev/int", device.id),
        format!("/{}/t.Dev/int", device.base()),
    ] {
        let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
        connection
            .send(&crate::harness::device::publish(&foreign, &bson(1), 1, 9))
            .await;
        assert!(
            connection.expect_closed().await.is_empty(),
            "{foreign} was acknowledged"
        );
    }
    let cases = [
        ("/t.Dev/int", "interface_loading_failed"),
        ("t.Dev//int", "invalid_path"),
        ("", "invalid_introspection"),
        ("t.Dev", "ambiguous_path"),
        ("t.Dev/int//", "invalid_path"),
        ("t.Dev/nothing", "mapping_not_found"),
        ("t.Dev/grp", "ambiguous_path"),
    ];
    for (number, (below, error)) in cases.into_iter().enumerate() {
        let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
        let id = connection.send_publish(below, &bson(1), 1).await;
        let seen = connection.expect_closed().await;
        assert_eq!(
            seen.last().map(|packet| (packet.kind(), packet.id())),
            Some((4, id)),
            "{below}"
        );
        let errors = tanit.errors(&device).await;
        assert_eq!(
            (errors.len(), errors[number].as_str()),
            (number + 1, error),
            "{below}"
        );
    }
    let mut connection = device.connect_clean(&tanit, ALL_INTERFACES).await;
    connection.publish("t.Dev/int/", &bson(1)).await;
    connection.publish("t.Dev/int", &bson(2)).await;
    assert_eq!(
        tanit.data(&device, "t.Dev", "/int").await.len(),
        2,
        "one path in one form"
    );
}

#[tokio::test]
async fn fc_096_queued_values_follow_the_current_introspection() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let (mut connection, _) = device.connect(&tanit).await;
    connection.declare("t.SrvCmd:1:0").await;
    connection.subscribe(&[("t.SrvCmd/#", 1)]).await;
    tanit
        .cli(&["publish", "acme", &device.id, "t.SrvCmd", "/cmd", "first"])
        .await;
    let id = connection.expect(3).await.publish().packet_id;
    assert!(id.is_some(), "delivered, not acknowledged");
    connection.declare("t.Dev:1:0").await;
    connection.disconnect().await;
    tanit
        .cli_refused(&["publish", "acme", &device.id, "t.SrvCmd", "/cmd", "second"])
        .await;
    let (mut connection, present) = device.connect(&tanit).await;
    assert!(present);
    connection.expect_only_pong().await;
}

#[tokio::test]
async fn fc_054_nothing_but_a_sane_connect_comes_first() {
    let tanit = Tanit::start().await;
    tanit.fixtures().await;
    let device = tanit.device("acme").await;
    let huge = [0x30, 0xff, 0xff, 0xff, 0x7f];
    let huge_connect = [0x10, 0xff, 0xff, 0xff, 0x7f];
    let packets: [&[u8]; 8] = [
        &huge,
        &huge_connect,
        &[0x40, 2, 0, 1],
        &[0x50, 2, 0, 1],
        &[0x62, 2, 0, 1],
        &frame(0x82, b"\0\x01\0\x01a\0"),
        &[0xc0, 0],
        &[0xe0, 0],
    ];
    for packet in packets {
        let mut connection = device.open(&tanit).await;
        connection.send_anyway(packet).await;
        assert!(
            connection.expect_closed().await.is_empty(),
            "{packet:02x?} was answered"
        );
    }
    assert!(tanit.history(&device).await.is_empty(), "no event");
}
