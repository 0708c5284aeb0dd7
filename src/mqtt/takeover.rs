//! Which connection owns which session [MQTT-3.1.4-2].
//!
//! One owner per identity gives the order of presence for free: a new connection claims the
//! identity, the older one is told to go, and the claim is granted once that one's [`Claim`] is
//! dropped, which is after it has said that it is disconnected. Under contention the newest
//! connection wins; those that waited before it are turned away.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{DisconnectReason, PeerCertificate};
use crate::{
    identity::{Identity, RealmName},
    interface::Introspection,
};

/// The live connections, by identity. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Owners(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    table: Mutex<Table>,
    live: AtomicUsize,
}

#[derive(Debug, Default)]
struct Table {
    owners: HashMap<Identity, Owner>,
    /// Only identities that somebody is judged for.
    arriving: HashMap<Identity, Arriving>,
    per_realm: HashMap<RealmName, usize>,
    /// Number of the last claim.
    last: u64,
}

/// Connections that are judged and have claimed nothing yet.
#[derive(Debug, Default)]
struct Arriving {
    connections: usize,
    /// What happened to the identity meanwhile, counted.
    changes: u64,
}

#[derive(Debug)]
struct Owner {
    certificate: Option<Arc<PeerCertificate>>,
    orders: watch::Sender<Orders>,
    gone: CancellationToken,
    /// The last connection that asked for the identity: itself, or the newest that waits.
    newest: watch::Sender<u64>,
}

/// What the node tells a connection.
#[derive(Clone, Debug, Default)]
struct Orders {
    kick: Option<DisconnectReason>,
    introspection: Option<Arc<Introspection>>,
}

/// An order to a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// It has to go.
    Leave(DisconnectReason),
    /// This is what its device declares.
    Introspection(Arc<Introspection>),
}

/// A newer connection asked for the same identity while this one waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a newer connection took over")]
pub struct Outrun;

impl Owners {
    /// Notes that a connection of `identity` is about to be judged. Whatever the engine answers
    /// before the identity is claimed may be out of date by then: a kick finds nobody, and what an
    /// older connection sent is committed late.
    pub fn arrive(&self, identity: &Identity) -> Arrival {
        let mut table = self.table();
        let arriving = table.arriving.entry(identity.clone()).or_default();
        arriving.connections += 1;
        Arrival {
            owners: self.clone(),
            identity: identity.clone(),
            seen: arriving.changes,
        }
    }

    /// Claims `identity`: the connection that has it is kicked as taken over, and this returns once
    /// that one is gone. `certificate` is kept to be verified again when the pools change.
    ///
    /// # Errors
    /// [`Outrun`] as soon as a newer claim comes while this one waits: the one that goes may take
    /// long, and no more than one connection waits for it.
    ///
    /// # Cancel safety
    /// Dropping the future gives the claim up; a kick that was said stays said.
    pub async fn claim(
        &self,
        identity: &Identity,
        certificate: Option<Arc<PeerCertificate>>,
    ) -> Result<Claim, Outrun> {
        let mut number = None;
        loop {
            let (mine, mut newest) = {
                let mut table = self.table();
                let mine = *number.get_or_insert_with(|| {
                    table.last += 1;
                    table.last
                });
                match table.owners.get_mut(identity) {
                    None => return Ok(self.grant(&mut table, identity, certificate, mine)),
                    Some(owner) if *owner.newest.borrow() > mine => return Err(Outrun),
                    Some(owner) => {
                        owner.newest.send_replace(mine);
                        owner.kick(DisconnectReason::TakenOver);
                        (mine, owner.newest.subscribe())
                    }
                }
            };
            // an error: the owner is gone
            if newest.wait_for(|newest| *newest > mine).await.is_ok() {
                return Err(Outrun);
            }
        }
    }

