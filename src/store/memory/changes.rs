//! Changes. The caller throws the state away when one fails.

use std::collections::{BTreeMap, HashSet, VecDeque};

use super::{Device, State};
use crate::{
    clock::Timestamp,
    identity::{Identity, RealmName},
    interface::Introspection,
    store::{CaRow, Change, DeviceRow, SecretHash, StoreError, Subject},
};

impl State {
    /// Makes a change; the state is of no use any more when it fails.
    pub(super) fn change(&mut self, change: Change) -> Result<(), StoreError> {
        match change {
            Change::CreateRealm(realm, ca) => {
                if self.realms.contains_key(&realm.name) {
                    return Err(StoreError::Conflict(Subject::Realm));
                }
                self.realms.insert(realm.name.clone(), realm);
                self.add_ca(ca)
            }
            Change::UpdateRealm { .. } => self.update_realm(change),
            Change::DeleteRealm(realm) => self.delete_realm(&realm),
            Change::AddCa(ca) => self.add_ca(ca),
            Change::RemoveCa(realm, fingerprint) => {
                let before = self.cas.len();
                self.cas
                    .retain(|ca| (&ca.realm, &ca.fingerprint) != (&realm, &fingerprint));
                found(self.cas.len() < before, Subject::Ca)
            }
            Change::RegisterDevice {
                identity,
                secret,
                introspection,
                at,
            } => self.register(&identity, secret, introspection.as_ref(), at),
            Change::Revoke(row) => {
                found(
                    self.realms.contains_key(&row.identity.realm),
                    Subject::Realm,
                )?;
                let key = (row.identity.clone(), row.serial.clone());
                self.revocations.entry(key).or_insert(row);
                Ok(())
            }
            Change::PatchDevice { .. } => self.patch(change),
            Change::DeleteDevice(identity) => {
                self.outbox.retain(|row| row.identity != identity);
                found(self.devices.remove(&identity).is_some(), Subject::Device)
            }
            Change::InstallInterface(row) => {
                found(self.realms.contains_key(&row.realm), Subject::Realm)?;
                let key = (row.realm.clone(), row.key.clone());
                match self.interfaces.insert(key, row) {
                    Some(_) => Err(StoreError::Conflict(Subject::Interface)),
                    None => Ok(()),
                }
            }
            Change::UpdateInterface(row) => {
                let key = (row.realm.clone(), row.key.clone());
                found(
                    self.interfaces.insert(key, row).is_some(),
                    Subject::Interface,
                )
            }
            Change::DeleteInterface(realm, key) => {
                for (identity, device) in &mut self.devices {
                    if identity.realm == realm {
                        device.samples.retain(|(interface, _), _| *interface != key);
                        device
                            .properties
                            .retain(|(interface, _), _| *interface != key);
                    }
                }
                found(
                    self.interfaces.remove(&(realm, key)).is_some(),
                    Subject::Interface,
                )
            }
            Change::Note => Ok(()),
            change => self.change_row(change),
        }
    }

