//! Messages under `<base>/control`, and capabilities.

use super::{
    errors::{DeviceError, Refusal},
    judge::{Accepted, Target},
};
use crate::{identity::ControlTopic, store::Effect};

/// The control path, with its leading slash.
pub(super) const fn path(topic: ControlTopic<'_>) -> &str {
    match topic {
        ControlTopic::EmptyCache => "/emptyCache",
        ControlTopic::ProducerProperties => "/producer/properties",
        ControlTopic::ConsumerProperties => "/consumer/properties",
        ControlTopic::Other(path) => path,
    }
}

/// Judges a control message.
pub(super) fn judge(topic: ControlTopic<'_>) -> Result<Accepted, Refusal> {
    match topic {
        // the payload is ignored; the device's server-owned properties are to be sent again here,
        // before the flag is cleared
        ControlTopic::EmptyCache => Ok(Effect::PendingEmptyCache(false).into()),
        // the paths that the list leaves out are to be unset here
        ControlTopic::ProducerProperties => Ok(Accepted::default()),
        ControlTopic::ConsumerProperties | ControlTopic::Other(_) => {
            Err(Refusal::new(DeviceError::UnexpectedControlMessage))
        }
    }
}

/// Judges a capabilities message: its format of purge lists is to be kept here.
#[expect(
    clippy::unnecessary_wraps,
    reason = "bad capabilities are to be refused here"
)]
pub(super) fn capabilities(_target: &Target<'_>) -> Result<Accepted, Refusal> {
    Ok(Accepted::default())
}
