//! Which chains are let in, asked of the pools directly.

use std::time::Instant;

use rcgen::{
    BasicConstraints, CertificateRevocationListParams, DnType, IsCa, KeyIdMethod, KeyUsagePurpose,
    RevokedCertParams, SerialNumber, string::PrintableString,
};

use super::*;
use crate::pki::{Cause, ChainReason, PoolError, Verdict};

/// The reason why the chain is refused, if it is.
fn refused(pools: &Pools, leaf: &TestLeaf) -> Option<ChainReason> {
    pools
        .accept(&leaf.chain, now())
        .err()
        .map(|error| error.reason)
}

fn crl(ca: &TestCa, serials: &[&TestLeaf]) -> String {
    let params = CertificateRevocationListParams {
        this_update: now().saturating_sub(DAY).to_offset_date_time(),
        next_update: now().saturating_add(DAY).to_offset_date_time(),
        crl_number: SerialNumber::from(1_u64),
        issuing_distribution_point: None,
        revoked_certs: serials
            .iter()
            .map(|leaf| RevokedCertParams {
                serial_number: leaf.params.serial_number.clone().unwrap(),
                revocation_time: now().saturating_sub(DAY).to_offset_date_time(),
                reason_code: None,
                invalidity_date: None,
            })
            .collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    params.signed_by(&ca.issuer()).unwrap().pem().unwrap()
}

#[test]
fn a_device_of_its_realms_ca_is_let_in() {
    let realms = TwoRealms::new();
    let leaf = realms.acme.leaf(format!("acme/{D1}"));
    let (identity, peer) = realms.pools.accept(&leaf.chain, now()).unwrap();

    assert_eq!(identity, device("acme", D1));
    assert_eq!(peer.serial, leaf.serial());
    assert_eq!(peer.not_after.to_string(), "2026-05-01T10:20:30.000Z");
    assert_eq!(
        peer.ca_fingerprint,
        crate::pki::fingerprint(&realms.acme.der)
    );
    assert_eq!(peer.chain.len(), 1);
    assert_eq!(
        realms.pools.verify(&identity, &peer.chain, now()).unwrap(),
        peer
    );
    let other = realms
        .pools
        .verify(&device("acme", D2), &peer.chain, now())
        .unwrap_err();
    assert_eq!(other.reason, ChainReason::OtherIdentity);
}

#[test]
fn fc_065_a_certificate_of_one_realms_ca_cannot_name_another_realm() {
    let realms = TwoRealms::new();
    let intermediate = realms.globex.below("globex intermediate");
    let name = format!("acme/{D1}");
    let chains = [
        realms.globex.leaf(name.as_str()),
        intermediate.leaf(name.as_str()).with(&[&intermediate.der]),
        realms.globex.leaf(name.as_str()).with(&[&realms.acme.der]),
        intermediate
            .leaf(name.as_str())
            .with(&[&intermediate.der, &realms.acme.der]),
    ];
    for leaf in &chains {
        let error = realms.pools.accept(&leaf.chain, now()).unwrap_err();
        assert_eq!(error.reason, ChainReason::UnknownIssuer);
        assert_eq!(error.realm, Some(realm("acme")));
        assert!(["CN=CA-G", "CN=globex intermediate"].contains(&error.issuer.as_str()));
    }
    let unknown = realms.acme.leaf(format!("initech/{D1}"));
    let error = realms.pools.accept(&unknown.chain, now()).unwrap_err();
    assert_eq!(
        (error.reason, error.realm),
        (ChainReason::UnknownRealm, None)
    );
}

#[test]
fn fc_074_only_the_exact_form_is_an_identity() {
    let realms = TwoRealms::new();
    let long = "a".repeat(64);
    let names = [
        "acme".to_owned(),
        "acme/".to_owned(),
        format!("/{D1}"),
        format!("acme/{D1}/x"),
        format!("acme//{D1}"),
        format!(" acme/{D1}"),
        format!("acme/{D1} "),
        format!("ACME/{D1}"),
        format!("acme/{}", &D1[..21]),
        format!("acme/{}B", &D1[..21]),
        format!("acme/{D1}AAAA"),
        format!("acme/{D1}=="),
        format!("acme/{}+", &D1[..21]),
        "acme/+".to_owned(),
        format!("+/{D1}"),
        "#".to_owned(),
        format!("{long}/{D1}"),
        String::new(),
        format!("acme/{D1}\0"),
        "acme/\u{fffd}".to_owned(),
    ];
    for name in names {
        let leaf = realms.acme.leaf(name.as_str());
        assert_eq!(
            refused(&realms.pools, &leaf),
            Some(ChainReason::CommonName),
            "{name:?}"
        );
    }
    let nameless = realms.acme.leaf_with(|params| {
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, format!("acme/{D1}"));
    });
    assert_eq!(
        refused(&realms.pools, &nameless),
        Some(ChainReason::CommonName)
    );
}

