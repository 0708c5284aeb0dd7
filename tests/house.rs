//! The house keeps to its plan: who may know whom, and which parts are pure.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn sources(below: &str) -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src")
        .join(below);
    let mut found = Vec::new();
    let mut open = vec![root.clone(), root.with_extension("rs")];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(
                fs::read_dir(&path)
                    .expect("it can be read")
                    .map(|entry| entry.expect("it can be read").path()),
            );
        } else if path.extension().is_some_and(|extension| extension == "rs") && path.exists() {
            let text = fs::read_to_string(&path).expect("a source file");
            let code = text
                .split("#[cfg(test)]")
                .next()
                .unwrap_or_default()
                .to_owned();
            let is_tests = path.components().any(|part| part.as_os_str() == "tests")
                || path.file_name().is_some_and(|name| name == "tests.rs");
            if !is_tests {
                found.push((path, code));
            }
        }
    }
    assert!(!found.is_empty(), "nothing found below {below}");
    found
}

fn assert_none_of(below: &str, words: &[&str]) {
    for (path, code) in sources(below) {
        for line in code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            for word in words {
                assert!(
                    !line.contains(word),
                    "{} knows {word}: {line}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn pure_parts_do_no_io_and_read_no_clock() {
    for below in [
        "identity",
        "interface",
        "payload",
        "mqtt/session",
        "mqtt/acl",
        "mqtt/codec",
        "mqtt/packet",
        "mqtt/topics",
    ] {
        assert_none_of(
            below,
            &[
                "tokio::",
                "sqlx::",
                "redb::",
                "std::fs",
                "std::net::Tcp",
                "SystemTime",
                "::now()",
            ],
        );
    }
}

#[test]
fn arrows_of_knowledge_go_down_only() {
    for (below, above) in [
        (
            "identity",
            &["crate::store", "crate::mqtt", "crate::engine", "crate::api"][..],
        ),
        (
            "interface",
            &["crate::store", "crate::mqtt", "crate::engine", "crate::api"],
        ),
        (
            "payload",
            &["crate::store", "crate::mqtt", "crate::engine", "crate::api"],
        ),
        (
            "store",
            &["crate::mqtt", "crate::engine", "crate::api", "crate::node"],
        ),
        (
            "pki",
            &["crate::mqtt", "crate::engine", "crate::api", "crate::node"],
        ),
        (
            "mqtt",
            &["crate::store", "crate::engine", "crate::api", "crate::node"],
        ),
        ("engine", &["crate::api", "crate::cli", "crate::node"]),
        ("api", &["crate::cli", "crate::node"]),
    ] {
        assert_none_of(below, above);
    }
}

#[test]
fn one_module_names_the_codec_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (path, code) in sources("") {
        let relative = path.strip_prefix(&root).unwrap().display().to_string();
        if !relative.starts_with("mqtt/codec") {
            assert!(
                !code.contains("rmqtt_codec"),
                "{relative} names the codec library"
            );
        }
    }
}

#[test]
fn the_migrations_of_both_databases_are_in_step() {
    let list = |database: &str| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("migrations")
            .join(database);
        let mut names: Vec<_> = fs::read_dir(root)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list("sqlite"), list("postgres"));
}

#[tokio::test]
async fn what_is_secret_is_readable_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let tanit = crate::harness::product::Tanit::start().await;
    tanit.realm("acme").await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&tanit.data_dir()), 0o700);
    for entry in fs::read_dir(tanit.data_dir()).unwrap() {
        let path = entry.unwrap().path();
        let is_certificate = path.extension().is_some_and(|extension| extension == "crt");
        if !is_certificate {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    }
}
