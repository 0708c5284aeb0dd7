//! SUBSCRIBE and UNSUBSCRIBE: judged at once, stored in order, answered once they are on disk.
//!
//! While one of them is being stored, a PUBLISH that came after it is held, so that what the engine
//! sends in answer to that PUBLISH finds the subscription.

use std::collections::{HashSet, VecDeque};

use bytestring::ByteString;

use super::{
    super::{
        acl::{Acl, SubscribeDenied},
        packet::{
            Packet, PacketId, ReasonCode, RetainHandling, SubAck, Subscribe, UnsubAck, Unsubscribe,
            Version,
        },
        sessions::{QuotaExceeded, SubscribeOutcome, Subscription},
    },
    Effect, Limits, Output, granted,
};

/// Packets that may wait for the disk before reading stops.
const WAITING_MAX: usize = 16;

/// SUBSCRIBE and UNSUBSCRIBE packets that are not answered yet, oldest first.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    waiting: VecDeque<Request>,
    /// How many of the oldest are being stored together.
    in_progress: usize,
}

#[derive(Debug)]
enum Request {
    Subscribe {
        packet_id: PacketId,
        filters: Vec<Answer>,
        refused_only: bool,
    },
    Unsubscribe {
        packet_id: PacketId,
        filters: Vec<Result<ByteString, ReasonCode>>,
    },
}

/// What one filter of a SUBSCRIBE gets: it is stored, or it is refused.
type Answer = Result<Subscription, ReasonCode>;

impl Request {
    const fn packet_id(&self) -> PacketId {
        match self {
            Self::Subscribe { packet_id, .. } | Self::Unsubscribe { packet_id, .. } => *packet_id,
        }
    }
}

impl Subscriptions {
    /// Whether something is not on disk yet.
    pub(super) fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether so much waits that reading stops.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Takes a SUBSCRIBE.
    ///
    /// # Errors
    /// What it breaks the protocol with.
    pub(super) fn subscribe(
        &mut self,
        subscribe: Subscribe,
        acl: &Acl<'_>,
        limits: &Limits,
        version: Version,
        outputs: &mut VecDeque<Output>,
    ) -> Result<(), ReasonCode> {
        let Subscribe {
            packet_id,
            subscription_id: id,
            filters,
        } = subscribe;
        // [MQTT5-3.8.3-4]
        let local = |filter: &str, no_local: bool| no_local && filter.starts_with("$share/");
        if filters
            .iter()
            .any(|(filter, options)| local(filter, options.no_local))
        {
            return Err(ReasonCode::PROTOCOL_ERROR);
        }
        if self.is_in_use(packet_id, version) {
            let reasons = vec![ReasonCode::PACKET_IDENTIFIER_IN_USE; filters.len()];
            outputs.push_back(Output::Send(Packet::SubAck(SubAck { packet_id, reasons })));
            return Ok(());
        }
        let judge = |(index, (filter, options)): (usize, (ByteString, _))| {
            if index >= limits.filters_max {
                return Err(ReasonCode::QUOTA_EXCEEDED);
            }
            match acl.subscribe(&filter) {
                Ok(()) => Ok(Subscription {
                    filter: owned(&filter),
                    options,
                    id,
                }),
                Err(denied) => Err(code_of(denied)),
            }
        };
        let filters: Vec<Answer> = filters.into_iter().enumerate().map(judge).collect();
        let refused_only = filters.iter().all(Result::is_err);
        self.waiting.push_back(Request::Subscribe {
            packet_id,
            filters,
            refused_only,
        });
        self.start(outputs);
        Ok(())
    }

    /// Takes an UNSUBSCRIBE.
    pub(super) fn unsubscribe(
        &mut self,
        unsubscribe: Unsubscribe,
        acl: &Acl<'_>,
        version: Version,
        outputs: &mut VecDeque<Output>,
    ) {
        let Unsubscribe { packet_id, filters } = unsubscribe;
        if self.is_in_use(packet_id, version) {
            let reasons = vec![ReasonCode::PACKET_IDENTIFIER_IN_USE; filters.len()];
            outputs.push_back(Output::Send(Packet::UnsubAck(UnsubAck {
                packet_id,
                reasons,
            })));
            return;
        }
        let judge = |filter: ByteString| match acl.subscribe(&filter) {
            Ok(()) => Ok(owned(&filter)),
            Err(SubscribeDenied::Malformed) => Err(ReasonCode::TOPIC_FILTER_INVALID),
            Err(_) => Err(ReasonCode::NO_SUBSCRIPTION_EXISTED),
        };
        let filters = filters.into_iter().map(judge).collect();
        self.waiting
            .push_back(Request::Unsubscribe { packet_id, filters });
        self.start(outputs);
    }

    /// Those in progress are on disk; `None`: they could not be stored.
    pub(super) fn subscribed(
        &mut self,
        results: Option<Vec<Result<SubscribeOutcome, QuotaExceeded>>>,
        outputs: &mut VecDeque<Output>,
    ) {
        let failed = results.is_none();
        let mut results = results.unwrap_or_default().into_iter();
        let mut next = || {
            if failed {
                Err(ReasonCode::UNSPECIFIED_ERROR)
            } else {
                match results.next() {
                    Some(Ok(outcome)) => Ok(outcome),
                    Some(Err(QuotaExceeded)) => Err(ReasonCode::QUOTA_EXCEEDED),
                    None => Err(ReasonCode::UNSPECIFIED_ERROR),
                }
            }
        };
        let count = std::mem::take(&mut self.in_progress).min(self.waiting.len());
        for request in self.waiting.drain(..count) {
            let Request::Subscribe {
                packet_id, filters, ..
            } = request
            else {
                continue;
            };
            answer_subscribe(packet_id, filters, &mut next, outputs);
        }
        self.start(outputs);
    }