    fn grant(
        &self,
        table: &mut Table,
        identity: &Identity,
        certificate: Option<Arc<PeerCertificate>>,
        number: u64,
    ) -> Claim {
        let (orders, receiver) = watch::channel(Orders::default());
        let gone = CancellationToken::new();
        let owner = Owner {
            certificate,
            orders,
            gone: gone.clone(),
            newest: watch::Sender::new(number),
        };
        table.owners.insert(identity.clone(), owner);
        *table.per_realm.entry(identity.realm.clone()).or_default() += 1;
        self.0.live.fetch_add(1, Ordering::Relaxed);
        Claim {
            owners: self.clone(),
            identity: identity.clone(),
            orders: receiver,
            gone,
        }
    }

    /// Tells the connection of `identity` to go, and returns once it is gone; `false` when there
    /// was none.
    pub async fn kick(&self, identity: &Identity, reason: DisconnectReason) -> bool {
        let Some(gone) = self.tell_to_go(identity, reason) else {
            return false;
        };
        gone.cancelled().await;
        true
    }

    /// Tells the connection of `identity` to go; the token is cancelled once it is gone.
    #[must_use = "the connection is not gone yet"]
    pub fn tell_to_go(
        &self,
        identity: &Identity,
        reason: DisconnectReason,
    ) -> Option<CancellationToken> {
        let mut table = self.table();
        table.changed(identity);
        let owner = table.owners.get(identity)?;
        owner.kick(reason);
        Some(owner.gone.clone())
    }

    /// Hands a new introspection to the connection of `identity`, if there is one.
    pub fn refresh_introspection(&self, identity: &Identity, introspection: Arc<Introspection>) {
        let mut table = self.table();
        table.changed(identity);
        if let Some(owner) = table.owners.get(identity) {
            owner
                .orders
                .send_modify(|orders| orders.introspection = Some(introspection));
        }
    }

    /// Whether `identity` has a live connection.
    #[must_use]
    pub fn is_connected(&self, identity: &Identity) -> bool {
        self.table().owners.contains_key(identity)
    }

    /// Live connections in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.live.load(Ordering::Relaxed)
    }

    /// Whether there is no live connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Live connections of a realm.
    #[must_use]
    pub fn count_in_realm(&self, realm: &RealmName) -> usize {
        self.table().per_realm.get(realm).copied().unwrap_or(0)
    }

    /// The identities that are connected now or about to be, of one realm or of all.
    #[must_use]
    pub fn identities(&self, realm: Option<&RealmName>) -> Vec<Identity> {
        let table = self.table();
        let of_realm = |identity: &&Identity| realm.is_none_or(|realm| identity.realm == *realm);
        let arriving = table.arriving.keys();
        let mut found: Vec<_> = table
            .owners
            .keys()
            .chain(arriving)
            .filter(of_realm)
            .cloned()
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// The certificates of the live connections, to be verified again.
    #[must_use]
    pub fn certificates(&self) -> Vec<(Identity, Arc<PeerCertificate>)> {
        let table = self.table();
        let with_certificate = table
            .owners
            .iter()
            .filter_map(|(identity, owner)| Some((identity.clone(), owner.certificate.clone()?)));
        with_certificate.collect()
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // nothing panics while it is held; what is in it would be whole all the same
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Whoever is judged for `identity` has to be judged again.
    fn changed(&mut self, identity: &Identity) {
        if let Some(arriving) = self.arriving.get_mut(identity) {
            arriving.changes += 1;
        }
    }
}

/// A connection that is judged.
#[derive(Debug)]
#[must_use = "dropping it forgets what happened meanwhile"]
pub struct Arrival {
    owners: Owners,
    identity: Identity,
    seen: u64,
}

impl Arrival {
    /// Whether its identity was kicked, left or changed since it arrived; asked once it is claimed.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        let table = self.owners.table();
        let arriving = table.arriving.get(&self.identity);
        arriving.is_none_or(|arriving| arriving.changes != self.seen)
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut table = self.owners.table();
        if let Some(arriving) = table.arriving.get_mut(&self.identity) {
            arriving.connections -= 1;
            if arriving.connections == 0 {
                table.arriving.remove(&self.identity);
            }
        }
    }
}

