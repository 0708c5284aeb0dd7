//! Topic names and filters: the grammar, the matching, and what lies inside a device's subtree.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tanit::{
    identity::{DeviceTopic, Identity},
    mqtt::{
        acl::Acl,
        topics::{filter_shape, is_valid_topic_name, matches},
    },
};

const BASE: &str = "acme/AAAAAAAAAAAAAAAAAAAAAA";

// a filter, and behind a line feed a topic
fuzz_target!(|text: &str| {
    let (filter, topic) = text.split_once('\n').unwrap_or((text, text));
    check(filter, topic);
    // the same below a device, where most of the rules begin
    let below = |text: &str| format!("{BASE}/{text}");
    check(&below(filter), &below(topic));
});

fn check(filter: &str, topic: &str) {
    let identity: Identity = BASE.parse().expect("an identity");
    let acl = Acl {
        identity: &identity,
        levels_max: 72,
    };
    let shape = filter_shape(filter);
    let matched = matches(filter, topic);
    if is_valid_topic_name(topic) {
        assert!(matches(topic, topic));
        if shape.is_ok() {
            let hidden = topic.starts_with('$') && filter.starts_with(['+', '#']);
            assert_eq!(matched, !hidden && naive(&split(filter), &split(topic)));
        }
    }
    if acl.subscribe(filter).is_ok() {
        let shape = shape.expect("granted filters are well-formed");
        assert!(shape.levels <= 72 && !shape.shared);
        assert!(
            !matched || !is_valid_topic_name(topic) || acl.is_own(topic),
            "hears only its own"
        );
    }
    if let Some(DeviceTopic::Data { path, .. }) = DeviceTopic::parse(&identity, topic) {
        assert!(path.starts_with('/') && topic.starts_with(BASE));
    }
}

fn split(text: &str) -> Vec<&str> {
    text.split('/').collect()
}

fn naive(mut filter: &[&str], mut topic: &[&str]) -> bool {
    loop {
        match (filter, topic) {
            (["#"], _) | ([], []) => return true,
            ([level, others @ ..], [name, names @ ..]) if *level == "+" || level == name => {
                (filter, topic) = (others, names);
            }
            _ => return false,
        }
    }
}
