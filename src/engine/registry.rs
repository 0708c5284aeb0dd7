//! Whether a device may connect: asked of the store at every CONNECT, so that the answer is never
//! older than the last change.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::Engine;
use crate::{
    identity::{Identity, RealmName},
    interface::Ownership,
    mqtt::{Admission, DeviceRegistry, PeerCertificate},
    store::{DeviceRow, StoreError},
};
use std::sync::Arc;

/// What an operator's inhibition of a device's credentials means on MQTT.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InhibitedDevices {
    /// It cannot connect, and is disconnected.
    #[default]
    Refuse,
    /// It goes on with the certificate that it has, and gets no new one (Astarte's rule).
    UntilCertificateExpiry,
}

#[async_trait]
impl DeviceRegistry for Engine {
    async fn admit(&self, identity: &Identity, certificate: Option<&PeerCertificate>) -> Admission {
        // a device that is kicked again and again is to be held off here
        self.ask(identity, certificate)
            .await
            .unwrap_or_else(|error| {
                if self.health.line_is_due() {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(
                        error,
                        "no device can be admitted: the store does not answer"
                    );
                }
                Admission::Unavailable
            })
    }

    fn ownership(&self, realm: &RealmName, interface: &str, major: u32) -> Option<Ownership> {
        Some(self.interfaces.get(realm, interface, major)?.ownership())
    }
}

impl Engine {
    async fn ask(
        &self,
        identity: &Identity,
        certificate: Option<&PeerCertificate>,
    ) -> Result<Admission, StoreError> {
        let Some(row) = self.store.device(identity).await? else {
            return Ok(Admission::Unknown);
        };
        if row.deletion_in_progress {
            return Ok(Admission::Deleting);
        }
        if row.credentials_inhibited && self.settings.inhibited_devices == InhibitedDevices::Refuse
        {
            return Ok(Admission::Inhibited);
        }
        if let Some(certificate) = certificate {
            if self.store.is_revoked(identity, &certificate.serial).await? {
                return Ok(Admission::Revoked);
            }
            if self.settings.enforce_latest_certificate && !is_latest(&row, certificate) {
                return Ok(Admission::Superseded);
            }
        }
        Ok(Admission::Allowed {
            introspection: Arc::new(row.introspection),
        })
    }
}

/// Whether it is the newest certificate that was issued to the device. One that was not issued here
/// never is.
fn is_latest(row: &DeviceRow, certificate: &PeerCertificate) -> bool {
    row.certificate_serial.as_deref() == Some(certificate.serial.as_str())
}
