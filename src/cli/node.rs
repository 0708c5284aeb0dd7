//! `tanit status` and `tanit reload`.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::{
    Context,
    client::{Client, Request},
    exit::{Doing as _, Exit, Failure},
    times,
};

/// First and longest time between two questions.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Show the node's addresses and state, once it is ready.
///
/// Waits for a node that is starting. Exit code 75 if it is not ready in time; what is missing is
/// then said on standard error.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit status
  tanit status --json | jq -r .mqtt")]
pub(super) struct Status {
    /// Longest time to wait until the node is ready; 0s asks once.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = times::duration)]
    wait: Duration,
}

/// Read certificates, CRLs and the log level again, without a gap.
///
/// A file that cannot be used is named, and its old state stays in force (exit code 3).
#[derive(Debug, Args)]
pub(super) struct Reload {}

impl Status {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let mut last = ask(&client).await;
        let until_ready = async {
            let mut pause = ASK_AGAIN.0;
            while !is_final(&last) {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(ASK_AGAIN.1);
                last = ask(&client).await;
            }
        };
        // out of time, what was answered last is what there is to say
        let _ = tokio::time::timeout(self.wait, until_ready).await;
        let mut status = last.doing("show the status")?;
        if !context.output.is_json()
            && let Some(fields) = status.as_object_mut()
        {
            fields.remove("server_ca_pem"); // for programs
        }
        context.output.object(&status);
        if is_ready(&status) {
            return Ok(Exit::Done);
        }
        let health = client.send(Request::get(["tanit", "v1", "health"])).await?;
        let reasons = health["reasons"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        let reasons: Vec<_> = reasons.iter().filter_map(Value::as_str).collect();
        let message = format!("the node is not ready: {}", reasons.join("; "));
        Err(Failure::new(Exit::TryLater, message))
    }
}

async fn ask(client: &Client) -> Result<Value, Failure> {
    client.send(Request::get(["tanit", "v1", "status"])).await
}

/// Ready, or refused in a way that no waiting changes.
fn is_final(answer: &Result<Value, Failure>) -> bool {
    match answer {
        Ok(status) => is_ready(status),
        Err(failure) => failure.exit != Exit::TryLater,
    }
}

fn is_ready(status: &Value) -> bool {
    status["ready"] == Value::Bool(true)
}

impl Reload {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let request = Request::post(["tanit", "v1", "reload"]);
        let answer = client.send(request).await.doing("reload")?;
        let words = |name: &str| -> Vec<String> {
            let items = answer[name]
                .as_array()
                .map(Vec::as_slice)
                .unwrap_or_default();
            items
                .iter()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        let reloaded = words("reloaded");
        let text = match reloaded.as_slice() {
            [] => "nothing was read again".to_owned(),
            some => format!("read again: {}", some.join(", ")),
        };
        context.output.text(&answer, &text);
        let errors = words("errors");
        if errors.is_empty() {
            return Ok(Exit::Done);
        }
        for error in errors {
            context.output.note(&super::output::visible(&error));
        }
        Ok(Exit::FoundProblems)
    }
}
