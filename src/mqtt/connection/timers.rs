//! The clocks of one connection: keep-alive and the end of its certificate.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::time::{Sleep, sleep};

use crate::{
    clock::{Clock, Timestamp},
    mqtt::DisconnectReason,
};

/// A certificate is looked at so often: its end is a point of wall time, which may jump.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(30);

/// Without anything to watch the timer sleeps so long.
const IDLE: Duration = Duration::from_hours(24);

/// The clocks of one connection and the one timer behind them.
#[derive(Debug)]
pub(super) struct Timers {
    /// 1.5 times the keep-alive [MQTT-3.1.2-24].
    patience: Option<Duration>,
    /// When the last complete packet came in, or when we began to read again.
    heard_at: Instant,
    is_reading: bool,
    certificate_ends_at: Option<Timestamp>,
    timer: Pin<Box<Sleep>>,
    /// When the timer fires; it may be earlier than what is due, never later.
    fires_at: Option<Instant>,
}

impl Timers {
    pub(super) fn new(
        keep_alive: Option<Duration>,
        certificate_ends_at: Option<Timestamp>,
        now: Instant,
    ) -> Self {
        Self {
            patience: keep_alive.map(|keep_alive| keep_alive + keep_alive / 2),
            heard_at: now,
            is_reading: true,
            certificate_ends_at,
            timer: Box::pin(sleep(IDLE)),
            fires_at: None,
        }
    }

    /// A complete packet came in.
    pub(super) fn heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    /// For so long nothing was read, through no fault of the device.
    pub(super) fn was_deaf(&mut self, duration: Duration) {
        self.heard_at += duration;
    }

    /// Whether we read now. While we do not, the keep-alive stands still.
    pub(super) fn set_reading(&mut self, is_reading: bool, now: Instant) {
        if is_reading && !self.is_reading {
            self.heard_at = now;
        }
        self.is_reading = is_reading;
    }

    /// Why the connection has to end now, if it has to.
    pub(super) fn due(&self, clock: &dyn Clock) -> Option<DisconnectReason> {
        if self
            .certificate_ends_at
            .is_some_and(|end| end <= clock.wall())
        {
            return Some(DisconnectReason::CertificateExpired);
        }
        let silent = self.patience.filter(|_| self.is_reading);
        let silent = silent.is_some_and(|patience| self.heard_at + patience <= clock.now());
        silent.then_some(DisconnectReason::KeepAliveTimeout)
    }

    /// Sets the timer for what is due next.
    pub(super) fn arm(&mut self, clock: &dyn Clock) {
        let now = clock.now();
        let keep_alive = self
            .patience
            .filter(|_| self.is_reading)
            .map(|patience| self.heard_at + patience);
        let certificate = self
            .certificate_ends_at
            .map(|end| now + end.saturating_since(clock.wall()).min(CERTIFICATE_INTERVAL));
        let next = keep_alive
            .into_iter()
            .chain(certificate)
            .min()
            .unwrap_or(now + IDLE);
        // most wake-ups move the keep-alive further away: then the timer is left alone
        if self.fires_at.is_none_or(|fires_at| next < fires_at) {
            let wait = next.saturating_duration_since(now);
            let deadline = tokio::time::Instant::now() + wait;
            self.timer.as_mut().reset(deadline);
            self.fires_at = Some(next);
        }
    }

    /// Waits for the timer; [`Timers::due`] says whether anything is due, [`Timers::arm`] sets it
    /// again.
    ///
    /// # Cancel safety
    /// It is.
    pub(super) async fn fired(&mut self) {
        std::future::poll_fn(
            |context: &mut Context<'_>| match self.timer.as_mut().poll(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(()) => {
                    self.fires_at = None;
                    Poll::Ready(())
                }
            },
        )
        .await;
    }
}
