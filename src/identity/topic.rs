//! What a topic of a device means: introspection, capabilities, control or data.

use super::Identity;

/// A topic under a device's base topic `<realm>/<device_id>`, taken apart as Astarte MQTT v1 does
/// (`spec`: routing of a device PUBLISH). Text is borrowed from the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceTopic<'t> {
    /// The base topic itself.
    Introspection,
    /// `<base>/capabilities`, exactly.
    Capabilities,
    /// `<base>/control` and everything below it.
    Control(ControlTopic<'t>),
    /// Anything else: data of an interface. `path` begins with `/`; `BASE/If` and `BASE/If/` both
    /// have the path `/`. One trailing slash is removed, so that a path has one form only.
    Data {
        /// The third level of the topic; may be empty or otherwise no interface name.
        interface: &'t str,
        /// Path with its leading slash.
        path: &'t str,
    },
}

/// A topic under `<base>/control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlTopic<'t> {
    /// `control/emptyCache`
    EmptyCache,
    /// `control/producer/properties`
    ProducerProperties,
    /// `control/consumer/properties`, server to device.
    ConsumerProperties,
    /// Any other path, with its leading slash; `/` for `control` alone.
    Other(&'t str),
}

impl<'t> DeviceTopic<'t> {
    /// Takes `topic` apart; `None` when its first two levels are not `identity`.
    #[must_use]
    pub fn parse(identity: &Identity, topic: &'t str) -> Option<Self> {
        let rest = topic
            .strip_prefix(identity.realm.as_str())?
            .strip_prefix('/')?;
        let (device, below) = match rest.split_once('/') {
            None => (rest, None),
            Some((device, below)) => (device, Some(below)),
        };
        if device.parse() != Ok(identity.device) {
            return None;
        }
        Some(below.map_or(Self::Introspection, Self::below))
    }

    /// The topic whose part below the base and its slash is `below`.
    fn below(below: &'t str) -> Self {
        let (name, path) = match below.find('/') {
            None => (below, "/"),
            Some(slash) => below.split_at(slash),
        };
        match (name, below.len() > name.len()) {
            ("capabilities", false) => Self::Capabilities,
            ("control", _) => Self::Control(match path {
                "/emptyCache" => ControlTopic::EmptyCache,
                "/producer/properties" => ControlTopic::ProducerProperties,
                "/consumer/properties" => ControlTopic::ConsumerProperties,
                other => ControlTopic::Other(other),
            }),
            _ => Self::Data {
                interface: name,
                path: match path.strip_suffix('/') {
                    // two at the end are an invalid path, and have to stay visible as one
                    Some(stripped) if !stripped.is_empty() && !stripped.ends_with('/') => stripped,
                    _ => path,
                },
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(below: &str) -> Option<DeviceTopic<'_>> {
        let identity: Identity = "acme/Zm9vYmFyYmF6cXV4MTIzNA".parse().expect("canonical");
        DeviceTopic::parse(&identity, below)
    }

    const BASE: &str = "acme/Zm9vYmFyYmF6cXV4MTIzNA";

    #[test]
    fn topics_are_routed_as_the_protocol_says() {
        let data = |interface, path| Some(DeviceTopic::Data { interface, path });
        let cases = [
            ("", Some(DeviceTopic::Introspection)),
            ("/capabilities", Some(DeviceTopic::Capabilities)),
            ("/capabilities/x", data("capabilities", "/x")),
            (
                "/control",
                Some(DeviceTopic::Control(ControlTopic::Other("/"))),
            ),
            (
                "/control/emptyCache",
                Some(DeviceTopic::Control(ControlTopic::EmptyCache)),
            ),
            (
                "/control/producer/properties",
                Some(DeviceTopic::Control(ControlTopic::ProducerProperties)),
            ),
            (
                "/control/x/y",
                Some(DeviceTopic::Control(ControlTopic::Other("/x/y"))),
            ),
            ("/a.B", data("a.B", "/")),
            ("/a.B/", data("a.B", "/")),
            ("/a.B/x/y", data("a.B", "/x/y")),
            ("/a.B/x/", data("a.B", "/x")),
            ("/a.B/x//", data("a.B", "/x//")),
            ("/a.B//x", data("a.B", "//x")),
            ("//a.B/x", data("", "/a.B/x")),
            ("/", data("", "/")),
        ];
        for (below, expected) in cases {
            let topic = format!("{BASE}{below}");
            assert_eq!(parse(&topic), expected, "{topic}");
        }
    }

    #[test]
    fn foreign_topics_are_none() {
        for topic in [
            "acme",
            "acme/",
            "/acme/Zm9vYmFyYmF6cXV4MTIzNA",
            "acme//Zm9vYmFyYmF6cXV4MTIzNA/x",
            "acmes/Zm9vYmFyYmF6cXV4MTIzNA",
            "acme/Zm9vYmFyYmF6cXV4MTIzNAx",
            "acme/Zm9vYmFyYmF6cXV4MTIzNB/x",
            "$acme/Zm9vYmFyYmF6cXV4MTIzNA",
            "",
        ] {
            assert_eq!(parse(topic), None, "{topic}");
        }
    }
}