    /// Changes that concern the row of one device alone.
    fn change_row(&mut self, change: Change) -> Result<(), StoreError> {
        match change {
            Change::UnregisterDevice(identity) => {
                let row = self.row(&identity)?;
                row.secret = None;
                row.first_credentials_request = None;
            }
            Change::ReplaceSecret(identity, secret) => self.row(&identity)?.secret = Some(secret),
            Change::RecordCertificate {
                identity,
                serial,
                aki,
                not_after,
                ip,
                at,
            } => {
                let row = self.row(&identity)?;
                row.certificate_serial = Some(serial);
                row.certificate_aki = Some(aki);
                row.certificate_not_after = Some(not_after);
                row.last_credentials_request_ip = ip;
                row.first_credentials_request.get_or_insert(at);
            }
            Change::BeginDeviceDeletion(identity) => {
                self.row(&identity)?.deletion_in_progress = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn row(&mut self, identity: &Identity) -> Result<&mut DeviceRow, StoreError> {
        let device = self.devices.get_mut(identity);
        device
            .map(|device| &mut device.row)
            .ok_or(StoreError::NotFound(Subject::Device))
    }

    fn add_ca(&mut self, ca: CaRow) -> Result<(), StoreError> {
        found(self.realms.contains_key(&ca.realm), Subject::Realm)?;
        let mut of_realm = self.cas.iter_mut().filter(|known| known.realm == ca.realm);
        if of_realm.any(|known| known.fingerprint == ca.fingerprint) {
            return Err(StoreError::Conflict(Subject::Ca));
        }
        if ca.issuing {
            for known in self.cas.iter_mut().filter(|known| known.realm == ca.realm) {
                known.issuing = false;
            }
        }
        self.cas.push(ca);
        Ok(())
    }

    fn update_realm(&mut self, change: Change) -> Result<(), StoreError> {
        let Change::UpdateRealm {
            realm,
            jwt_public_key_pem,
            jwt_private_key_sealed,
            device_registration_limit,
            datastream_maximum_storage_retention,
        } = change
        else {
            return Ok(());
        };
        let row = self
            .realms
            .get_mut(&realm)
            .ok_or(StoreError::NotFound(Subject::Realm))?;
        if let Some(key) = jwt_public_key_pem {
            row.jwt_public_key_pem = key;
            row.jwt_private_key_sealed = None;
        }
        if jwt_private_key_sealed.is_some() {
            row.jwt_private_key_sealed = jwt_private_key_sealed;
        }
        if let Some(limit) = device_registration_limit {
            row.device_registration_limit = limit;
        }
        if let Some(retention) = datastream_maximum_storage_retention {
            row.datastream_maximum_storage_retention = retention;
        }
        Ok(())
    }

    fn delete_realm(&mut self, realm: &RealmName) -> Result<(), StoreError> {
        self.devices.retain(|identity, _| identity.realm != *realm);
        self.cas.retain(|ca| ca.realm != *realm);
        self.revocations
            .retain(|(identity, _), _| identity.realm != *realm);
        self.interfaces.retain(|(of, _), _| of != realm);
        self.outbox.retain(|row| row.identity.realm != *realm);
        found(self.realms.remove(realm).is_some(), Subject::Realm)
    }

    fn register(
        &mut self,
        identity: &Identity,
        secret: SecretHash,
        introspection: Option<&Introspection>,
        at: Timestamp,
    ) -> Result<(), StoreError> {
        if !self.devices.contains_key(identity) {
            let realm = self.realms.get(&identity.realm);
            let realm = realm.ok_or(StoreError::NotFound(Subject::Realm))?;
            let known = self
                .devices
                .keys()
                .filter(|known| known.realm == identity.realm)
                .count();
            if realm
                .device_registration_limit
                .is_some_and(|limit| known as u64 >= limit)
            {
                return Err(StoreError::LimitReached);
            }
            self.devices
                .insert(identity.clone(), Device::new(identity.clone(), at));
        }
        let device = self
            .devices
            .get_mut(identity)
            .ok_or(StoreError::NotFound(Subject::Device))?;
        let confirmed =
            device.row.first_credentials_request.is_some() && device.row.secret.is_some();
        if confirmed || device.row.deletion_in_progress {
            return Err(StoreError::Conflict(Subject::Device));
        }
        device.row.secret = Some(secret);
        device.row.credentials_inhibited = false;
        if let Some(new) = introspection {
            device.declare(new);
        }
        Ok(())
    }

    fn patch(&mut self, change: Change) -> Result<(), StoreError> {
        let Change::PatchDevice {
            identity,
            aliases,
            attributes,
            credentials_inhibited,
        } = change
        else {
            return Ok(());
        };
        let row = self.row(&identity)?;
        if let Some(inhibited) = credentials_inhibited {
            row.credentials_inhibited = inhibited;
        }
        for (name, value) in attributes {
            match value {
                Some(value) => drop(row.attributes.insert(name, value)),
                None => drop(row.attributes.remove(&name)),
            }
        }
        for (tag, alias) in &aliases {
            if row.aliases.remove(tag).is_none() && alias.is_none() {
                return Err(StoreError::NotFound(Subject::Alias));
            }
        }
        for (tag, alias) in aliases {
            let Some(alias) = alias else { continue };
            if self.device_by_alias(&identity.realm, &alias).is_some() {
                return Err(StoreError::Conflict(Subject::Alias));
            }
            self.row(&identity)?.aliases.insert(tag, alias);
        }
        Ok(())
    }
}

impl Device {
    /// A device that was just registered.
    fn new(identity: Identity, at: Timestamp) -> Self {
        let row = DeviceRow {
            identity,
            secret: None,
            credentials_inhibited: false,
            deletion_in_progress: false,
            first_registration: at,
            first_credentials_request: None,
            last_credentials_request_ip: None,
            certificate_serial: None,
            certificate_aki: None,
            certificate_not_after: None,
            introspection: Introspection::default(),
            previous_interfaces: BTreeMap::new(),
            connected: false,
            presence_sequence: 0,
            last_connection: None,
            last_disconnection: None,
            last_seen_ip: None,
            pending_empty_cache: false,
            total_received_msgs: 0,
            total_received_bytes: 0,
            aliases: BTreeMap::new(),
            attributes: BTreeMap::new(),
        };
        Self {
            row,
            exchanged: BTreeMap::new(),
            samples: BTreeMap::new(),
            properties: BTreeMap::new(),
            errors: VecDeque::new(),
            history: VecDeque::new(),
            receipts: HashSet::new(),
            tally: BTreeMap::new(),
        }
    }
}

fn found(found: bool, subject: Subject) -> Result<(), StoreError> {
    if found {
        Ok(())
    } else {
        Err(StoreError::NotFound(subject))
    }
}
