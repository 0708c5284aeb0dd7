//! `tanit interface`: what devices of a realm may send and receive.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Context,
    client::{Client, Request},
    exit::{Doing as _, Exit, Failure},
    files,
    output::Column,
    rows,
};
use crate::{identity::RealmName, interface::Interface as Parsed};

/// Install, check, update, delete, list and show interfaces.
#[derive(Debug, Subcommand)]
pub(super) enum Interface {
    Install(Install),
    Check(Check),
    Update(Update),
    Delete(Delete),
    /// List the interfaces of a realm.
    List(List),
    Show(Show),
}

/// Install interfaces; live at once for connected devices.
///
/// All files are checked before the first is installed.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tanit interface install acme interfaces/*.json")]
pub(super) struct Install {
    /// Realm.
    realm: RealmName,
    /// Interface documents (JSON).
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Check interface documents; no node is needed. Exit code 3 if there are problems.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Interface documents (JSON).
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Replace installed interfaces by newer minor versions.
#[derive(Debug, Args)]
pub(super) struct Update {
    /// Realm.
    realm: RealmName,
    /// Interface documents (JSON).
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

/// Delete an interface with all data stored on it.
#[derive(Debug, Args)]
pub(super) struct Delete {
    /// Realm.
    realm: RealmName,
    /// Name, such as org.example.Sensor.
    name: String,
    /// Major version.
    major: u32,
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// Realm.
    realm: RealmName,
}

/// Show an interface document.
#[derive(Debug, Args)]
pub(super) struct Show {
    /// Realm.
    realm: RealmName,
    /// Name, such as org.example.Sensor.
    name: String,
    /// Major version [default: the newest].
    major: Option<u32>,
}

impl Interface {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        match self {
            Self::Install(verb) => put_all(context, &verb.realm, &verb.files, Put::Install).await,
            Self::Check(verb) => Ok(verb.run(context)),
            Self::Update(verb) => put_all(context, &verb.realm, &verb.files, Put::Update).await,
            Self::Delete(verb) => verb.run(context).await,
            Self::List(verb) => verb.run(context).await,
            Self::Show(verb) => verb.run(context).await,
        }
    }
}

/// A document that is an interface, and where it stands.
struct Document<'a> {
    file: &'a Path,
    json: Value,
    parsed: Parsed,
}

fn read(file: &Path) -> Result<Document<'_>, Failure> {
    let bytes = files::read(file)?;
    let problem = |what: String| Failure::failed(format!("{}: {what}", file.display()));
    let parsed = Parsed::parse(&bytes).map_err(|error| problem(error.to_string()))?;
    let json = serde_json::from_slice(&bytes).map_err(|error| problem(error.to_string()))?;
    Ok(Document { file, json, parsed })
}

#[derive(Clone, Copy)]
enum Put {
    Install,
    Update,
}

const COLUMNS: [Column; 4] = [
    Column("INTERFACE", "/interface_name"),
    Column("VERSION", "/version"),
    Column("TYPE", "/type"),
    Column("OWNERSHIP", "/ownership"),
];

async fn put_all(
    context: &mut Context,
    realm: &RealmName,
    files: &[PathBuf],
    put: Put,
) -> Result<Exit, Failure> {
    let client = context.client()?;
    let documents = files
        .iter()
        .map(|file| read(file))
        .collect::<Result<Vec<_>, _>>()?;
    let mut done = Vec::new();
    for document in &documents {
        if let Err(failure) = put_one(&client, realm, document, put).await {
            // what was done before it stays done, and is said
            if context.output.is_json() || !done.is_empty() {
                context.output.list(&done, &COLUMNS[..2]);
            }
            return Err(failure);
        }
        let key = document.parsed.key();
        done.push(json!({
            "interface_name": &*key.name,
            "version_major": key.major,
            "version_minor": document.parsed.minor(),
            "version": format!("{}.{}", key.major, document.parsed.minor()),
            "file": document.file,
        }));
        for warning in document.parsed.warnings() {
            context
                .output
                .note(&format!("{}: {warning}", document.file.display()));
        }
    }
    let columns = [
        Column("INTERFACE", "/interface_name"),
        Column("VERSION", "/version"),
        Column("FILE", "/file"),
    ];
    context.output.list(&done, &columns);
    Ok(Exit::Done)
}

