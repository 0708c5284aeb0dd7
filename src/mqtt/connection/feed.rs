//! Where messages for the device come from: the live feed, or the queue on disk.
//!
//! A resumed session reads its queue first, and so does one whose feed was too full; once the queue
//! is read to its end the feed goes on after the last message. So a backlog is delivered whole and
//! in order, and only as much of it is in memory as the window takes.

use tokio::sync::mpsc;

use crate::mqtt::sessions::Delivery;

/// Messages read from the queue at once, and their bytes.
pub(super) const READ_MESSAGES_MAX: usize = 100;
pub(super) const READ_BYTES_MAX: usize = 256 << 10;

/// The messages of one session.
#[derive(Debug)]
pub(super) struct Feed {
    deliveries: mpsc::Receiver<Delivery>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The queue is to be read.
    Behind,
    /// It is being read, or the feed is being resumed.
    Reading,
    /// The live feed has everything.
    Live,
}

impl Feed {
    pub(super) const fn new(deliveries: mpsc::Receiver<Delivery>, session_present: bool) -> Self {
        let state = if session_present {
            State::Behind
        } else {
            State::Live
        };
        Self { deliveries, state }
    }

    /// Whether the queue is to be read now; then it counts as being read.
    pub(super) fn begin_reading(&mut self) -> bool {
        let behind = self.state == State::Behind;
        if behind {
            self.state = State::Reading;
        }
        behind
    }

    /// There is more in the queue, or the feed has lost its place.
    pub(super) fn fell_behind(&mut self) {
        self.state = State::Behind;
    }

    /// The feed brings everything from now on.
    pub(super) fn went_live(&mut self) {
        self.state = State::Live;
    }

    /// Whether the live feed is to be listened to.
    pub(super) fn is_live(&self) -> bool {
        self.state == State::Live
    }

    /// The next message; `None`: the session was erased.
    ///
    /// # Cancel safety
    /// It is.
    pub(super) async fn next(&mut self) -> Option<Delivery> {
        self.deliveries.recv().await
    }

    /// A message that is there already.
    pub(super) fn take(&mut self) -> Option<Delivery> {
        self.deliveries.try_recv().ok()
    }
}
