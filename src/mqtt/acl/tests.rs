//! The matrix, case by case and against an oracle that works on lists of levels.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{interface::MajorMinor, mqtt::topics::matches};

const BASE: &str = "acme/Zm9vYmFyYmF6cXV4MTIzNA";
const OTHER: &str = "acme/AAAAAAAAAAAAAAAAAAAAAA";

fn identity() -> Identity {
    BASE.parse().expect("canonical")
}

/// `t.Dev` and `t.Old` (declared, not installed in that major) of the device, `t.Srv` of the server.
fn introspection() -> Introspection {
    let version = |major| MajorMinor { major, minor: 0 };
    let entries = [("t.Dev", 1), ("t.Srv", 1), ("t.Old", 9)];
    entries
        .into_iter()
        .map(|(name, major)| (Arc::from(name), version(major)))
        .collect()
}

/// `t.Hidden` is installed and not declared.
fn ownership(interface: &str, major: u32) -> Option<Ownership> {
    match (interface, major) {
        ("t.Dev" | "t.Hidden", 1) => Some(Ownership::Device),
        ("t.Srv", 1) => Some(Ownership::Server),
        _ => None,
    }
}

fn publish(topic: &str) -> Verdict {
    let identity = identity();
    let acl = Acl {
        identity: &identity,
        levels_max: 72,
    };
    acl.publish(&introspection(), &ownership, topic)
}

fn subscribe(filter: &str) -> Result<(), SubscribeDenied> {
    let identity = identity();
    Acl {
        identity: &identity,
        levels_max: 72,
    }
    .subscribe(filter)
}

fn will(topic: &str) -> Result<(), WillDenied> {
    let identity = identity();
    Acl {
        identity: &identity,
        levels_max: 72,
    }
    .will(topic)
}

fn deliver(topic: &str) -> bool {
    deliver_of(topic, None)
}

fn deliver_of(topic: &str, major: Option<u32>) -> bool {
    let identity = identity();
    let acl = Acl {
        identity: &identity,
        levels_max: 72,
    };
    acl.deliver(&introspection(), &ownership, topic, major)
}

#[test]
fn a_device_publishes_what_is_its_own() {
    for below in [
        "",
        "/capabilities",
        "/control/emptyCache",
        "/control/producer/properties",
        "/t.Dev/int",
        "/t.Dev/a/b",
    ] {
        assert_eq!(
            publish(&format!("{BASE}{below}")),
            Verdict::Allowed,
            "{below}"
        );
    }
    for (below, denial) in [
        ("/t.Srv/cmd", Denial::ServerOwned),
        ("/t.Hidden/int", Denial::InterfaceNotDeclared),
        ("/t.Old/int", Denial::InterfaceNotDeclared),
        ("/capabilities/x", Denial::InterfaceNotDeclared),
        ("/control", Denial::UnexpectedControl),
        ("/control/consumer/properties", Denial::UnexpectedControl),
        ("/control/keyAgreement/0", Denial::UnexpectedControl),
    ] {
        assert_eq!(
            publish(&format!("{BASE}{below}")),
            Verdict::Denied(denial),
            "{below}"
        );
    }
}

#[test]
fn a_device_is_given_what_the_server_owns() {
    for below in [
        "/t.Srv/cmd",
        "/t.Srv",
        "/control/consumer/properties",
        "/control/consumer/x",
    ] {
        assert!(deliver(&format!("{BASE}{below}")), "{below}");
    }
    for below in [
        "",
        "/t.Dev/int",
        "/t.Hidden/x",
        "/t.Old/x",
        "/control/emptyCache",
        "/control",
    ] {
        assert!(!deliver(&format!("{BASE}{below}")), "{below}");
    }
    assert!(!deliver(&format!("{OTHER}/t.Srv/cmd")));
}

