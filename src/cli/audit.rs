//! `tanit audit`: who changed what.

use clap::Args;

use super::{
    Context,
    client::Request,
    exit::{Doing as _, Exit, Failure},
    output::Column,
    rows,
};

/// Show who changed what through the control API, newest first.
#[derive(Debug, Args)]
pub(super) struct Audit {
    /// Most rows.
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: u32,
}

impl Audit {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let request = Request::get(["tanit", "v1", "audit"]).query("limit", Some(self.limit));
        let entries = client
            .send(request)
            .await
            .and_then(rows)
            .doing("read the audit log")?;
        let columns = [
            Column("TIME", "/at"),
            Column("ACTOR", "/actor"),
            Column("ACTION", "/action"),
            Column("OBJECT", "/object"),
        ];
        context.output.list(&entries, &columns);
        Ok(Exit::Done)
    }
}
