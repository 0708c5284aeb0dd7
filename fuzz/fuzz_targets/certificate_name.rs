//! The name in a certificate: as text, and as the DER around it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tanit::{
    identity::{DeviceId, Identity, RealmName},
    pki,
};

fuzz_target!(|data: &[u8]| {
    if let Ok(identity) = pki::identity_of(data) {
        check(&identity.to_string(), &identity);
    }
    let Ok(text) = str::from_utf8(data) else {
        return;
    };
    if let Ok(identity) = text.parse::<Identity>() {
        check(text, &identity);
    }
    if let Ok(realm) = text.parse::<RealmName>() {
        assert_eq!(realm.as_str(), text);
        assert!(!text.is_empty() && !text.contains(['/', '+', '#', '\0']));
    }
    if let Ok(device) = text.parse::<DeviceId>() {
        assert_eq!(device.to_string(), text, "one form");
        assert_eq!(text.len(), 22);
    }
    let _ = DeviceId::parse_extended(text);
});

/// An identity has one form, of two parts.
fn check(text: &str, identity: &Identity) {
    assert_eq!(identity.to_string(), text);
    let (realm, device) = text.split_once('/').expect("a slash");
    assert_eq!(identity.realm.as_str(), realm);
    assert_eq!(identity.device.to_string(), device);
    assert!(!device.contains('/'));
}
