//! Interface documents with paths to look up, and introspections.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tanit::interface::{Aggregation, Interface, Introspection, check_update};

fuzz_target!(|data: &[u8]| {
    if let Ok(introspection) = Introspection::parse(data) {
        let diff = introspection.diff(&introspection);
        assert!(diff.added.is_empty() && diff.removed.is_empty() && diff.minor_updated.is_empty());
        assert!(introspection.len() <= Introspection::ENTRIES_MAX);
    }
    // a document, then paths, one a line behind a NUL byte
    let (document, paths) = match data.iter().position(|byte| *byte == 0) {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (data, &[][..]),
    };
    let Ok(interface) = Interface::parse(document) else {
        return;
    };
    let written = interface.to_json();
    let again = Interface::from_json(&written).expect("what was written can be read");
    assert_eq!(again.to_json(), written);
    let _ = check_update(&interface, &again);
    let _ = interface.warnings();
    for path in String::from_utf8_lossy(paths).lines() {
        if let Ok(mapping) = interface.resolve(path) {
            assert!(
                interface
                    .mappings()
                    .iter()
                    .any(|it| std::ptr::eq(it, mapping))
            );
        }
        let _ = interface.resolve_object(path);
    }
    if interface.aggregation() == Aggregation::Individual {
        for mapping in interface.mappings() {
            let segment = |it| if str::starts_with(it, "%{") { "x0" } else { it };
            let path: Vec<_> = mapping.endpoint.split('/').map(segment).collect();
            // endpoints that overlap are refused, so it is this one
            let found = interface
                .resolve(&path.join("/"))
                .expect("a path of the endpoint");
            assert!(std::ptr::eq(found, mapping));
        }
    }
});
