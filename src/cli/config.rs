//! `tanit config`: the settings, before and after they are in force.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use rustix::fs::{Access, access};
use serde_json::{Value, json};

use super::{
    Context,
    client::Request,
    exit::{Doing as _, Exit, Failure},
};
use crate::{
    config::{Config as Settings, ConfigError, Overlay},
    pki::{ServerCertificateFiles, ServerCertificates},
    telemetry,
};

/// Check settings, and show those in force.
#[derive(Debug, Subcommand)]
pub(super) enum Config {
    Check(Check),
    Show(Show),
}

/// Check a settings file, the TANIT_* environment and the files they name; no node is needed.
///
/// Exit code 3 if there are problems.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tanit config check --config /etc/tanit/tanit.toml && systemctl restart tanit")]
pub(super) struct Check {
    /// Settings file (TOML); the same as --config.
    #[arg(value_name = "FILE", conflicts_with = "config")]
    file: Option<PathBuf>,
    /// Settings file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Show the settings that the node runs with; secrets are left out.
#[derive(Debug, Args)]
pub(super) struct Show {}

impl Config {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        match self {
            Self::Check(verb) => verb.run(context),
            Self::Show(verb) => verb.run(context).await,
        }
    }
}

impl Check {
    fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let overlay = Overlay {
            file: self.config.or(self.file),
            data_dir: context.global.data_dir.clone(),
            ..Overlay::default()
        };
        let (problems, warnings) = match Settings::read(&overlay) {
            Ok(settings) => {
                let mut problems = settings.problems();
                problems.extend(problems_outside(&settings, context));
                (problems, settings.warnings())
            }
            Err(error @ ConfigError::Unreadable { .. }) => {
                return Err(Failure::failed(error.to_string()));
            }
            Err(error) => (vec![error.to_string()], Vec::new()),
        };
        let is_ok = problems.is_empty();
        let report = json!({ "ok": is_ok, "problems": problems, "warnings": warnings });
        let mut text: Vec<_> = problems
            .iter()
            .map(|problem| format!("error: {problem}"))
            .collect();
        text.extend(warnings.iter().map(|warning| format!("warning: {warning}")));
        if is_ok {
            text.push("the settings can be used".to_owned());
        }
        context.output.text(&report, &text.join("\n"));
        Ok(if is_ok {
            Exit::Done
        } else {
            Exit::FoundProblems
        })
    }
}

/// What is wrong with the files that the settings name, the data directory and the log's filter.
fn problems_outside(settings: &Settings, context: &Context) -> Vec<String> {
    let mut problems = Vec::new();
    if let Err(error) = telemetry::check(&settings.log.level) {
        problems.push(error.to_string());
    }
    problems.extend(unusable(&settings.data_dir));
    let files: Vec<_> = settings
        .tls
        .certificates
        .iter()
        .map(|files| ServerCertificateFiles {
            certificate: files.certificate.clone(),
            key: files.key.clone(),
        })
        .collect();
    if (1..=2).contains(&files.len())
        && let Err(error) = ServerCertificates::open(
            &settings.data_dir,
            files,
            "localhost",
            context.clock.clone(),
        )
    {
        problems.push(format!("tls.certificates: {error}"));
    }
    if let Some(path) = &settings.http.housekeeping_public_key {
        let is_key = std::fs::read_to_string(path)
            .map_err(|error| error.to_string())
            .and_then(|text| pem::parse(text).map_err(|error| error.to_string()))
            .and_then(|block| match block.tag() {
                "PUBLIC KEY" => Ok(()),
                tag => Err(format!("holds {tag}, not PUBLIC KEY")),
            });
        if let Err(error) = is_key {
            let path = path.display();
            problems.push(format!("http.housekeeping_public_key: {path}: {error}"));
        }
    }
    problems
}

/// Why the data directory could not be made or written, judged by what of its path is there.
fn unusable(data_dir: &Path) -> Option<String> {
    let there = data_dir.ancestors().find(|path| path.exists())?;
    let reason = if there.is_dir() {
        let writable = Access::WRITE_OK | Access::EXEC_OK;
        access(there, writable).err()?.to_string()
    } else {
        format!("{} is not a directory", there.display())
    };
    Some(format!("data_dir = {}: {reason}", data_dir.display()))
}

impl Show {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let settings = client.send(Request::get(["tanit", "v1", "config"])).await;
        let settings = settings.doing("show the settings")?;
        let mut lines = String::new();
        flatten(&settings, "", &mut lines);
        context.output.text(&settings, &lines);
        Ok(Exit::Done)
    }
}

/// `section.key = value`, a line each.
fn flatten(value: &Value, key: &str, lines: &mut String) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let key = if key.is_empty() {
                    name.clone()
                } else {
                    format!("{key}.{name}")
                };
                flatten(value, &key, lines);
            }
        }
        Value::Null => {}
        value => {
            let _ = writeln!(lines, "{key} = {value}"); // writing to a String cannot fail
        }
    }
}
