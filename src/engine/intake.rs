//! The bounds of what is taken from devices and not yet committed.
//!
//! Each device has a *window* of its own that depends on no other device, so that one that floods
//! cannot stop another's acknowledgements; what does not fit it comes out of a *shared pool*. A
//! [`Permit`](crate::mqtt::Permit) is room for one message; dropping it gives the room back to
//! where it came from and hands it to who has waited longest. Nothing here polls or has a timer.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::oneshot;

use super::counters::EngineCounters;
use crate::identity::Identity;

/// How much may be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntakeLimits {
    /// Messages of one device that depend on no other device.
    pub window_messages: usize,
    /// Bytes (payload and topic) of one device that depend on no other device. A single larger
    /// message fits an empty window.
    pub window_bytes: usize,
    /// Messages beyond the windows, of all devices.
    pub shared_messages: usize,
    /// Bytes beyond the windows, of all devices.
    pub shared_bytes: usize,
}

impl Default for IntakeLimits {
    fn default() -> Self {
        Self {
            window_messages: 100,
            window_bytes: 256 * 1024,
            shared_messages: 65_536,
            shared_bytes: 64 * 1024 * 1024,
        }
    }
}

/// Hands out room.
#[derive(Clone, Debug)]
pub(super) struct Bounds(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: IntakeLimits,
    counters: Arc<EngineCounters>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Devices with something under way or waiting.
    windows: HashMap<Identity, Window>,
    /// What the shared pool has lent.
    shared: Amount,
    /// Who waits, by ticket: the smallest has waited longest.
    waiting: BTreeMap<u64, Waiting>,
    next_ticket: u64,
}

#[derive(Debug, Default)]
struct Window {
    used: Amount,
    /// Tickets of this device, oldest first.
    tickets: VecDeque<u64>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Amount {
    messages: usize,
    bytes: usize,
}

#[derive(Debug)]
struct Waiting {
    identity: Identity,
    bytes: usize,
    grant: oneshot::Sender<Room>,
}

/// Room for one message, given back when dropped.
#[derive(Debug)]
pub(super) struct Room {
    bounds: Bounds,
    identity: Identity,
    bytes: usize,
    source: Source,
}

/// Where room came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Window,
    Pool,
}

impl Bounds {
    pub(super) fn new(limits: IntakeLimits, counters: Arc<EngineCounters>) -> Self {
        Self(Arc::new(Shared {
            limits,
            counters,
            state: Mutex::default(),
        }))
    }

    /// Waits until a message of so many bytes has room: in the device's own window, or else in the
    /// shared pool. Served in order: within a device always, between devices for the pool.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the line; room that was granted meanwhile goes
    /// back.
    pub(super) async fn reserve(&self, identity: &Identity, bytes: usize) -> Room {
        let (granted, ticket) = {
            let mut state = self.lock();
            if let Some(source) = state.take(&self.0.limits, identity, bytes) {
                drop(state);
                return self.room(identity.clone(), bytes, source);
            }
            state.enqueue(identity, bytes)
        };
        self.0.counters.intake_waiting.add(1);
        let _line = InLine {
            bounds: self,
            ticket,
        };
        // the sender is dropped only by this future's own `InLine`
        match granted.await {
            Ok(room) => room,
            Err(_) => std::future::pending().await,
        }
    }

    fn room(&self, identity: Identity, bytes: usize, source: Source) -> Room {
        self.0.counters.intake_messages.add(1);
        self.0.counters.intake_bytes.add(bytes as u64);
        Room {
            bounds: self.clone(),
            identity,
            bytes,
            source,
        }
    }

    /// Gives room back and serves who can be served by it.
    fn give_back(&self, identity: &Identity, bytes: usize, source: Source) {
        self.0.counters.intake_messages.sub(1);
        self.0.counters.intake_bytes.sub(bytes as u64);
        let mut state = self.lock();
        state.put(identity, bytes, source);
        self.serve(state, identity);
    }

