//! One lock for each device, out of a fixed number: two devices share one now and then.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use tokio::sync::Mutex;

use crate::identity::Identity;

/// How many writes can be under way at once.
const LOCKS: usize = 256;

/// Held by whoever writes to a device.
#[derive(Debug)]
pub(super) struct Locks(Box<[Mutex<()>]>);

impl Default for Locks {
    fn default() -> Self {
        Self((0..LOCKS).map(|_| Mutex::new(())).collect())
    }
}

impl Locks {
    pub(super) fn of(&self, identity: &Identity) -> &Mutex<()> {
        let mut hasher = DefaultHasher::new();
        identity.hash(&mut hasher);
        let index = usize::try_from(hasher.finish() % LOCKS as u64).unwrap_or(0);
        &self.0[index]
    }
}