    /// The one in progress is gone from disk: `true` for each filter that was there; too few
    /// results stand for failures.
    pub(super) fn unsubscribed(&mut self, results: &[bool], outputs: &mut VecDeque<Output>) {
        let mut results = results.iter();
        let count = std::mem::take(&mut self.in_progress).min(self.waiting.len());
        for request in self.waiting.drain(..count) {
            let Request::Unsubscribe { packet_id, filters } = request else {
                continue;
            };
            let reason = |filter| match filter {
                Err(reason) => reason,
                Ok(_) => match results.next() {
                    Some(true) => ReasonCode::SUCCESS,
                    Some(false) => ReasonCode::NO_SUBSCRIPTION_EXISTED,
                    None => ReasonCode::UNSPECIFIED_ERROR,
                },
            };
            let reasons = filters.into_iter().map(reason).collect();
            outputs.push_back(Output::Send(Packet::UnsubAck(UnsubAck {
                packet_id,
                reasons,
            })));
        }
        self.start(outputs);
    }

    /// Begins with the oldest that is not in progress: SUBSCRIBEs that follow one another are
    /// stored together.
    fn start(&mut self, outputs: &mut VecDeque<Output>) {
        while self.in_progress == 0 {
            match self.waiting.front() {
                None => return,
                Some(Request::Subscribe {
                    refused_only: true, ..
                }) => {
                    if let Some(Request::Subscribe {
                        packet_id, filters, ..
                    }) = self.waiting.pop_front()
                    {
                        let mut none = || Err(ReasonCode::UNSPECIFIED_ERROR);
                        answer_subscribe(packet_id, filters, &mut none, outputs);
                    }
                }
                Some(Request::Subscribe { .. }) => self.start_subscribe(outputs),
                Some(Request::Unsubscribe { filters, .. }) => {
                    let filters = filters
                        .iter()
                        .filter_map(|filter| filter.clone().ok())
                        .collect();
                    self.in_progress = 1;
                    outputs.push_back(Output::Do(Effect::Unsubscribe(filters)));
                }
            }
        }
    }

    fn start_subscribe(&mut self, outputs: &mut VecDeque<Output>) {
        let mut together = Vec::new();
        for request in &self.waiting {
            let Request::Subscribe { filters, .. } = request else {
                break;
            };
            together.extend(filters.iter().filter_map(|filter| filter.clone().ok()));
            self.in_progress += 1;
        }
        outputs.push_back(Output::Do(Effect::Subscribe(together)));
    }

    /// Whether a 5.0 client uses an id again before it was answered; 3.1.1 has no code for that.
    fn is_in_use(&self, packet_id: PacketId, version: Version) -> bool {
        version == Version::V5
            && self
                .waiting
                .iter()
                .any(|request| request.packet_id() == packet_id)
    }
}

/// SUBACK, then the retained messages of what was granted. Of a filter that stands in the packet
/// more than once, the last one counts [MQTT-3.8.4-3].
fn answer_subscribe(
    packet_id: PacketId,
    filters: Vec<Answer>,
    next: &mut dyn FnMut() -> Result<SubscribeOutcome, ReasonCode>,
    outputs: &mut VecDeque<Output>,
) {
    let mut reasons = Vec::with_capacity(filters.len());
    let mut retained = Vec::new();
    for filter in filters {
        let stored = filter.and_then(|subscription| next().map(|outcome| (subscription, outcome)));
        reasons.push(match stored {
            Err(reason) => reason,
            Ok((subscription, outcome)) => {
                let reason = granted(subscription.options);
                let wanted = match subscription.options.retain_handling {
                    RetainHandling::AtSubscribe => true,
                    RetainHandling::AtNewSubscribe => outcome == SubscribeOutcome::New,
                    RetainHandling::Never => false,
                };
                if wanted {
                    retained.push(subscription);
                }
                reason
            }
        });
    }
    outputs.push_back(Output::Send(Packet::SubAck(SubAck { packet_id, reasons })));
    let mut seen = HashSet::new();
    retained.reverse();
    retained.retain(|subscription| seen.insert(subscription.filter.clone()));
    let lookups = retained
        .into_iter()
        .rev()
        .map(|of| Output::Do(Effect::Retained(of)));
    outputs.extend(lookups);
}

/// The SUBACK code of a refusal; 3.1.1 writes all of them as 0x80.
const fn code_of(denied: SubscribeDenied) -> ReasonCode {
    match denied {
        SubscribeDenied::Malformed | SubscribeDenied::TooDeep => ReasonCode::TOPIC_FILTER_INVALID,
        SubscribeDenied::Foreign => ReasonCode::NOT_AUTHORIZED,
        SubscribeDenied::Shared => ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED,
    }
}

/// A copy, so that the frame it came in can go.
fn owned(filter: &ByteString) -> ByteString {
    ByteString::from(filter.as_ref() as &str)
}