    /// Grants what can be granted: to `identity` in its window, then to all in the pool.
    fn serve(&self, mut state: MutexGuard<'_, State>, identity: &Identity) {
        let mut grants = Vec::new();
        let limits = &self.0.limits;
        state.grant_in_window(limits, identity, &mut grants);
        while let Some(granted) = state.next_in_pool(limits) {
            let identity = granted.0.identity.clone();
            grants.push(granted);
            // the one behind it may fit the window that it was too large for
            state.grant_in_window(limits, &identity, &mut grants);
        }
        state.tidy(identity);
        drop(state);
        for (waiting, source) in grants {
            let room = self.room(waiting.identity, waiting.bytes, source);
            // whoever gave up meanwhile: the room comes back through its own drop
            drop(waiting.grant.send(room));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.bounds
            .give_back(&self.identity, self.bytes, self.source);
    }
}

/// A place in the line, left when dropped.
struct InLine<'b> {
    bounds: &'b Bounds,
    ticket: u64,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.bounds.0.counters.intake_waiting.sub(1);
        let mut state = self.bounds.lock();
        // none: it was served
        let Some(waiting) = state.waiting.remove(&self.ticket) else {
            return;
        };
        if let Some(window) = state.windows.get_mut(&waiting.identity) {
            window.tickets.retain(|ticket| *ticket != self.ticket);
        }
        // whoever stood behind it may fit
        self.bounds.serve(state, &waiting.identity);
    }
}

impl State {
    /// Room that is there now, unless somebody waits for the same.
    fn take(&mut self, limits: &IntakeLimits, identity: &Identity, bytes: usize) -> Option<Source> {
        let nobody_waits = self.waiting.is_empty();
        match self.windows.get_mut(identity) {
            None => {
                let used = Amount { messages: 1, bytes };
                let window = Window {
                    used,
                    tickets: VecDeque::new(),
                };
                self.windows.insert(identity.clone(), window);
                Some(Source::Window)
            }
            Some(window) if !window.tickets.is_empty() => None,
            Some(window) if window.used.fits_window(limits, bytes) => {
                window.used.add(bytes);
                Some(Source::Window)
            }
            Some(_) if nobody_waits && self.shared.fits_pool(limits, bytes) => {
                self.shared.add(bytes);
                Some(Source::Pool)
            }
            Some(_) => None,
        }
    }

    fn enqueue(&mut self, identity: &Identity, bytes: usize) -> (oneshot::Receiver<Room>, u64) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let (grant, granted) = oneshot::channel();
        self.waiting.insert(
            ticket,
            Waiting {
                identity: identity.clone(),
                bytes,
                grant,
            },
        );
        self.windows
            .entry(identity.clone())
            .or_default()
            .tickets
            .push_back(ticket);
        (granted, ticket)
    }

    /// Gives `bytes` back to the window or the pool.
    fn put(&mut self, identity: &Identity, bytes: usize, source: Source) {
        match source {
            Source::Pool => self.shared.sub(bytes),
            Source::Window => {
                if let Some(window) = self.windows.get_mut(identity) {
                    window.used.sub(bytes);
                }
            }
        }
    }

    /// Serves the waiters of a device, oldest first, as far as its window has room.
    fn grant_in_window(
        &mut self,
        limits: &IntakeLimits,
        identity: &Identity,
        grants: &mut Vec<(Waiting, Source)>,
    ) {
        let Some(window) = self.windows.get_mut(identity) else {
            return;
        };
        while let Some(ticket) = window.tickets.front()
            && let Some(first) = self.waiting.get(ticket)
            && window.used.fits_window(limits, first.bytes)
            && let Some(waiting) = self.waiting.remove(ticket)
        {
            window.used.add(waiting.bytes);
            window.tickets.pop_front();
            grants.push((waiting, Source::Window));
        }
    }

    /// The oldest waiter of all, if the pool has room for it.
    fn next_in_pool(&mut self, limits: &IntakeLimits) -> Option<(Waiting, Source)> {
        let (&ticket, first) = self.waiting.first_key_value()?;
        let bytes = first.bytes;
        if !self.shared.fits_pool(limits, bytes) {
            return None;
        }
        self.shared.add(bytes);
        let waiting = self.waiting.remove(&ticket)?;
        if let Some(window) = self.windows.get_mut(&waiting.identity) {
            window.tickets.retain(|other| *other != ticket);
        }
        Some((waiting, Source::Pool))
    }

    /// Forgets a device that has nothing under way in its window and does not wait.
    fn tidy(&mut self, identity: &Identity) {
        if let Some(window) = self.windows.get(identity)
            && window.used.messages == 0
            && window.tickets.is_empty()
        {
            self.windows.remove(identity);
        }
    }
}