#[test]
fn fc_087_wildcards_outside_the_own_tree_are_refused() {
    for filter in [
        "#",
        "+/#",
        "acme/#",
        "acme/+",
        "acme/+/t.SrvCmd/#",
        "+/Zm9vYmFyYmF6cXV4MTIzNA/#",
        "acme/AAAAAAAAAAAAAAAAAAAAAA/#",
        "/acme/Zm9vYmFyYmF6cXV4MTIzNA/#",
        "acme",
    ] {
        assert_eq!(subscribe(filter), Err(SubscribeDenied::Foreign), "{filter}");
    }
    for below in [
        "",
        "/#",
        "/+/cmd",
        "/+",
        "/t.NotDeclared/#",
        "/control/consumer/properties",
    ] {
        assert_eq!(subscribe(&format!("{BASE}{below}")), Ok(()), "{below}");
    }
    for filter in [
        "##",
        &format!("{BASE}#"),
        &format!("{BASE}/t.SrvCmd/cm+"),
        "",
        "a/#/b",
    ] {
        assert_eq!(
            subscribe(filter),
            Err(SubscribeDenied::Malformed),
            "{filter}"
        );
    }
    assert_eq!(
        subscribe(&format!("$share/g/{BASE}/#")),
        Err(SubscribeDenied::Shared)
    );
}

#[test]
fn fc_090_a_will_lies_in_the_own_tree() {
    assert_eq!(
        will(&format!("{OTHER}/t.Dev/int")),
        Err(WillDenied::Foreign)
    );
    assert_eq!(
        will("globex/Zm9vYmFyYmF6cXV4MTIzNA/x"),
        Err(WillDenied::Foreign)
    );
    assert_eq!(will("#"), Err(WillDenied::Malformed));
    assert_eq!(will(&format!("{BASE}/t.Dev/+")), Err(WillDenied::Malformed));
    assert_eq!(will(""), Err(WillDenied::Malformed));
    // judged when they fire
    for below in ["/control/consumer/properties", "/t.Srv/cmd", "/t.Dev/int"] {
        assert_eq!(will(&format!("{BASE}{below}")), Ok(()), "{below}");
    }
}

#[test]
fn fc_091_slashes_are_read_by_one_rule() {
    for topic in [
        "acme//Zm9vYmFyYmF6cXV4MTIzNA/t.Dev/int",
        &format!("/{BASE}/t.Dev/int"),
    ] {
        assert_eq!(publish(topic), Verdict::Foreign, "{topic}");
    }
    for (below, verdict) in [
        ("//t.Dev/int", Verdict::Denied(Denial::InterfaceNotDeclared)),
        ("/t.Dev//int", Verdict::Denied(Denial::InvalidPath)),
        ("/", Verdict::Denied(Denial::InterfaceNotDeclared)),
        // whether the path is a mapping is the engine's to say
        ("/t.Dev", Verdict::Allowed),
        ("/t.Dev/", Verdict::Allowed),
        ("/t.Dev/int/", Verdict::Allowed),
        ("/t.Dev/int//", Verdict::Denied(Denial::InvalidPath)),
    ] {
        assert_eq!(publish(&format!("{BASE}{below}")), verdict, "{below}");
    }
}

#[test]
fn fc_059_very_deep_topics_are_refused() {
    let deep = format!("{BASE}/t.Dev{}", "/x".repeat(65_000 / 2));
    assert_eq!(publish(&deep), Verdict::Denied(Denial::InvalidPath));
    assert_eq!(subscribe(&deep), Err(SubscribeDenied::TooDeep));
    let slashes = format!("{BASE}/{}", "/".repeat(65_000));
    assert_eq!(publish(&slashes), Verdict::Denied(Denial::InvalidPath));
    assert_eq!(subscribe(&slashes), Err(SubscribeDenied::TooDeep));
    let deepest = format!("{BASE}/t.Dev{}", "/x".repeat(69));
    assert_eq!(
        (publish(&deepest), subscribe(&deepest)),
        (Verdict::Allowed, Ok(()))
    );
    let deeper = format!("{deepest}/x");
    assert_eq!(publish(&deeper), Verdict::Denied(Denial::InvalidPath));
    assert_eq!(subscribe(&deeper), Err(SubscribeDenied::TooDeep));
}

#[test]
fn fc_061_topics_that_begin_with_a_dollar_are_foreign() {
    let own = format!("${BASE}/t.Dev/int");
    for topic in ["$SYS/x", "$CONTROL/x", "$share", own.as_str()] {
        assert_eq!(publish(topic), Verdict::Foreign, "{topic}");
        assert_eq!(will(topic), Err(WillDenied::Foreign), "{topic}");
        assert!(subscribe(topic).is_err(), "{topic}");
        assert!(!deliver(topic), "{topic}");
    }
}

