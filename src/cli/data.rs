//! `tanit data`: what a device has sent, as AppEngine answers.

use clap::Args;

use super::{
    Context,
    client::Request,
    exit::{Doing as _, Exit, Failure},
    times::Moment,
};
use crate::identity::{DeviceId, RealmName};

/// Show the data of a device on an interface: properties, the newest samples, or a path's series.
///
/// With --json the answer is AppEngine's `data` as it is. Samples come oldest first; with --limit and
/// without --since, newest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit data acme DEVICE_ID org.example.Sensor
  tanit data acme DEVICE_ID org.example.Sensor /kitchen/celsius --since 1h
  tanit data acme DEVICE_ID org.example.Sensor /kitchen/celsius --limit 1 --json")]
pub(super) struct Data {
    /// Realm.
    realm: RealmName,
    /// Device id, or an alias of the device.
    #[arg(value_name = "DEVICE", allow_hyphen_values = true)]
    device: String,
    /// Interface name.
    interface: String,
    /// Path, such as /kitchen/celsius [default: all].
    path: Option<String>,
    /// Samples from then on: a time (ISO 8601), or so long ago (90s, 1h, 2days).
    #[arg(long, value_name = "TIME")]
    since: Option<Moment>,
    /// Samples before then: a time (ISO 8601), or so long ago.
    #[arg(long, value_name = "TIME")]
    to: Option<Moment>,
    /// At most so many samples [default: 10000, which is also the most].
    #[arg(long, value_name = "COUNT")]
    limit: Option<u32>,
}

impl Data {
    pub(super) async fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let client = context.client()?;
        let now = context.clock.wall();
        let root = if self.device.parse::<DeviceId>().is_ok() {
            "devices"
        } else {
            "devices-by-alias"
        };
        let device = [
            "appengine",
            "v1",
            self.realm.as_str(),
            root,
            &self.device,
            "interfaces",
            &self.interface,
        ];
        let path = self
            .path
            .as_deref()
            .unwrap_or_default()
            .trim_start_matches('/');
        let segments = path.split('/').filter(|_| !path.is_empty());
        let request = Request::get(device.into_iter().chain(segments))
            .query("since", self.since.map(|since| since.resolve(now)))
            .query("to", self.to.map(|to| to.resolve(now)))
            .query("limit", self.limit);
        let what = if path.is_empty() {
            self.interface.clone()
        } else {
            format!("{}/{path}", self.interface)
        };
        let doing = format_args!("read {what} of the device {}/{}", self.realm, self.device);
        let data = client.send(request).await.doing(doing)?;
        context.output.value(&data);
        Ok(Exit::Done)
    }
}