impl Amount {
    const fn fits_window(self, limits: &IntakeLimits, bytes: usize) -> bool {
        self.messages == 0
            || (self.messages < limits.window_messages
                && self.bytes.saturating_add(bytes) <= limits.window_bytes)
    }

    const fn fits_pool(self, limits: &IntakeLimits, bytes: usize) -> bool {
        self.messages < limits.shared_messages
            && self.bytes.saturating_add(bytes) <= limits.shared_bytes
    }

    const fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    const fn sub(&mut self, bytes: usize) {
        self.messages = self.messages.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Future, pin::Pin, task::Poll};

    use proptest::prelude::*;

    use super::*;
    use crate::identity::DeviceId;

    const LIMITS: IntakeLimits = IntakeLimits {
        window_messages: 2,
        window_bytes: 100,
        shared_messages: 3,
        shared_bytes: 50,
    };

    fn bounds() -> Bounds {
        Bounds::new(LIMITS, Arc::default())
    }

    fn device(number: u8) -> Identity {
        Identity::new("acme".parse().unwrap(), DeviceId::from_bytes([number; 16]))
    }

    type Reserving<'b> = Pin<Box<dyn Future<Output = Room> + 'b>>;

    fn reserve(bounds: &Bounds, number: u8, bytes: usize) -> Reserving<'_> {
        Box::pin(async move { bounds.reserve(&device(number), bytes).await })
    }

    /// The room, if it is there without waiting any longer.
    fn now(reserving: &mut Reserving<'_>) -> Option<Room> {
        let waker = std::task::Waker::noop();
        match reserving
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker))
        {
            Poll::Ready(room) => Some(room),
            Poll::Pending => None,
        }
    }

    fn taken(bounds: &Bounds, number: u8, bytes: usize) -> Room {
        now(&mut reserve(bounds, number, bytes)).expect("there is room")
    }

    #[test]
    fn a_device_that_has_taken_everything_leaves_the_others_their_windows() {
        let bounds = bounds();
        let _greedy: Vec<_> = (0..5).map(|_| taken(&bounds, 1, 10)).collect();
        let mut waiting = reserve(&bounds, 1, 10);
        assert!(now(&mut waiting).is_none());
        for other in 2..100 {
            drop(taken(&bounds, other, 100));
            drop((taken(&bounds, other, 50), taken(&bounds, other, 50)));
        }
    }

    #[test]
    fn waits_only_when_window_and_pool_are_exhausted_in_messages_or_in_bytes() {
        let bounds = bounds();
        let _window = taken(&bounds, 1, 100);
        let _pool = taken(&bounds, 1, 50);
        assert!(
            now(&mut reserve(&bounds, 1, 1)).is_none(),
            "no bytes are left"
        );
        let _rest: Vec<_> = (0..2).map(|_| taken(&bounds, 1, 0)).collect();
        let _last = taken(&bounds, 1, 0);
        assert!(
            now(&mut reserve(&bounds, 1, 0)).is_none(),
            "no messages are left"
        );
    }

    #[test]
    fn a_message_larger_than_the_window_fits_an_empty_one() {
        let bounds = bounds();
        let large = taken(&bounds, 1, 10_000);
        let mut second = reserve(&bounds, 1, 10_000);
        assert!(now(&mut second).is_none());
        drop(large);
        assert!(now(&mut second).is_some());
    }

    #[test]
    fn room_given_back_goes_to_the_one_that_waits_longest() {
        let bounds = bounds();
        let _full: Vec<_> = [1, 1, 2, 2].map(|number| taken(&bounds, number, 0)).into();
        let mut pool: Vec<_> = (0..3).map(|_| taken(&bounds, 1, 0)).collect();
        let mut first = reserve(&bounds, 2, 50);
        assert!(now(&mut first).is_none());
        let mut second = reserve(&bounds, 1, 0);
        assert!(now(&mut second).is_none());
        pool.pop();
        assert!(now(&mut second).is_none(), "it does not pass the first");
        let first = now(&mut first).expect("the pool has room");
        drop(first);
        assert!(now(&mut second).is_some());
    }

    #[test]
    fn a_devices_own_room_serves_its_own_waiter_whoever_waits_for_the_pool() {
        let bounds = bounds();
        let mut window: Vec<_> = (0..2).map(|_| taken(&bounds, 1, 0)).collect();
        let _pool: Vec<_> = (0..3).map(|_| taken(&bounds, 1, 0)).collect();
        let _other: Vec<_> = (0..2).map(|_| taken(&bounds, 2, 0)).collect();
        let mut other = reserve(&bounds, 2, 0);
        assert!(now(&mut other).is_none());
        let mut own = reserve(&bounds, 1, 0);
        assert!(now(&mut own).is_none());
        window.pop();
        assert!(now(&mut own).is_some());
        assert!(now(&mut other).is_none(), "that room was not the pool's");
    }

    #[test]
    fn who_gives_up_loses_its_place_and_takes_nothing_along() {
        let bounds = bounds();
        let mut rooms: Vec<_> = (0..5).map(|_| taken(&bounds, 1, 10)).collect();
        let mut gives_up = reserve(&bounds, 1, 50);
        assert!(now(&mut gives_up).is_none());
        let mut granted_unseen = reserve(&bounds, 1, 0);
        assert!(now(&mut granted_unseen).is_none());
        drop(gives_up);
        rooms.pop();
        drop(granted_unseen);
        drop(rooms);
        let state = bounds.lock();
        assert!(state.windows.is_empty() && state.waiting.is_empty());
        assert_eq!(state.shared, Amount::default());
        drop(state);
        let counters = &bounds.0.counters;
        let gauges = [
            &counters.intake_messages,
            &counters.intake_bytes,
            &counters.intake_waiting,
        ];
        assert_eq!(gauges.map(crate::engine::Gauge::get), [0, 0, 0]);
    }

    /// What may happen to the bounds.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Reserve(u8, usize),
        GiveBack(usize),
        GiveUp(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (1_u8..4, 0_usize..150).prop_map(|(number, bytes)| Step::Reserve(number, bytes)),
            2 => any::<usize>().prop_map(Step::GiveBack),
            1 => any::<usize>().prop_map(Step::GiveUp),
        ]
    }

    /// Nobody waits for room that is there, and no more is lent than there is.
    fn check(bounds: &Bounds) {
        let state = bounds.lock();
        assert!(state.shared.messages <= LIMITS.shared_messages);
        assert!(state.shared.bytes <= LIMITS.shared_bytes);
        if let Some((_, first)) = state.waiting.first_key_value() {
            assert!(
                !state.shared.fits_pool(&LIMITS, first.bytes),
                "the first could be served"
            );
        }
        for window in state.windows.values() {
            let used = window.used;
            assert!(used.messages <= LIMITS.window_messages);
            assert!(used.bytes <= LIMITS.window_bytes || used.messages == 1);
            assert!(
                used.messages > 0 || window.tickets.is_empty(),
                "an empty window has room"
            );
            if let Some(ticket) = window.tickets.front() {
                let bytes = state.waiting[ticket].bytes;
                assert!(
                    !used.fits_window(&LIMITS, bytes),
                    "the window has room for its first"
                );
            }
        }
        let tickets: usize = state
            .windows
            .values()
            .map(|window| window.tickets.len())
            .sum();
        assert_eq!(tickets, state.waiting.len());
    }

    proptest! {
        #[test]
        fn room_is_never_lent_twice_and_never_withheld(
            steps in proptest::collection::vec(step(), 1..200)
        ) {
            let bounds = bounds();
            let (mut rooms, mut waiting) = (Vec::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Reserve(number, bytes) => waiting.push(reserve(&bounds, number, bytes)),
                    Step::GiveBack(index) if !rooms.is_empty() => {
                        drop(rooms.swap_remove(index % rooms.len()));
                    }
                    Step::GiveUp(index) if !waiting.is_empty() => {
                        drop(waiting.swap_remove(index % waiting.len()));
                    }
                    Step::GiveBack(_) | Step::GiveUp(_) => {}
                }
                waiting.retain_mut(|reserving| now(reserving).map(|room| rooms.push(room)).is_none());
                check(&bounds);
            }
            drop((rooms, waiting));
            prop_assert!(bounds.lock().windows.is_empty());
        }
    }
}