#[test]
fn fc_074_two_common_names_are_none() {
    let made = openssl(&[
        "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out key.pem",
        &format!("req -x509 -new -key key.pem -subj /CN=acme\\/{D1}/CN=acme\\/{D2} -out two.crt"),
        &format!("req -x509 -new -key key.pem -subj /CN=acme\\/{D1}+CN=acme\\/{D1} -out multi.crt"),
        "req -x509 -new -key key.pem -subj /CN=acme -out one.crt",
    ]);
    for (file, expected) in [
        ("two.crt", crate::pki::CnError::Several),
        ("multi.crt", crate::pki::CnError::Several),
        ("one.crt", crate::identity::InvalidIdentity::Shape.into()),
    ] {
        let der = pem::parse(read(&made, file)).unwrap();
        assert_eq!(
            crate::pki::identity_of(der.contents()),
            Err(expected),
            "{file}"
        );
    }
}

#[test]
fn no_rubbish_is_an_identity_or_a_panic() {
    let realms = TwoRealms::new();
    let good = realms.acme.leaf(format!("acme/{D1}")).chain[0].to_vec();
    let none: [&[u8]; 0] = [];
    assert_eq!(
        realms.pools.accept(&none, now()).unwrap_err().reason,
        ChainReason::NotACertificate
    );
    for index in 0..good.len() {
        let cut = realms.pools.accept(&[&good[..index]], now()).unwrap_err();
        assert_eq!(cut.reason, ChainReason::NotACertificate);
        let mut changed = good.clone();
        changed[index] ^= 0x01;
        assert!(
            realms.pools.accept(&[&changed], now()).is_err(),
            "byte {index} may be changed"
        );
    }
    let mut longer = good;
    longer.push(0);
    assert!(realms.pools.accept(&[&longer], now()).is_err());
}

#[test]
fn fc_075_printable_string_and_utf8_string_are_the_same_identity() {
    let realms = TwoRealms::new();
    let name = format!("acme/{D1}");
    let printable = PrintableString::try_from(name.as_str()).unwrap();
    let leaves = [
        realms.acme.leaf(DnValue::PrintableString(printable)),
        realms.acme.leaf(name.as_str()),
    ];
    for leaf in &leaves {
        assert_eq!(
            realms.pools.accept(&leaf.chain, now()).unwrap().0,
            device("acme", D1)
        );
    }
    // other string types are no identity
    let ia5 = rcgen::string::Ia5String::try_from(name.as_str()).unwrap();
    let leaf = realms.acme.leaf(DnValue::Ia5String(ia5));
    assert_eq!(refused(&realms.pools, &leaf), Some(ChainReason::CommonName));
}

#[test]
fn fc_075_an_issuer_of_another_string_type_is_refused_as_unknown() {
    // path building compares names byte by byte; the log line names the issuer
    let printable = PrintableString::try_from("Acme Root").unwrap();
    let ca = TestCa::root_with(|params| {
        params.distinguished_name = common_name(DnValue::PrintableString(printable));
    });
    let pools = Pools::new();
    pools.replace(&realm("acme"), &contents(&[&ca])).unwrap();
    let same_key_other_name = TestCa {
        params: TestCa::params(|params| params.distinguished_name = common_name("Acme Root")),
        key: KeyPair::try_from(ca.key.serialize_der()).unwrap(),
        der: ca.der.clone(),
    };
    let leaf = same_key_other_name.leaf(format!("acme/{D1}"));
    let error = pools.accept(&leaf.chain, now()).unwrap_err();
    assert_eq!(error.reason, ChainReason::UnknownIssuer);
    assert!(error.detail.contains("UTF8String"), "{error}");
    assert!(error.detail.contains("PrintableString"), "{error}");
}

