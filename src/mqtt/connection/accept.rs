//! From the first byte to CONNACK: who it is, whether it may, and its session.

use std::sync::Arc;

use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};

use super::{finish::Stay, wire::Wire};
use crate::{
    clock::Timestamp,
    identity::Identity,
    interface::Introspection,
    mqtt::{
        Admission, PeerCertificate,
        acl::{Acl, WillDenied},
        broker::{ConnectOutcome, Peer, Shared},
        codec::Violation,
        packet::{ConnAck, Connect, Packet, ReasonCode},
        session::{Agreed, Limits, Policy, Session, Start, agree},
        sessions::{StartRequest, Started},
        takeover::Claim,
    },
};

/// A device that is let in; its CONNACK is in the output.
pub(super) struct Accepted {
    pub(super) stay: Stay,
    pub(super) session: Session,
    pub(super) started: Started,
    pub(super) claim: Claim,
    pub(super) keep_alive: Option<std::time::Duration>,
    /// When the certificate and its grace end.
    pub(super) certificate_ends_at: Option<Timestamp>,
}

/// A CONNECT that is refused: what it is counted as, and what the client is told.
struct Refusal(ConnectOutcome, ReasonCode);

/// Reads the CONNECT and lets the device in. After `Ok` the engine knows that the device is
/// connected, and has to be told once that it is not any more.
///
/// # Errors
/// Why it was not let in; what the client is told is in the output.
pub(super) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    wire: &mut Wire<S>,
    peer: &Peer,
    shared: &Arc<Shared>,
) -> Result<Accepted, ConnectOutcome> {
    let connect = tokio::select! {
        connect = timeout(shared.settings.connect_timeout, read_connect(wire)) => {
            if connect.is_err() {
                wire.give_up();
            }
            connect.unwrap_or(Err(ConnectOutcome::ConnectTimeout))?
        }
        () = shared.drain.cancelled() => return Err(ConnectOutcome::Stopping),
    };
    wire.agreed(connect.version, connect.maximum_packet_size);
    match let_in(connect, peer, shared).await {
        Ok((accepted, connack)) => {
            shared.counters.connect(ConnectOutcome::Accepted);
            push(wire, connack);
            Ok(accepted)
        }
        Err(Refusal(outcome, reason)) => {
            let realm = peer.identity.as_ref().map(|(identity, _)| &identity.realm);
            if let Some(realm) = realm {
                shared.counters.refuse(realm, outcome.as_str());
            }
            tracing::info!(
                realm = realm.map(tracing::field::display),
                device_id =
                    peer.identity.as_ref().map(|(id, _)| tracing::field::display(id.device)),
                peer = %peer.address,
                reason = outcome.as_str(),
                "CONNECT refused"
            );
            push(
                wire,
                ConnAck {
                    reason,
                    ..ConnAck::default()
                },
            );
            Err(outcome)
        }
    }
}

async fn read_connect<S: AsyncRead + AsyncWrite + Unpin>(
    wire: &mut Wire<S>,
) -> Result<Connect, ConnectOutcome> {
    loop {
        match wire.decode() {
            Ok(Some(Packet::Connect(connect))) => return Ok(*connect),
            // the decoder refuses any other first packet
            Ok(Some(_)) => return Err(ConnectOutcome::Malformed),
            Ok(None) => {}
            Err(violation) => {
                tracing::debug!(%violation, "first packet refused");
                wire.push_farewell(violation);
                return Err(outcome_of(violation));
            }
        }
        if !matches!(wire.read().await, Ok(true)) {
            wire.give_up();
            return Err(ConnectOutcome::Lost);
        }
    }
}

async fn let_in(
    connect: Connect,
    peer: &Peer,
    shared: &Arc<Shared>,
) -> Result<(Accepted, ConnAck), Refusal> {
    let (identity, certificate) = match &peer.identity {
        Some((identity, certificate)) => (identity.clone(), Some(Arc::clone(certificate))),
        None => (believed(&connect)?, None),
    };
    let certificate_ends_at = certificate.as_ref().map(|it| {
        it.not_after
            .saturating_add(shared.settings.certificate_expiry_grace)
    });
    if certificate_ends_at.is_some_and(|end| end <= shared.clock.wall()) {
        return Err(Refusal(
            ConnectOutcome::CertificateRefused,
            ReasonCode::NOT_AUTHORIZED,
        ));
    }
    judge_will(&connect, &identity, shared)?;
    let agreed = agree(connect, &identity, &Policy::of(&shared.settings))
        .map_err(|reason| Refusal(ConnectOutcome::Malformed, reason))?;
    let arrival = shared.owners.arrive(&identity);
    let mut introspection = admit(&identity, certificate.as_deref(), shared).await?;
    let claim = tokio::select! {
        claim = shared.owners.claim(&identity, certificate.clone()) => claim
            .map_err(|_| Refusal(ConnectOutcome::Outrun, ReasonCode::SERVER_UNAVAILABLE))?,
        // the older connection cannot end while its end cannot be recorded: try again later
        () = tokio::time::sleep(shared.settings.connect_timeout) => {
            return Err(Refusal(ConnectOutcome::Unavailable, ReasonCode::SERVER_UNAVAILABLE));
        }
        () = shared.drain.cancelled() => {
            return Err(Refusal(ConnectOutcome::Stopping, ReasonCode::SERVER_UNAVAILABLE));
        }
    };
    let still_accepted = certificate.as_ref().is_none_or(|it| {
        shared
            .pools
            .verify(&identity, &it.chain, shared.clock.wall())
            .is_ok()
    });
    if !still_accepted {
        // the pool changed after the handshake; from the claim on live connections are looked at
        return Err(Refusal(
            ConnectOutcome::CertificateRefused,
            ReasonCode::NOT_AUTHORIZED,
        ));
    }
    if arrival.is_stale() {
        // inhibited or deleted since, or an older connection has declared something else
        introspection = admit(&identity, certificate.as_deref(), shared).await?;
    }
    drop(arrival);
    let started = start(&identity, &agreed, shared).await?;
    let stay = Stay {
        identity: identity.clone(),
        epoch: started.epoch,
    };
    shared
        .lifecycle
        .connected(&identity, Some(peer.address.ip()), shared.clock.wall())
        .await;
    tracing::info!(
        realm = %identity.realm,
        device_id = %identity.device,
        peer = %peer.address,
        version = ?agreed.version,
        session_present = started.session_present,
        "connected"
    );
    let keep_alive = agreed.keep_alive;
    let connack = ConnAck {
        session_present: started.session_present,
        ..agreed.connack.clone()
    };
    let limits = Limits::of(&shared.settings);
    let session = Session::new(Start {
        identity,
        introspection,
        agreed,
        limits,
    });
    Ok((
        Accepted {
            stay,
            session,
            started,
            claim,
            keep_alive,
            certificate_ends_at,
        },
        connack,
    ))
}

