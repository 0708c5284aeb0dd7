//! What the pages say is so: command lines parse, links lead somewhere, metrics and tests exist.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

/// Stands for every device id in the pages.
const DEVICE: &str = "Zm9vYmFyYmF6cXV4MTIzNA";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The pages, with their paths.
fn pages() -> Vec<(PathBuf, String)> {
    let mut paths = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for directory in ["docs", "docs/adr"] {
        let entries = fs::read_dir(root().join(directory)).unwrap();
        paths.extend(entries.map(|entry| entry.unwrap().path()));
    }
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    assert!(paths.len() > 10, "{paths:?}");
    let with_text = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path, text)
    };
    paths.into_iter().map(with_text).collect()
}

/// All files of a kind below a directory.
fn below(directory: &Path, extension: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            below(&path, extension, found);
        } else if path.extension().is_some_and(|ending| ending == extension) {
            found.push(path);
        }
    }
}

/// The words of a `tanit …` command in a shell line, without what the shell itself takes.
fn words(command: &str) -> Vec<OsString> {
    let mut words = Vec::new();
    for word in command.split_whitespace() {
        if word.starts_with(['#', '&', '|', '>']) {
            break;
        }
        words.push(OsString::from(match word.trim_matches(['"', '\'']) {
            "REALM" => "acme",
            "$DEVICE" | "DEVICE" | "DEVICE_ID" => DEVICE,
            other => other,
        }));
    }
    words
}

/// Whether the program takes these words; help and version count.
fn is_taken(words: Vec<OsString>) -> Result<(), String> {
    match tanit::cli::check(words) {
        Err(error) if error.use_stderr() => Err(error.to_string()),
        _ => Ok(()),
    }
}

/// The commands in the shell blocks of a page.
fn commands(text: &str) -> Vec<String> {
    let block = Regex::new(r"(?ms)^```sh\n(.*?)^```").unwrap();
    let command = Regex::new(r"(?m)(?:^|\s&&\s|\$\(|sudo -u \S+ )(tanit [^)\n]*)").unwrap();
    block
        .captures_iter(text)
        .flat_map(|block| {
            let lines = block[1]
                .replace("\\\n", " ")
                .replace("$(date +%F)", "today");
            command
                .captures_iter(&lines)
                .map(|found| found[1].split(" && ").next().unwrap().to_owned())
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn every_command_line_in_the_pages_is_one() {
    let mut seen = 0;
    let inline = Regex::new(r"`(tanit [^`…]+)`").unwrap();
    for (path, text) in pages() {
        for command in commands(&text) {
            seen += 1;
            if let Err(error) = is_taken(words(&command)) {
                panic!("{}: {command}\n{error}", path.display());
            }
        }
        for found in inline.captures_iter(&text) {
            seen += 1;
            let whole = words(&found[1]);
            // in running text the bare name of a verb is enough
            let name = whole.iter().cloned().chain(["--help".into()]).collect();
            if let Err(error) = is_taken(whole.clone()).or_else(|_| is_taken(name)) {
                panic!("{}: {}\n{error}", path.display(), &found[1]);
            }
        }
    }
    assert!(seen > 60, "only {seen} command lines were found");
}

#[test]
fn every_relative_link_in_the_pages_leads_to_a_file_and_a_heading() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    for (path, text) in pages() {
        for found in link.captures_iter(&text) {
            let target = &found[1];
            if target.contains("://") {
                continue;
            }
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() {
                path.clone()
            } else {
                path.parent().unwrap().join(file)
            };
            assert!(file.exists(), "{}: {target}", path.display());
            if !heading.is_empty() {
                let headings = headings(&fs::read_to_string(file).unwrap());
                assert!(headings.contains(heading), "{}: {target}", path.display());
            }
        }
    }
}

/// The anchors that a page's headings get.
fn headings(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .map(|title| {
            title
                .chars()
                .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[test]
fn the_list_of_metrics_is_the_list_of_metrics() {
    let name = Regex::new(r"\btanit_[a-z_0-9]+").unwrap();
    let in_code: BTreeSet<_> = Regex::new(r#""(tanit_[a-z_0-9]+)""#)
        .unwrap()
        .captures_iter(&read("src/telemetry/metrics.rs"))
        .map(|found| found[1].to_owned())
        .collect();
    let in_page: BTreeSet<_> = name
        .find_iter(&read("docs/OPERATIONS.md"))
        .map(|found| found.as_str().trim_end_matches("_total").to_owned())
        .collect();
    assert!(in_code.len() > 20);
    assert_eq!(in_code, in_page, "left: the code, right: the page");
}

#[test]
fn every_test_and_file_that_a_page_names_exists() {
    let mut sources = Vec::new();
    for directory in ["src", "tests"] {
        below(&root().join(directory), "rs", &mut sources);
    }
    let function = Regex::new(r"fn ([a-z0-9_]+)\(").unwrap();
    let functions: BTreeSet<String> = sources
        .iter()
        .flat_map(|path| {
            let text = fs::read_to_string(path).unwrap();
            function
                .captures_iter(&text)
                .map(|found| found[1].to_owned())
                .collect::<Vec<_>>()
        })
        .collect();
    // the names of tests are sentences
    let test = Regex::new(r"`([a-z0-9]+(?:_[a-z0-9]+){4,})`").unwrap();
    let file =
        Regex::new(r"`((?:src|tests|docs|config|migrations|fuzz)/[A-Za-z0-9_./-]*)`").unwrap();
    for (path, text) in pages() {
        let is_about_tests = ["THREATS.md", "RELIABILITY.md", "STORAGE.md"]
            .iter()
            .any(|page| path.ends_with(page));
        for found in test.captures_iter(&text).filter(|_| is_about_tests) {
            let name = &found[1];
            assert!(
                functions.contains(name),
                "{}: there is no test {name}",
                path.display()
            );
        }
        for found in file.captures_iter(&text) {
            assert!(
                root().join(&found[1]).exists(),
                "{}: {}",
                path.display(),
                &found[1]
            );
        }
    }
}

#[test]
fn every_device_error_is_explained() {
    let errors = read("src/engine/errors.rs");
    let page = read("docs/OPERATIONS.md");
    let name = Regex::new(r#"Self::\w+ => "([a-z_]+)""#).unwrap();
    let mut seen = 0;
    for found in name.captures_iter(&errors) {
        seen += 1;
        let row = format!("| `{}` |", &found[1]);
        assert!(page.contains(&row), "{} is not in the table", &found[1]);
    }
    assert!(seen > 10);
}

#[test]
fn every_outcome_of_a_connect_is_explained() {
    let page = read("docs/OPERATIONS.md");
    for outcome in tanit::mqtt::broker::ConnectOutcome::ALL {
        let name = format!("`{}`", outcome.as_str());
        assert!(page.contains(&name), "{name} is not in the table");
    }
}

#[test]
fn lines_fit_the_width_of_a_page() {
    for (path, text) in pages() {
        for (number, line) in text.lines().enumerate() {
            let width = line.chars().count();
            assert!(width <= 120, "{}:{}: {width}", path.display(), number + 1);
        }
    }
}
