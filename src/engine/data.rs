//! Data of interfaces: datastreams and properties that a device sends.
//!
//! The order of the checks is Astarte MQTT v1's (processing order for a data message): path,
//! introspection and installed interface, ownership, endpoint, BSON, type and size, unset.

use std::sync::Arc;

use super::{
    errors::{DeviceError, Refusal},
    interfaces::RealmInterfaces,
    judge::{About, Accepted, Target},
};
use crate::{
    clock::Timestamp,
    interface::{
        Aggregation, Interface, InterfaceType, Introspection, Mapping, Ownership, PathError,
    },
    payload::{self, Content, Envelope, Value, ValueError},
    store::Effect,
};

/// Judges a data message on `path` of the interface called `name`.
pub(super) fn judge(
    target: &Target<'_>,
    name: &str,
    path: &str,
    introspection: &Introspection,
    installed: &RealmInterfaces,
    about: &mut About<'_>,
) -> Result<Accepted, Refusal> {
    if path.contains("//") {
        return Err(Refusal::new(DeviceError::InvalidPath));
    }
    let interface = resolve(name, introspection, installed)?;
    about.key = Some(interface.key().clone());
    if interface.ownership() == Ownership::Server {
        return Err(Refusal::new(DeviceError::WriteOnServerOwnedInterface));
    }
    let (mapping, content, envelope) = match interface.aggregation() {
        Aggregation::Individual => individual(interface, path, target.payload)?,
        Aggregation::Object => object(interface, path, target.payload)?,
    };
    let effect = match (interface.interface_type(), content) {
        (InterfaceType::Datastream, Content::Unset) => {
            return Err(Refusal::new(DeviceError::UnsetOnDatastream));
        }
        (InterfaceType::Properties, Content::Unset) if !mapping.allow_unset => {
            return Err(Refusal::new(DeviceError::UnsetNotAllowed));
        }
        (InterfaceType::Datastream, Content::Value(value)) => {
            let value_at = value_time(target.at, mapping, &envelope)?;
            sample(
                target.at,
                interface,
                path,
                value,
                value_at,
                installed.retention(mapping),
            )
        }
        (InterfaceType::Properties, Content::Value(value)) => Effect::SetProperty {
            interface: interface.key().clone(),
            path: Arc::from(path),
            value,
            at: target.at,
        },
        (InterfaceType::Properties, Content::Unset) => Effect::UnsetProperty {
            interface: interface.key().clone(),
            path: Arc::from(path),
        },
    };
    Ok(effect.into())
}

/// The installed interface that the device speaks of: its major is the declared one, its minor is
/// whatever is installed.
fn resolve<'i>(
    name: &str,
    introspection: &Introspection,
    installed: &'i RealmInterfaces,
) -> Result<&'i Interface, Refusal> {
    let fault = |why: String| Refusal::because(DeviceError::InterfaceLoadingFailed, why);
    let version = introspection
        .version(name)
        .ok_or_else(|| fault("the interface is not in the introspection".into()))?;
    let interface = installed.get(name, version.major).ok_or_else(|| {
        fault(format!(
            "major version {} is not installed in the realm",
            version.major
        ))
    })?;
    Ok(interface)
}

type Read<'i, 'p> = (&'i Mapping, Content, Envelope<'p>);

fn individual<'i, 'p>(
    interface: &'i Interface,
    path: &str,
    payload: &'p [u8],
) -> Result<Read<'i, 'p>, Refusal> {
    let mapping = interface.resolve(path)?;
    let envelope = payload::decode(payload)?;
    let content = envelope.individual(mapping.value_type)?;
    Ok((mapping, content, envelope))
}

fn object<'i, 'p>(
    interface: &'i Interface,
    path: &str,
    payload: &'p [u8],
) -> Result<Read<'i, 'p>, Refusal> {
    interface.resolve_object(path)?;
    let envelope = payload::decode(payload)?;
    let content = envelope.object(interface)?;
    // an interface has mappings, and those of an object agree in all that is asked of them here
    let mapping = interface
        .mappings()
        .first()
        .ok_or(PathError::MappingNotFound)?;
    Ok((mapping, content, envelope))
}

/// The value's own time: what the device says where the mapping asks for it, or else the
/// reception's, in milliseconds.
fn value_time(
    at: Timestamp,
    mapping: &Mapping,
    envelope: &Envelope<'_>,
) -> Result<Timestamp, Refusal> {
    let explicit = if mapping.explicit_timestamp {
        envelope.timestamp()?
    } else {
        None
    };
    Ok(explicit
        .or_else(|| Timestamp::from_millis(at.as_millis()))
        .unwrap_or(at))
}

fn sample(
    received_at: Timestamp,
    interface: &Interface,
    path: &str,
    value: Value,
    value_at: Timestamp,
    retention: Option<std::time::Duration>,
) -> Effect {
    Effect::AppendSample {
        interface: interface.key().clone(),
        path: Arc::from(path),
        value,
        value_at,
        received_at,
        expires_at: retention.map(|kept| received_at.saturating_add(kept)),
    }
}

impl From<PathError> for Refusal {
    fn from(error: PathError) -> Self {
        let name = match error {
            PathError::MappingNotFound => DeviceError::MappingNotFound,
            PathError::AmbiguousPath => DeviceError::AmbiguousPath,
            PathError::InvalidPath => DeviceError::InvalidPath,
        };
        Self::because(name, error)
    }
}

impl From<payload::Undecodable> for Refusal {
    fn from(error: payload::Undecodable) -> Self {
        Self::because(DeviceError::UndecodableBsonPayload, error)
    }
}

impl From<ValueError> for Refusal {
    fn from(error: ValueError) -> Self {
        let name = match error {
            ValueError::UnexpectedType { .. } => DeviceError::UnexpectedValueType,
            ValueError::SizeExceeded { .. } => DeviceError::ValueSizeExceeded,
            ValueError::UnexpectedKey { .. } => DeviceError::UnexpectedObjectKey,
            ValueError::MissingKey { .. } => DeviceError::MissingRequiredMapping,
        };
        Self::because(name, error)
    }
}