#[test]
fn fc_077_devices_with_intermediates_connect_when_only_the_root_is_in_the_pool() {
    let realms = TwoRealms::new();
    let one = realms.acme.below("one");
    let two = one.below("two");
    let name = format!("acme/{D1}");
    let unrelated = &realms.globex.der;
    let accepted = [
        one.leaf(name.as_str()).with(&[&one.der]),
        two.leaf(name.as_str()).with(&[&two.der, &one.der]),
        // in any order, and with more than is needed
        two.leaf(name.as_str()).with(&[&one.der, &two.der]),
        two.leaf(name.as_str())
            .with(&[unrelated, &one.der, &two.der]),
        two.leaf(name.as_str())
            .with(&[&two.der, &one.der, &realms.acme.der]),
    ];
    for leaf in &accepted {
        assert_eq!(refused(&realms.pools, leaf), None);
    }
    let without = two.leaf(name.as_str()).with(&[&one.der]);
    assert_eq!(
        refused(&realms.pools, &without),
        Some(ChainReason::UnknownIssuer)
    );

    realms
        .pools
        .replace(&realm("acme"), &contents(&[&two]))
        .unwrap();
    assert_eq!(refused(&realms.pools, &two.leaf(name.as_str())), None);
    assert_eq!(
        refused(&realms.pools, &one.leaf(name.as_str()).with(&[&one.der])),
        Some(ChainReason::UnknownIssuer)
    );
}

#[test]
fn fc_077_what_is_no_ca_cannot_issue() {
    let realms = TwoRealms::new();
    let name = format!("acme/{D1}");
    let as_ca = |params: &mut CertificateParams| {
        params.distinguished_name = common_name(format!("acme/{D2}"));
    };
    // a device's certificate used as a CA
    let device = realms.acme.leaf_with(|params| {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        as_ca(params);
    });
    let abused = TestCa {
        params: device.params,
        key: device.key,
        der: device.chain[0].clone(),
    };
    let leaf = abused.leaf(name.as_str()).with(&[&abused.der]);
    assert_eq!(refused(&realms.pools, &leaf), Some(ChainReason::NotACa));

    // an intermediate that does not say what it is
    let silent = realms.acme.below_with(|params| {
        params.is_ca = IsCa::NoCa;
        params.distinguished_name = common_name("silent");
    });
    let leaf = silent.leaf(name.as_str()).with(&[&silent.der]);
    assert_eq!(refused(&realms.pools, &leaf), Some(ChainReason::NotACa));

    // path length 0 issues leaves, but no CAs
    let last = realms.acme.below_with(|params| {
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.distinguished_name = common_name("last");
    });
    assert_eq!(
        refused(&realms.pools, &last.leaf(name.as_str()).with(&[&last.der])),
        None
    );
    let beyond = last.below("beyond");
    let leaf = beyond.leaf(name.as_str()).with(&[&beyond.der, &last.der]);
    assert_eq!(
        refused(&realms.pools, &leaf),
        Some(ChainReason::InvalidChain)
    );
}

#[test]
fn fc_077_long_and_tangled_chains_are_refused_quickly() {
    let realms = TwoRealms::new();
    let mut chain = vec![realms.acme.below("1")];
    for depth in 2..=11 {
        let next = chain.last().unwrap().below(&depth.to_string());
        chain.push(next);
    }
    let name = format!("acme/{D1}");
    let others: Vec<_> = chain.iter().rev().map(|ca| &ca.der).collect();
    let leaf = chain.last().unwrap().leaf(name.as_str()).with(&others);
    assert_eq!(leaf.chain.len(), 12);
    assert_eq!(
        refused(&realms.pools, &leaf),
        Some(ChainReason::ChainTooLong)
    );

    // all of one name, so that every order would have to be tried
    let tangled: Vec<_> = (0..7).map(|_| TestCa::root("tangled")).collect();
    let others: Vec<_> = tangled.iter().map(|ca| &ca.der).collect();
    let leaf = tangled[0].leaf(name.as_str()).with(&others);
    #[expect(
        clippy::disallowed_methods,
        reason = "measures how long it really takes"
    )]
    let (error, took) = {
        let start = Instant::now();
        (refused(&realms.pools, &leaf), start.elapsed())
    };
    eprintln!("tangled: {took:?}");
    assert!(error.is_some());
    assert!(took.as_millis() < 1000, "{took:?}");
}

#[test]
fn a_leaf_without_client_auth_is_refused() {
    let realms = TwoRealms::new();
    for usages in [vec![], vec![ExtendedKeyUsagePurpose::ServerAuth]] {
        let leaf = realms.acme.leaf_with(|params| {
            params.distinguished_name = common_name(format!("acme/{D1}"));
            params.extended_key_usages = usages;
        });
        assert_eq!(
            refused(&realms.pools, &leaf),
            Some(ChainReason::NoClientAuth)
        );
    }
}

