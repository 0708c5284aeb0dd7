//! How many connections and handshakes there may be, in all and from one address.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::mqtt::broker::{BrokerSettings, ConnectOutcome};

/// Counts who is here.
#[derive(Debug)]
pub(in crate::mqtt) struct Admission {
    connections_max: usize,
    connections_per_address_max: usize,
    handshakes_per_address_max: usize,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    connections: usize,
    /// Only addresses that have a connection.
    addresses: HashMap<IpAddr, Held>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    connections: usize,
    handshakes: usize,
}

impl Admission {
    pub(in crate::mqtt) fn new(settings: &BrokerSettings) -> Self {
        Self {
            connections_max: settings.connections_max,
            connections_per_address_max: settings.connections_per_address_max,
            handshakes_per_address_max: settings.handshakes_per_address_max,
            present: Mutex::default(),
        }
    }

    /// Takes a place for a connection whose handshake begins.
    ///
    /// # Errors
    /// Which limit was reached.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Place, ConnectOutcome> {
        let address = site(address);
        let mut present = self.present();
        if present.connections >= self.connections_max {
            return Err(ConnectOutcome::TooMany);
        }
        let held = present.addresses.get(&address).copied().unwrap_or_default();
        if held.connections >= self.connections_per_address_max
            || held.handshakes >= self.handshakes_per_address_max
        {
            return Err(ConnectOutcome::TooManyFromAddress);
        }
        let held = Held {
            connections: held.connections + 1,
            handshakes: held.handshakes + 1,
        };
        present.addresses.insert(address, held);
        present.connections += 1;
        drop(present);
        Ok(Place {
            admission: Arc::clone(self),
            address,
            is_shaking_hands: true,
        })
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whom an address stands for: itself, or the /64 that an IPv6 host can choose its own from.
fn site(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let network = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
    }
}

/// The place of one connection, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    admission: Arc<Admission>,
    address: IpAddr,
    is_shaking_hands: bool,
}

impl Place {
    /// The handshake is over, one way or the other.
    pub(super) fn handshake_ended(&mut self) {
        if self.is_shaking_hands {
            self.is_shaking_hands = false;
            if let Some(held) = self.admission.present().addresses.get_mut(&self.address) {
                held.handshakes -= 1;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.handshake_ended();
        let mut present = self.admission.present();
        present.connections -= 1;
        if let Some(held) = present.addresses.get_mut(&self.address) {
            held.connections -= 1;
            if held.connections == 0 {
                present.addresses.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(connections: usize, per_address: usize, handshakes: usize) -> Arc<Admission> {
        Arc::new(Admission::new(&BrokerSettings {
            connections_max: connections,
            connections_per_address_max: per_address,
            handshakes_per_address_max: handshakes,
            ..BrokerSettings::default()
        }))
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn connections_are_limited_in_all_and_places_come_back() {
        let admission = admission(2, 10, 10);
        let first = admission.enter(address("192.0.2.1")).expect("room");
        let _second = admission.enter(address("192.0.2.2")).expect("room");
        let refused = admission.enter(address("192.0.2.3"));
        assert_eq!(refused.err(), Some(ConnectOutcome::TooMany));
        drop(first);
        assert!(admission.enter(address("192.0.2.3")).is_ok());
        assert_eq!(
            admission.present().addresses.len(),
            1,
            "nothing is kept of those who left"
        );
    }

    #[test]
    fn connections_of_one_address_are_limited_and_do_not_hinder_another() {
        let admission = admission(100, 2, 10);
        let _kept = [(); 2].map(|()| admission.enter(address("192.0.2.1")).expect("room"));
        // the same host, seen through an IPv6 socket
        let refused = admission.enter(address("::ffff:192.0.2.1"));
        assert_eq!(refused.err(), Some(ConnectOutcome::TooManyFromAddress));
        assert!(admission.enter(address("192.0.2.2")).is_ok());
    }

    #[test]
    fn one_ipv6_network_is_one_address() {
        let admission = admission(100, 1, 10);
        let _kept = admission.enter(address("2001:db8::1")).expect("room");
        let refused = admission.enter(address("2001:db8::2"));
        assert_eq!(refused.err(), Some(ConnectOutcome::TooManyFromAddress));
        assert!(admission.enter(address("2001:db8:0:1::1")).is_ok());
    }

    #[test]
    fn handshakes_under_way_are_limited_apart() {
        let admission = admission(100, 100, 1);
        let mut first = admission.enter(address("192.0.2.1")).expect("room");
        let refused = admission.enter(address("192.0.2.1"));
        assert_eq!(refused.err(), Some(ConnectOutcome::TooManyFromAddress));
        first.handshake_ended();
        assert!(admission.enter(address("192.0.2.1")).is_ok());
    }
}