/// Levels that make topics near the edges of the rules.
fn level() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "acme",
        "globex",
        "Zm9vYmFyYmF6cXV4MTIzNA",
        "AAAAAAAAAAAAAAAAAAAAAA",
        "t.Dev",
        "t.Srv",
        "t.Old",
        "t.Hidden",
        "capabilities",
        "control",
        "emptyCache",
        "producer",
        "consumer",
        "properties",
        "x",
        "",
        "+",
        "#",
        "x#",
        "$share",
    ])
}

/// Mostly topics of the device itself.
fn topic() -> impl Strategy<Value = String> {
    let below = prop::collection::vec(level(), 0..6);
    (prop::bool::weighted(0.8), below).prop_map(|(own, below)| {
        let base: &[&str] = if own {
            &["acme", "Zm9vYmFyYmF6cXV4MTIzNA"]
        } else {
            &[]
        };
        [base, &below].concat().join("/")
    })
}

/// What may be published, said once more in terms of levels.
fn oracle_publish(topic: &str) -> Verdict {
    let levels: Vec<&str> = topic.split('/').collect();
    let Some(below) = levels.strip_prefix(&["acme", "Zm9vYmFyYmF6cXV4MTIzNA"]) else {
        return Verdict::Foreign;
    };
    match below {
        []
        | ["capabilities"]
        | ["control", "emptyCache"]
        | ["control", "producer", "properties"] => Verdict::Allowed,
        ["control", ..] => Verdict::Denied(Denial::UnexpectedControl),
        [interface, path @ ..] => {
            // an empty level is one between two slashes; the last one may be empty by itself
            let inner = path.len().saturating_sub(1);
            if path[..inner].iter().any(|level| level.is_empty()) {
                return Verdict::Denied(Denial::InvalidPath);
            }
            match *interface {
                "t.Dev" => Verdict::Allowed,
                "t.Srv" => Verdict::Denied(Denial::ServerOwned),
                _ => Verdict::Denied(Denial::InterfaceNotDeclared),
            }
        }
    }
}

fn oracle_deliver(topic: &str) -> bool {
    let levels: Vec<&str> = topic.split('/').collect();
    match levels.strip_prefix(&["acme", "Zm9vYmFyYmF6cXV4MTIzNA"]) {
        Some(["control", "consumer", _, ..] | ["t.Srv", ..]) => true,
        Some(_) | None => false,
    }
}

#[test]
fn fc_120_a_message_is_for_the_major_it_was_written_for() {
    let topic = format!("{BASE}/t.Srv/cmd");
    for (major, allowed) in [
        (None, true),
        (Some(1), true),
        (Some(0), false),
        (Some(2), false),
    ] {
        assert_eq!(deliver_of(&topic, major), allowed, "{major:?}");
    }
    let undeclared = format!("{BASE}/t.Hidden/cmd");
    assert!(!deliver_of(&undeclared, Some(1)));
}

proptest! {
    #[test]
    fn publish_and_deliver_agree_with_the_oracle(topic in topic()) {
        prop_assert_eq!(publish(&topic), oracle_publish(&topic));
        prop_assert_eq!(deliver(&topic), oracle_deliver(&topic));
    }

    #[test]
    fn what_is_granted_matches_own_topics_alone(filter in topic(), topic in topic()) {
        // a filter that is granted can match no topic outside the own subtree
        if subscribe(&filter).is_ok() && matches(&filter, &topic) {
            prop_assert!(publish(&topic) != Verdict::Foreign);
        }
    }

    #[test]
    fn own_filters_are_granted_exactly_when_well_formed(below in prop::collection::vec(level(), 0..5)) {
        let filter = [&["acme", "Zm9vYmFyYmF6cXV4MTIzNA"][..], &below].concat().join("/");
        let last = below.len().saturating_sub(1);
        let well_formed = below
            .iter()
            .enumerate()
            .all(|(at, level)| *level != "x#" && (*level != "#" || at == last));
        prop_assert_eq!(subscribe(&filter).is_ok(), well_formed);
    }

    #[test]
    fn nothing_makes_it_panic(text in ".{0,64}") {
        let _ = (publish(&text), deliver(&text), will(&text), subscribe(&text));
    }
}