#[test]
fn fc_072_a_certificate_is_good_until_its_last_second_and_not_after_it() {
    let realms = TwoRealms::new();
    let leaf = realms.acme.leaf(format!("acme/{D1}"));
    let (identity, peer) = realms.pools.accept(&leaf.chain, now()).unwrap();
    let second = std::time::Duration::from_secs(1);

    assert!(
        realms
            .pools
            .verify(&identity, &peer.chain, peer.not_after)
            .is_ok()
    );
    let after = peer.not_after.saturating_add(second);
    let error = realms
        .pools
        .verify(&identity, &peer.chain, after)
        .unwrap_err();
    assert_eq!(error.reason, ChainReason::Expired);
    let before = now().saturating_sub(2 * DAY);
    let error = realms
        .pools
        .verify(&identity, &peer.chain, before)
        .unwrap_err();
    assert_eq!(error.reason, ChainReason::NotYetValid);
}

#[test]
fn what_was_good_once_is_looked_at_again_when_time_or_pool_move() {
    let realms = TwoRealms::new();
    let short = realms.acme.below_with(|params| {
        params.distinguished_name = common_name("short");
        params.not_after = now().saturating_add(DAY).to_offset_date_time();
    });
    let leaf = short
        .leaf(format!("acme/{D1}"))
        .with(&[&short.der, &realms.globex.der]);
    let ask = |at: Timestamp| {
        let accepted = realms.pools.accept(&leaf.chain, at);
        accepted.map(|(_, peer)| peer).map_err(|error| error.reason)
    };
    let first = ask(now()).unwrap();
    assert_eq!(ask(now()).unwrap(), first);
    assert_eq!(
        ask(now().saturating_add(2 * DAY)),
        Err(ChainReason::Expired)
    );
    assert_eq!(
        ask(now().saturating_sub(2 * DAY)),
        Err(ChainReason::NotYetValid)
    );
    assert_eq!(ask(now()).unwrap(), first);

    let mut pool = contents(&[&realms.acme]);
    pool.crl_pem = Some(crl(&short, &[&leaf]));
    realms.pools.replace(&realm("acme"), &pool).unwrap();
    assert_eq!(ask(now()), Err(ChainReason::Revoked));
    let without_the_intermediate = realms.pools.accept(&leaf.chain[..1], now()).unwrap_err();
    assert_eq!(without_the_intermediate.reason, ChainReason::UnknownIssuer);
}

#[test]
fn an_expired_ca_lets_nobody_in() {
    let ca = TestCa::root_with(|params| {
        params.not_after = now().saturating_sub(DAY / 2).to_offset_date_time();
    });
    let pools = Pools::new();
    pools.replace(&realm("acme"), &contents(&[&ca])).unwrap();
    assert_eq!(
        refused(&pools, &ca.leaf(format!("acme/{D1}"))),
        Some(ChainReason::CaExpired)
    );
}

#[test]
fn fc_069_pools_and_crls_change_at_once_and_a_broken_one_changes_nothing() {
    let realms = TwoRealms::new();
    let acme = realm("acme");
    let newer = TestCa::root("CA-A2");
    let old = realms.acme.leaf(format!("acme/{D1}"));
    let new = newer.leaf(format!("acme/{D2}"));
    let check = |expected: [Option<ChainReason>; 2]| {
        assert_eq!(
            [refused(&realms.pools, &old), refused(&realms.pools, &new)],
            expected
        );
    };
    check([None, Some(ChainReason::UnknownIssuer)]);

    realms
        .pools
        .replace(&acme, &contents(&[&newer, &realms.acme]))
        .unwrap();
    check([None, None]);

    let mut with_crl = contents(&[&newer, &realms.acme]);
    with_crl.crl_pem = Some(crl(&realms.acme, &[&old]));
    realms.pools.replace(&acme, &with_crl).unwrap();
    check([Some(ChainReason::Revoked), None]);

    // broken in every way: the old state stays
    let forged = crl(&TestCa::root("CA-A2"), &[&new]);
    for broken in [
        "",
        "rubbish",
        "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n",
        &forged,
    ] {
        with_crl.crl_pem = Some(broken.to_owned());
        let error = realms.pools.replace(&acme, &with_crl).unwrap_err();
        assert!(matches!(error, PoolError::Crl { .. }), "{error}");
        assert!(error.to_string().contains("acme"));
        check([Some(ChainReason::Revoked), None]);
    }
    for broken in ["rubbish".to_owned(), new.pem(), old.pem() + &newer.pem()] {
        let mut broken_ca = contents(&[&newer]);
        broken_ca.certificates_pem.push(broken);
        let error = realms.pools.replace(&acme, &broken_ca).unwrap_err();
        assert!(matches!(error, PoolError::Ca { index: 2, .. }), "{error}");
        check([Some(ChainReason::Revoked), None]);
    }

    let mut by_serial = contents(&[&newer, &realms.acme]);
    by_serial.revoked = vec![(device("acme", D2).device, new.serial())];
    realms.pools.replace(&acme, &by_serial).unwrap();
    check([None, Some(ChainReason::Revoked)]);

    realms.pools.replace(&acme, &contents(&[])).unwrap();
    check([
        Some(ChainReason::UnknownIssuer),
        Some(ChainReason::UnknownIssuer),
    ]);
    realms.pools.remove(&acme);
    check([
        Some(ChainReason::UnknownRealm),
        Some(ChainReason::UnknownRealm),
    ]);
    let globex = realms.globex.leaf(format!("globex/{D1}"));
    assert_eq!(
        refused(&realms.pools, &globex),
        None,
        "another realm was touched"
    );
}

