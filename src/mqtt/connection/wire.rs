//! The bytes of one socket: packets out of them and into them.
//!
//! An idle connection holds no read buffer: reading goes through a scratch buffer of the thread, and
//! only a packet that is not whole yet is kept.

use std::{cell::RefCell, future::poll_fn, io, pin::Pin, sync::Arc, task::Poll, time::Duration};

use bytes::BytesMut;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::timeout,
};

use crate::mqtt::{
    broker::{BrokerCounters, BrokerSettings},
    codec::{Decoder, EncodeError, Farewell, PacketLimits, Violation, encode},
    packet::{Packet, Version},
};

/// Bytes read at once.
const SCRATCH_BYTES: usize = 16 << 10;

/// Output is written before it grows beyond this.
pub(super) const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Time for the end of the stream to be written, and for the peer to end it too.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes that a peer may still have under way when we close.
const LINGER_BYTES_MAX: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; SCRATCH_BYTES]);
}

/// One socket with its buffers.
pub(super) struct Wire<S> {
    stream: S,
    decoder: Decoder,
    input: BytesMut,
    output: BytesMut,
    version: Version,
    peer_packet_bytes_max: Option<u32>,
    counters: Arc<BrokerCounters>,
    /// A write was given up, or the peer is gone: nothing can be said any more.
    broken: bool,
    /// The peer has ended its side.
    ended: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Wire<S> {
    pub(super) fn new(stream: S, settings: &BrokerSettings, counters: Arc<BrokerCounters>) -> Self {
        let limits = PacketLimits {
            first_packet: settings.first_packet_bytes_max,
            packet: settings.packet_bytes_max,
        };
        Self {
            stream,
            decoder: Decoder::new(limits),
            input: BytesMut::new(),
            output: BytesMut::new(),
            version: Version::V311,
            peer_packet_bytes_max: None,
            counters,
            broken: false,
            ended: false,
        }
    }

    /// CONNECT was understood: from now on packets have its form.
    pub(super) fn agreed(&mut self, version: Version, peer_packet_bytes_max: Option<u32>) {
        self.version = version;
        self.peer_packet_bytes_max = peer_packet_bytes_max;
    }

    /// The next whole packet of what was read.
    pub(super) fn decode(&mut self) -> Result<Option<Packet>, Violation> {
        let packet = self.decoder.decode(&mut self.input);
        if self.input.is_empty() {
            self.input = BytesMut::new();
        }
        packet
    }

    /// Reads what is there; `false` at the end of the stream.
    ///
    /// # Cancel safety
    /// It is: what was read is kept.
    pub(super) async fn read(&mut self) -> io::Result<bool> {
        let Self { stream, input, .. } = self;
        let count = poll_fn(|context| {
            SCRATCH.with_borrow_mut(|scratch| {
                let mut buf = ReadBuf::new(scratch);
                match Pin::new(&mut *stream).poll_read(context, &mut buf) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                    Poll::Ready(Ok(())) => {
                        input.extend_from_slice(buf.filled());
                        Poll::Ready(Ok(buf.filled().len()))
                    }
                }
            })
        })
        .await?;
        self.ended |= count == 0;
        self.counters
            .bytes_in
            .add(u64::try_from(count).unwrap_or(u64::MAX));
        Ok(count > 0)
    }

    /// Appends a packet to the output.
    pub(super) fn push(&mut self, packet: &Packet) -> Result<(), EncodeError> {
        encode(
            packet,
            self.version,
            self.peer_packet_bytes_max,
            &mut self.output,
        )
    }

    /// Appends what is said about a violation. A CONNACK may have another form than agreed.
    pub(super) fn push_farewell(&mut self, violation: Violation) {
        let (packet, version) = match self.decoder.farewell(violation) {
            Farewell::Silence => return,
            Farewell::ConnAck { version, reason } => {
                let connack = crate::mqtt::packet::ConnAck {
                    reason,
                    ..Default::default()
                };
                (Packet::ConnAck(Box::new(connack)), version)
            }
            Farewell::Disconnect { reason } => {
                let disconnect = crate::mqtt::packet::Disconnect {
                    reason,
                    ..Default::default()
                };
                (Packet::Disconnect(disconnect), self.version)
            }
        };
        if let Err(error) = encode(&packet, version, None, &mut self.output) {
            tracing::error!(%error, "a farewell could not be encoded");
        }
    }

    /// Bytes to be written.
    pub(super) fn output_bytes(&self) -> usize {
        self.output.len()
    }

    /// Writes the output and flushes.
    ///
    /// # Cancel safety
    /// Not safe: after that call [`Wire::give_up`].
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        let bytes = std::mem::take(&mut self.output);
        self.stream.write_all(&bytes).await?;
        self.stream.flush().await?;
        self.counters
            .bytes_out
            .add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        Ok(())
    }

    /// Nothing can be written any more.
    pub(super) fn give_up(&mut self) {
        self.broken = true;
        self.output = BytesMut::new();
    }

    /// Ends our side of the stream. Returns whether the peer's end is worth waiting for.
    pub(super) async fn shut_down(&mut self) -> bool {
        if self.broken {
            return false;
        }
        let ended = timeout(CLOSE_TIMEOUT, self.stream.shutdown()).await;
        matches!(ended, Ok(Ok(()))) && !self.ended
    }

    /// Reads on for a moment and drops it: closing a socket that has unread bytes would take back
    /// what was just written.
    pub(super) async fn linger(&mut self) {
        let drain = async {
            let mut left = LINGER_BYTES_MAX;
            let mut waste = [0; 1024];
            while left > 0 {
                match self.stream.read(&mut waste).await {
                    Ok(0) | Err(_) => return,
                    Ok(count) => left = left.saturating_sub(count),
                }
            }
        };
        // too late is as good: the socket is closed next
        let _ = timeout(CLOSE_TIMEOUT, drain).await;
    }

    /// Writes what is left and ends the stream.
    pub(super) async fn close(&mut self) {
        if self.broken {
            return;
        }
        if self.output_bytes() > 0
            && !matches!(timeout(CLOSE_TIMEOUT, self.flush()).await, Ok(Ok(())))
        {
            return;
        }
        if self.shut_down().await {
            self.linger().await;
        }
    }
}
