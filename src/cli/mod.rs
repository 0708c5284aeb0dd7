//! The command line: `tanit <noun> <verb>`, thin clients of the control API.
//!
//! A file per noun: its arguments, and a function per verb that turns them into a request and says
//! what came of it. There is one way to change anything, the API of a running node; only `serve`,
//! `config check`, `interface check`, `token --key`, `completions`, `man` and the key of
//! `device credentials` need none. [`output`] prints, [`exit`] names the exit codes.

#![expect(
    clippy::doc_markdown,
    reason = "the doc comments of arguments are help texts"
)]

mod archive;
mod audit;
mod ca;
mod client;
mod config;
mod credentials;
mod data;
mod device;
pub mod exit;
mod files;
mod interface;
mod node;
mod output;
mod publish;
mod realm;
mod secret;
mod serve;
mod shell;
mod times;
mod token;

#[cfg(test)]
mod tests;

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use reqwest::Url;

use crate::clock::{SharedClock, SystemClock};
use client::{Client, Target};
use exit::{Exit, Failure};
use output::{Output, Streams};
use secret::Secret;
use serde_json::Value;

/// Astarte-compatible IoT device broker and data engine.
///
/// `tanit serve` runs a node. All other commands talk to a running node: through the Unix socket in
/// its data directory, or over HTTP with --url and --token.
#[derive(Debug, Parser)]
#[command(
    name = "tanit",
    version,
    propagate_version = false,
    max_term_width = 100
)]
#[command(after_help = "\
Exit codes: 0 done, 1 failed, 2 wrong command line, 3 found problems, 75 try again later,
78 bad configuration. Results go to standard output, messages to standard error.

Five minutes:
  tanit serve &
  tanit status
  tanit realm create acme
  tanit device register acme
  tanit device credentials acme DEVICE_ID --secret SECRET --out ./device")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    verb: Verb,
}

/// Flags that every command takes, before or after it.
#[derive(Debug, Clone, Args)]
struct Global {
    /// Data directory of the node [default: $TANIT_DATA_DIR, or ./tanit-data].
    #[arg(long, global = true, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Print the result as one line of JSON.
    #[arg(long, global = true)]
    json: bool,
    /// Talk to the node at this URL instead of the socket: http://127.0.0.1:8080.
    #[arg(long, global = true, value_name = "URL")]
    url: Option<Url>,
    /// Token for --url; @FILE reads it from a file, where others cannot see it.
    #[arg(long, global = true, value_name = "TOKEN", requires = "url")]
    token: Option<Secret>,
    /// CA certificates (PEM) to trust for an https URL, instead of the system's.
    #[arg(long, global = true, value_name = "FILE", requires = "url")]
    cacert: Option<PathBuf>,
    /// Do not ask before what cannot be undone; needed where there is no terminal.
    #[arg(long, short, global = true)]
    yes: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(serve::Serve),
    Status(node::Status),
    Reload(node::Reload),
    #[command(subcommand)]
    Config(config::Config),
    #[command(subcommand)]
    Realm(realm::Realm),
    #[command(subcommand)]
    Device(device::Device),
    #[command(subcommand)]
    Interface(interface::Interface),
    Publish(publish::Publish),
    Data(data::Data),
    Token(token::Token),
    Audit(audit::Audit),
    Backup(archive::Backup),
    Restore(archive::Restore),
    Completions(shell::Completions),
    Man(shell::Man),
}

/// Runs a command line (its first word is the program's name).
#[must_use]
pub fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut streams = Streams::of_process();
    let cli = match Cli::try_parse_from(words) {
        Ok(cli) => cli,
        Err(error) => return usage(streams, &error).into(),
    };
    let runtime = match cli.verb {
        // `serve` has work for all cores
        Verb::Serve(_) => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build(),
        _ => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build(),
    };
    match runtime {
        Ok(runtime) => runtime
            .block_on(execute(cli, streams, SystemClock::shared()))
            .into(),
        Err(error) => {
            use std::io::Write as _;

            let _ = writeln!(streams.err, "tanit: the runtime cannot be started: {error}");
            Exit::Failed.into()
        }
    }
}

/// Looks whether a command line (its first word is the program's name) is one, and does nothing.
///
/// # Errors
/// What its user would be told; asking for help or the version is answered so too.
pub fn check(words: impl IntoIterator<Item = OsString>) -> Result<(), clap::Error> {
    Cli::try_parse_from(words).map(drop)
}

fn usage(streams: Streams, error: &clap::Error) -> Exit {
    Output::new(streams, false).usage(error);
    // help and version are no errors
    if error.use_stderr() {
        Exit::Usage
    } else {
        Exit::Done
    }
}

async fn execute(cli: Cli, streams: Streams, clock: SharedClock) -> Exit {
    let output = Output::new(streams, cli.global.json);
    let mut context = Context {
        global: cli.global,
        output,
        clock,
    };
    match dispatch(cli.verb, &mut context).await {
        Ok(exit) => exit,
        Err(failure) => {
            context.output.failure(&failure);
            failure.exit
        }
    }
}

async fn dispatch(verb: Verb, context: &mut Context) -> Result<Exit, Failure> {
    match verb {
        Verb::Serve(verb) => Box::pin(verb.run(context)).await,
        Verb::Status(verb) => verb.run(context).await,
        Verb::Reload(verb) => verb.run(context).await,
        Verb::Config(verb) => verb.run(context).await,
        Verb::Realm(verb) => verb.run(context).await,
        Verb::Device(verb) => verb.run(context).await,
        Verb::Interface(verb) => verb.run(context).await,
        Verb::Publish(verb) => verb.run(context).await,
        Verb::Data(verb) => verb.run(context).await,
        Verb::Token(verb) => verb.run(context).await,
        Verb::Audit(verb) => verb.run(context).await,
        Verb::Backup(verb) => verb.run(context).await,
        Verb::Restore(verb) => verb.run(context).await,
        Verb::Completions(verb) => Ok(verb.run(context)),
        Verb::Man(verb) => verb.run(context),
    }
}

/// What every verb has at hand.
#[derive(Debug)]
struct Context {
    global: Global,
    output: Output,
    clock: SharedClock,
}

impl Context {
    fn client(&self) -> Result<Client, Failure> {
        let target = match &self.global.url {
            None => Target::Socket(self.data_dir().join("control.sock")),
            Some(url) => Target::Url {
                url: url.clone(),
                token: self
                    .global
                    .token
                    .as_ref()
                    .map(files::read_secret)
                    .transpose()?,
                ca_pem: self.global.cacert.as_deref().map(files::read).transpose()?,
            },
        };
        Client::new(&target)
    }

    /// The node's directory: as given, from the environment, or the default of `serve`.
    fn data_dir(&self) -> PathBuf {
        self.global
            .data_dir
            .clone()
            .or_else(|| std::env::var_os("TANIT_DATA_DIR").map(PathBuf::from))
            .unwrap_or_else(|| crate::config::Config::default().data_dir)
    }

    /// Goes on when `--yes` was said or someone agrees.
    fn confirm(&mut self, what: &str) -> Result<(), Failure> {
        if self.global.yes {
            Ok(())
        } else {
            self.output.confirm(what)
        }
    }
}

/// The rows of an answer that is a list.
fn rows(answer: Value) -> Result<Vec<Value>, Failure> {
    match answer {
        Value::Array(rows) => Ok(rows),
        _ => Err(Failure::failed("the node answered no list")),
    }
}