#[test]
fn a_crl_of_an_intermediate_counts() {
    let realms = TwoRealms::new();
    let intermediate = realms.acme.below("intermediate");
    let [revoked, good] = [D1, D2].map(|id| {
        intermediate
            .leaf(format!("acme/{id}"))
            .with(&[&intermediate.der])
    });
    let mut pool = contents(&[&realms.acme]);
    pool.crl_pem = Some(crl(&intermediate, &[&revoked]));
    realms.pools.replace(&realm("acme"), &pool).unwrap();
    assert_eq!(refused(&realms.pools, &revoked), Some(ChainReason::Revoked));
    assert_eq!(refused(&realms.pools, &good), None);
}

#[test]
fn a_serial_revokes_one_device_only() {
    // CAs that operators bring may count: two of them know the same serial
    let realms = TwoRealms::new();
    let numbered = |id: &str| {
        realms.acme.leaf_with(|params| {
            params.distinguished_name = common_name(format!("acme/{id}"));
            params.serial_number = Some(SerialNumber::from(7_u64));
        })
    };
    let mut pool = contents(&[&realms.acme]);
    pool.revoked = vec![(device("acme", D1).device, "7".to_owned())];
    realms.pools.replace(&realm("acme"), &pool).unwrap();
    assert_eq!(
        refused(&realms.pools, &numbered(D1)),
        Some(ChainReason::Revoked)
    );
    assert_eq!(refused(&realms.pools, &numbered(D2)), None);
}

#[test]
fn fc_084_the_verdict_says_whose_certificate_it_is() {
    let realms = TwoRealms::new();
    let d1 = device("acme", D1);
    let name = format!("acme/{D1}");
    let own = realms.acme.leaf(name.as_str());
    let until = realms.pools.accept(&own.chain, now()).unwrap().1.not_after;
    let verdict = |pem: &str| realms.pools.verdict(pem, &d1, now());
    assert_eq!(verdict(&own.pem()), Verdict::Valid { until });

    let expired = realms.acme.leaf_with(|params| {
        params.distinguished_name = common_name(name.as_str());
        params.not_after = now().saturating_sub(DAY / 2).to_offset_date_time();
    });
    let server_only = realms.acme.leaf_with(|params| {
        params.distinguished_name = common_name(name.as_str());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    let cases = [
        (realms.acme.leaf(format!("acme/{D2}")).pem(), Cause::Invalid),
        (
            realms.globex.leaf(format!("globex/{D1}")).pem(),
            Cause::Invalid,
        ),
        (expired.pem(), Cause::Expired),
        (
            realms.globex.leaf(name.as_str()).pem(),
            Cause::InvalidIssuer,
        ),
        (
            TestCa::root("CA-A").leaf(name.as_str()).pem(),
            Cause::InvalidSignature,
        ),
        (server_only.pem(), Cause::InvalidKeyUsage),
        ("rubbish".to_owned(), Cause::Invalid),
        (String::new(), Cause::Invalid),
        (own.pem() + &own.pem(), Cause::Invalid),
    ];
    for (pem, cause) in cases {
        assert_eq!(verdict(&pem), Verdict::Invalid(cause));
    }

    let mut pool = contents(&[&realms.acme]);
    pool.revoked = vec![(d1.device, own.serial())];
    realms.pools.replace(&realm("acme"), &pool).unwrap();
    assert_eq!(
        realms.pools.verdict(&own.pem(), &d1, now()),
        Verdict::Invalid(Cause::Revoked)
    );
    assert_eq!(
        Cause::MissingBasicConstraint.as_str(),
        "MISSING_BASIC_CONSTRAINT"
    );
}