async fn put_one(
    client: &Client,
    realm: &RealmName,
    document: &Document<'_>,
    put: Put,
) -> Result<(), Failure> {
    let collection = ["realmmanagement", "v1", realm.as_str(), "interfaces"];
    let key = document.parsed.key();
    let major = key.major.to_string();
    let (verb, request) = match put {
        Put::Install => ("install", Request::post(collection)),
        Put::Update => {
            let path = collection.into_iter().chain([&*key.name, major.as_str()]);
            ("update", Request::put(path))
        }
    };
    let name = format!("{} {}.{}", key.name, key.major, document.parsed.minor());
    let sent = client.send(request.data(&document.json)).await;
    sent.doing(format_args!("{verb} {name} in the realm {realm}"))?;
    Ok(())
}

impl Check {
    fn run(self, context: &mut Context) -> Exit {
        let report = |file: &PathBuf| match read(file) {
            Ok(document) => json!({
                "file": file,
                "ok": true,
                "problem": null,
                "warnings": document.parsed.warnings(),
            }),
            Err(failure) => {
                json!({ "file": file, "ok": false, "problem": failure.message, "warnings": [] })
            }
        };
        let reports: Vec<_> = self.files.iter().map(report).collect();
        let columns = [
            Column("FILE", "/file"),
            Column("OK", "/ok"),
            Column("PROBLEM", "/problem"),
            Column("WARNINGS", "/warnings"),
        ];
        context.output.list(&reports, &columns);
        if reports.iter().all(|report| report["ok"] == true) {
            Exit::Done
        } else {
            Exit::FoundProblems
        }
    }
}

impl Delete {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let Self { realm, name, major } = &self;
        context.confirm(&format!(
            "delete the interface {name} {major} of the realm {realm} with all its data"
        ))?;
        let number = major.to_string();
        let path = [
            "realmmanagement",
            "v1",
            realm.as_str(),
            "interfaces",
            name,
            &number,
        ];
        let doing = format_args!("delete the interface {name} {major} of the realm {realm}");
        client.send(Request::delete(path)).await.doing(doing)?;
        let result = json!({ "interface_name": name, "version_major": major, "deleted": true });
        context
            .output
            .text(&result, &format!("the interface {name} {major} is deleted"));
        Ok(Exit::Done)
    }
}

impl List {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let request = Request::get(["realmmanagement", "v1", self.realm.as_str(), "interfaces"])
            .query("detailed", Some(true));
        let doing = format_args!("list the interfaces of the realm {}", self.realm);
        let mut interfaces = client.send(request).await.and_then(rows).doing(doing)?;
        if !context.output.is_json() {
            for interface in &mut interfaces {
                let version = format!(
                    "{}.{}",
                    interface["version_major"], interface["version_minor"]
                );
                interface["version"] = json!(version);
            }
        }
        context.output.list(&interfaces, &COLUMNS);
        Ok(Exit::Done)
    }
}

impl Show {
    async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let (realm, name) = (self.realm.as_str(), self.name.as_str());
        let versions = ["realmmanagement", "v1", realm, "interfaces", name];
        let doing = format!("show the interface {name} of the realm {realm}");
        let major = if let Some(major) = self.major {
            u64::from(major)
        } else {
            let majors = client.send(Request::get(versions)).await.doing(&doing)?;
            let majors = majors.as_array().map(Vec::as_slice).unwrap_or_default();
            let newest = majors.iter().filter_map(Value::as_u64).max();
            newest.ok_or_else(|| Failure::failed(format!("cannot {doing}: it has no version")))?
        };
        let major = major.to_string();
        let path = versions.into_iter().chain([major.as_str()]);
        let document = client.send(Request::get(path)).await.doing(&doing)?;
        context.output.value(&document);
        Ok(Exit::Done)
    }
}
