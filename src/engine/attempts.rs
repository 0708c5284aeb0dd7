//! Wrong secrets, counted for each device and address; too many are held off.
//!
//! Only failures count, so a fleet that comes back all at once is not slowed. The address is part
//! of the key: a stranger who guesses at a device's secret must not be able to shut the device
//! itself out. Both maps are bounded; when they are full, what is over shares one key.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    sync::Mutex,
    time::{Duration, Instant},
};

use governor::{
    Quota, RateLimiter, clock::Clock as _, middleware::NoOpMiddleware,
    state::keyed::DashMapStateStore,
};

use crate::{
    clock::SharedClock,
    identity::{DeviceId, Identity, RealmName},
};

/// Keys that are told apart.
const KEYS_MAX: usize = 16_384;
/// Keys whose allowance is whole again are dropped at most this often.
const PRUNE_EVERY: Duration = Duration::from_secs(1);

/// `None` is shared by all that come when the maps are full.
type Key = Option<Told>;

/// What is told apart.
type Told = (RealmName, DeviceId, IpAddr);

/// The clock that was passed in, for governor.
#[derive(Clone, Debug)]
struct Ours(SharedClock);

impl governor::clock::Clock for Ours {
    type Instant = Instant;

    fn now(&self) -> Instant {
        self.0.now()
    }
}

/// Failed attempts to prove oneself by secret.
pub(crate) struct SecretAttempts {
    clock: Ours,
    limiter: RateLimiter<Key, DashMapStateStore<Key>, Ours, NoOpMiddleware<Instant>>,
    held: Mutex<Held>,
}

struct Held {
    until: HashMap<Key, Instant>,
    pruned: Instant,
}

impl std::fmt::Debug for SecretAttempts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SecretAttempts")
            .field("keys", &self.limiter.len())
            .finish_non_exhaustive()
    }
}

impl SecretAttempts {
    /// `per_minute` failures may come at once, and then as many in each minute.
    pub(crate) fn new(clock: SharedClock, per_minute: NonZeroU32) -> Self {
        let quota = Quota::per_minute(per_minute);
        let held = Held {
            until: HashMap::new(),
            pruned: clock.now(),
        };
        let clock = Ours(clock);
        Self {
            limiter: RateLimiter::dashmap_with_clock(quota, clock.clone()),
            clock,
            held: Mutex::new(held),
        }
    }

    /// How long this device has to wait at this address before its secret is looked at again.
    pub(crate) fn held_off(&self, identity: &Identity, address: IpAddr) -> Option<Duration> {
        let now = self.clock.now();
        let mut held = self.held.lock().expect("no panic while the map is held");
        let key = Some(key(identity, address));
        match held
            .until
            .get(&key)
            .map(|until| until.saturating_duration_since(now))
        {
            Some(wait) if !wait.is_zero() => Some(wait),
            Some(_) => {
                held.until.remove(&key);
                None
            }
            None => None,
        }
    }

    /// Counts a failure.
    pub(crate) fn failed(&self, identity: &Identity, address: IpAddr) {
        self.prune();
        let key = (self.limiter.len() < KEYS_MAX).then(|| key(identity, address));
        if let Err(not_until) = self.limiter.check_key(&key) {
            let now = self.clock.now();
            let until = now + not_until.wait_time_from(now);
            let mut held = self.held.lock().expect("no panic while the map is held");
            if held.until.len() < KEYS_MAX {
                held.until.insert(key, until);
            }
        }
    }

    fn prune(&self) {
        let now = self.clock.now();
        {
            let mut held = self.held.lock().expect("no panic while the map is held");
            if now.saturating_duration_since(held.pruned) < PRUNE_EVERY {
                return;
            }
            held.pruned = now;
            held.until.retain(|_, until| *until > now);
        }
        self.limiter.retain_recent();
    }
}

/// A network of 64 bits is one address: whoever has one IPv6 address has them all.
fn key(identity: &Identity, address: IpAddr) -> Told {
    let address = match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    };
    (identity.realm.clone(), identity.device, address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{ManualClock, Timestamp};

    const BURST: NonZeroU32 = NonZeroU32::new(10).expect("ten is not zero");
    const ONE_MORE_AFTER: Duration = Duration::from_secs(6);

    fn device(id: u8) -> Identity {
        Identity::new(
            "acme".parse().expect("a realm"),
            DeviceId::from_bytes([id; 16]),
        )
    }

    #[test]
    fn a_device_is_held_off_after_a_burst_of_failures_and_only_at_that_address() {
        let clock = ManualClock::new(Timestamp::default());
        let attempts = SecretAttempts::new(clock.clone(), BURST);
        let here = "192.0.2.1".parse().expect("an address");
        let there = "192.0.2.2".parse().expect("an address");
        for _ in 0..BURST.get() {
            attempts.failed(&device(1), here);
            assert_eq!(attempts.held_off(&device(1), here), None);
        }
        attempts.failed(&device(1), here);
        let wait = attempts.held_off(&device(1), here).expect("held off");
        assert!(wait <= ONE_MORE_AFTER, "{wait:?}");
        assert_eq!(attempts.held_off(&device(1), there), None);
        assert_eq!(attempts.held_off(&device(2), here), None);

        clock.advance(wait);
        assert_eq!(attempts.held_off(&device(1), here), None);
    }

    #[test]
    fn the_maps_stay_bounded_and_forget() {
        let clock = ManualClock::new(Timestamp::default());
        let attempts = SecretAttempts::new(clock.clone(), BURST);
        for n in 0..u32::try_from(KEYS_MAX * 2).expect("fits") {
            attempts.failed(&device(1), IpAddr::from(n.to_be_bytes()));
        }
        assert!(attempts.limiter.len() <= KEYS_MAX + 1);
        clock.advance(Duration::from_hours(1));
        attempts.failed(&device(1), "192.0.2.1".parse().expect("an address"));
        assert_eq!(attempts.limiter.len(), 1);
    }

    #[test]
    fn neighbours_in_an_ipv6_network_are_one_address() {
        let clock = ManualClock::new(Timestamp::default());
        let attempts = SecretAttempts::new(clock, BURST);
        for n in 0..=BURST.get() {
            let address = format!("2001:db8::{n:x}").parse().expect("an address");
            attempts.failed(&device(1), address);
        }
        let next = "2001:db8::ffff".parse().expect("an address");
        assert!(attempts.held_off(&device(1), next).is_some());
    }
}