/// The identity that a client id claims, on the plaintext development listener.
fn believed(connect: &Connect) -> Result<Identity, Refusal> {
    let reason = ReasonCode::CLIENT_IDENTIFIER_NOT_VALID;
    connect
        .client_id
        .parse()
        .map_err(|_| Refusal(ConnectOutcome::BadClientId, reason))
}

fn judge_will(connect: &Connect, identity: &Identity, shared: &Shared) -> Result<(), Refusal> {
    let Some(will) = &connect.will else {
        return Ok(());
    };
    let acl = Acl {
        identity,
        levels_max: shared.settings.topic_levels_max,
    };
    acl.will(&will.topic).map_err(|denied| {
        let reason = match denied {
            WillDenied::Malformed => ReasonCode::TOPIC_NAME_INVALID,
            WillDenied::Foreign => ReasonCode::NOT_AUTHORIZED,
        };
        Refusal(ConnectOutcome::BadWill, reason)
    })
}

/// Asks the engine whether the device may connect. Unreachable: refused, and said so.
async fn admit(
    identity: &Identity,
    certificate: Option<&PeerCertificate>,
    shared: &Shared,
) -> Result<Arc<Introspection>, Refusal> {
    let (outcome, reason) = match shared.registry.admit(identity, certificate).await {
        Admission::Allowed { introspection } => return Ok(introspection),
        Admission::Unknown => (ConnectOutcome::Unknown, ReasonCode::NOT_AUTHORIZED),
        Admission::Inhibited => (ConnectOutcome::Inhibited, ReasonCode::NOT_AUTHORIZED),
        Admission::Deleting => (ConnectOutcome::Deleting, ReasonCode::NOT_AUTHORIZED),
        Admission::Superseded => (ConnectOutcome::Superseded, ReasonCode::NOT_AUTHORIZED),
        Admission::Revoked => (ConnectOutcome::Revoked, ReasonCode::NOT_AUTHORIZED),
        Admission::HeldOff(_) => (ConnectOutcome::HeldOff, ReasonCode::QUOTA_EXCEEDED),
        Admission::Unavailable => (ConnectOutcome::Unavailable, ReasonCode::SERVER_UNAVAILABLE),
    };
    Err(Refusal(outcome, reason))
}

/// Starts or resumes the session: on disk when it returns, so before CONNACK.
async fn start(identity: &Identity, agreed: &Agreed, shared: &Shared) -> Result<Started, Refusal> {
    let request = StartRequest {
        clean_start: agreed.clean_start,
        expiry: agreed.expiry,
        version: agreed.version,
        now: shared.clock.wall(),
    };
    let started = shared.sessions.start(identity, request).await.map_err(|error| {
        tracing::error!(realm = %identity.realm, device_id = %identity.device, %error, "no session");
        Refusal(ConnectOutcome::Unavailable, ReasonCode::SERVER_UNAVAILABLE)
    })?;
    if let Some(epoch) = started.erased {
        shared.intake.forget(identity, epoch);
    }
    shared.wills.came_back(identity, started.session_present);
    Ok(started)
}

const fn outcome_of(violation: Violation) -> ConnectOutcome {
    match violation {
        Violation::ProtocolName | Violation::ProtocolVersion { .. } => {
            ConnectOutcome::UnsupportedVersion
        }
        _ => ConnectOutcome::Malformed,
    }
}

fn push<S: AsyncRead + AsyncWrite + Unpin>(wire: &mut Wire<S>, connack: ConnAck) {
    if let Err(error) = wire.push(&Packet::ConnAck(Box::new(connack))) {
        // a Maximum Packet Size that not even CONNACK fits into
        tracing::info!(%error, "CONNACK could not be sent");
    }
}