impl Owner {
    /// The first reason stands: a connection that is on its way out goes for what it was told.
    fn kick(&self, reason: DisconnectReason) {
        self.orders.send_if_modified(|orders| {
            let first = orders.kick.is_none();
            orders.kick.get_or_insert(reason);
            first
        });
    }
}

/// The right to be the connection of an identity; given back when dropped, which must be after the
/// engine was told that the device is disconnected.
#[derive(Debug)]
#[must_use = "dropping it lets the next connection in"]
pub struct Claim {
    owners: Owners,
    identity: Identity,
    orders: watch::Receiver<Orders>,
    gone: CancellationToken,
}

impl Claim {
    /// Whose connection it is.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Waits until this connection has to go, and says why.
    ///
    /// # Cancel safety
    /// It is: what was said is found by the next call.
    pub async fn kicked(&self) -> DisconnectReason {
        let mut orders = self.orders.clone();
        let told = orders.wait_for(|orders| orders.kick.is_some()).await;
        match told.ok().and_then(|orders| orders.kick) {
            Some(reason) => reason,
            // cannot be: the sender lives in the table as long as this claim does
            None => std::future::pending().await,
        }
    }

    /// Waits for the next order to this connection. Once it has to leave, nothing else is said.
    ///
    /// # Cancel safety
    /// It is: an order is taken by the call that returns it.
    pub async fn order(&mut self) -> Order {
        loop {
            if self.orders.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let orders = self.orders.borrow_and_update();
            if let Some(reason) = orders.kick {
                return Order::Leave(reason);
            }
            if let Some(introspection) = &orders.introspection {
                return Order::Introspection(Arc::clone(introspection));
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = self.owners.table();
        table.owners.remove(&self.identity);
        table.changed(&self.identity);
        if let Some(count) = table.per_realm.get_mut(&self.identity.realm) {
            *count -= 1;
            if *count == 0 {
                table.per_realm.remove(&self.identity.realm);
            }
        }
        drop(table);
        self.owners.0.live.fetch_sub(1, Ordering::Relaxed);
        self.gone.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio_util::task::TaskTracker;

    use super::*;

    fn device() -> Identity {
        "acme/Zm9vYmFyYmF6cXV4MTIzNA".parse().expect("canonical")
    }

    #[tokio::test]
    async fn a_new_claim_kicks_the_old_one_and_waits_until_it_is_gone() {
        let (owners, device) = (Owners::default(), device());
        let old = owners.claim(&device, None).await.expect("free");
        let mut new = pinned(owners.claim(&device, None));
        assert!(futures_util::poll!(new.as_mut()).is_pending());
        assert_eq!(old.kicked().await, DisconnectReason::TakenOver);
        assert_eq!(
            old.kicked().await,
            DisconnectReason::TakenOver,
            "is remembered"
        );
        assert!(futures_util::poll!(new.as_mut()).is_pending());
        drop(old);
        let new = new.await.expect("is the newest");
        assert_eq!((owners.len(), owners.count_in_realm(&device.realm)), (1, 1));
        drop(new);
        assert_eq!((owners.len(), owners.count_in_realm(&device.realm)), (0, 0));
    }

    /// A pinned future, to be polled by hand.
    fn pinned<F: Future>(future: F) -> std::pin::Pin<Box<F>> {
        Box::pin(future)
    }

    #[tokio::test]
    async fn the_newest_wins_and_those_before_it_are_turned_away() {
        let (owners, device) = (Owners::default(), device());
        let first = owners.claim(&device, None).await.expect("free");
        let mut second = pinned(owners.claim(&device, None));
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        let mut third = pinned(owners.claim(&device, None));
        assert!(futures_util::poll!(third.as_mut()).is_pending());
        // at once, however long the first takes to go
        assert_eq!(second.await.err(), Some(Outrun));
        drop(first);
        let third = third.await.expect("is the newest");
        assert!(futures_util::poll!(pinned(third.kicked())).is_pending());
    }

    #[tokio::test]
    async fn who_arrives_learns_of_what_happened_to_its_identity_meanwhile() {
        let (owners, device) = (Owners::default(), device());
        let arrival = owners.arrive(&device);
        assert!(!arrival.is_stale());
        assert_eq!(owners.identities(None), std::slice::from_ref(&device));
        let kicked = owners.kick(&device, DisconnectReason::Inhibited).await;
        assert!(!kicked && arrival.is_stale(), "a kick that found nobody");
        drop(arrival);

        let arrival = owners.arrive(&device);
        drop(owners.claim(&device, None).await);
        assert!(arrival.is_stale(), "another one came and left");
        drop(arrival);

        let arrival = owners.arrive(&device);
        owners.refresh_introspection(&device, Arc::default());
        assert!(arrival.is_stale(), "it declares something else");
        drop(arrival);
        assert!(owners.table().arriving.is_empty());
    }

    #[tokio::test]
    async fn the_first_reason_of_a_kick_stands() {
        let owners = Owners::default();
        let claim = owners.claim(&device(), None).await.expect("free");
        let gone = owners
            .tell_to_go(&device(), DisconnectReason::Inhibited)
            .expect("is there");
        assert!(
            owners
                .tell_to_go(&device(), DisconnectReason::Administrative)
                .is_some()
        );
        assert_eq!(claim.kicked().await, DisconnectReason::Inhibited);
        assert!(!gone.is_cancelled());
        drop(claim);
        assert!(gone.is_cancelled());
        assert!(
            !owners
                .kick(&device(), DisconnectReason::Administrative)
                .await
        );
    }

    #[tokio::test]
    async fn an_introspection_reaches_the_connection_once_for_each_change() {
        let owners = Owners::default();
        let mut claim = owners.claim(&device(), None).await.expect("free");
        assert!(futures_util::poll!(pinned(claim.order())).is_pending());
        let introspection = Arc::new(Introspection::default());
        owners.refresh_introspection(&device(), Arc::clone(&introspection));
        let Order::Introspection(new) = claim.order().await else {
            panic!("stays")
        };
        assert!(Arc::ptr_eq(&new, &introspection));
        assert!(futures_util::poll!(pinned(claim.order())).is_pending());
        let _ = owners.tell_to_go(&device(), DisconnectReason::Inhibited);
        let Order::Leave(reason) = claim.order().await else {
            panic!("leaves")
        };
        assert_eq!(reason, DisconnectReason::Inhibited);
    }

    /// The presence of a device as its connections tell it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn fc_014_connected_and_disconnected_strictly_alternate_over_1000_takeovers() {
        let (owners, tracker) = (Owners::default(), TaskTracker::new());
        let events: Arc<Mutex<Vec<(&str, u32)>>> = Arc::default();
        for number in 0..1_000 {
            let (owners, events) = (owners.clone(), Arc::clone(&events));
            tracker.spawn(async move {
                let Ok(claim) = owners.claim(&device(), None).await else {
                    return;
                };
                events.lock().unwrap().push(("connected", number));
                claim.kicked().await;
                tokio::task::yield_now().await;
                events.lock().unwrap().push(("disconnected", number));
                drop(claim);
            });
        }
        // whoever won in the end stays connected until it is told to go
        while owners.is_empty() || tracker.len() > 1 {
            tokio::task::yield_now().await;
        }
        assert!(
            owners
                .kick(&device(), DisconnectReason::Administrative)
                .await
        );
        tracker.close();
        tracker.wait().await;
        let events = events.lock().unwrap();
        assert!(events.len() >= 2 && events.len().is_multiple_of(2));
        for pair in events.chunks(2) {
            assert_eq!((pair[0].0, pair[1].0), ("connected", "disconnected"));
            assert_eq!(pair[0].1, pair[1].1, "one connection at a time");
        }
    }
}
