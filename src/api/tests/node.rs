//! The node's own routes, probes, metrics and limits.

use super::*;

#[tokio::test]
async fn probes_tell_alive_from_ready_with_empty_bodies() {
    let house = House::start().await;
    assert_eq!(house.get(REMOTE, "/health", None).await.is(200).text, "");
    house.node.ready.store(false, Ordering::Relaxed);
    assert_eq!(house.get(REMOTE, "/health", None).await.is(503).text, "");
    house.get(REMOTE, "/health/live", None).await.is(200);
    for service in ["pairing", "realmmanagement", "appengine", "housekeeping"] {
        house
            .get(REMOTE, &format!("/{service}/health"), None)
            .await
            .is(503);
        house
            .get(REMOTE, &format!("/{service}/version"), None)
            .await
            .is(200);
    }
    let reasons = house
        .get(OPERATOR, "/tanit/v1/health", None)
        .await
        .is(200)
        .data();
    assert_eq!(reasons, json!({ "ready": false, "reasons": ["starting"] }));
    assert_eq!(
        house.get(REMOTE, "/version", None).await.is(200).data(),
        "1.3.0"
    );
}

#[tokio::test]
async fn status_shows_addresses_and_counts() {
    let house = House::start().await;
    house.live.connect(&identity(ID));
    let status = house
        .get(OPERATOR, "/tanit/v1/status", None)
        .await
        .is(200)
        .data();
    assert_eq!(status["mqtt"], "127.0.0.1:8883");
    assert_eq!(status["ready"], true);
    assert_eq!(status["realms"], 1);
    assert_eq!(status["connected_devices"], 1);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(status["uptime_seconds"], 7);
}

#[tokio::test]
async fn a_reload_is_on_record_and_says_what_it_did() {
    let house = House::start().await;
    let reloaded = house
        .call(OPERATOR, Method::POST, "/tanit/v1/reload", None, None)
        .await
        .is(200);
    assert_eq!(
        reloaded.data(),
        json!({ "reloaded": ["server certificate"], "errors": [] })
    );
    let audit = house
        .get(OPERATOR, "/tanit/v1/audit?limit=1", None)
        .await
        .is(200)
        .data();
    assert_eq!(audit[0]["action"], "node.reload");
    assert_eq!(audit[0]["actor"], "socket:1000");
    house.get(OPERATOR, "/tanit/v1/config", None).await.is(200);
}

#[tokio::test]
async fn metrics_are_open_to_this_machine_only() {
    let house = House::start().await;
    let here = Peer::Tcp("127.0.0.1:1".parse().unwrap());
    let mapped = Peer::Tcp("[::ffff:127.0.0.1]:1".parse().unwrap());
    for peer in [here, mapped, OPERATOR] {
        let text = house.get(peer, "/metrics", None).await.is(200).text;
        assert_eq!(text, "tanit_connections 0\n");
    }
    house.get(REMOTE, "/metrics", None).await.is(401);
    let claims = tokens::claims(&[TokenApi::Housekeeping], house.clock_wall(), None);
    let token = tokens::sign(&house.housekeeping.private_key_pem, &claims).unwrap();
    house.get(REMOTE, "/metrics", Some(&token)).await.is(200);
}

#[tokio::test]
async fn unknown_routes_are_answered_in_each_service_s_words() {
    let house = House::start().await;
    for (path, text) in [
        ("/pairing/v1/acme/x", "Page not found"),
        ("/pairing/x", "Page not found"),
        ("/housekeeping/v1/x", "Page not found"),
        ("/tanit/v1/x", "Not found"),
        ("/x", "Not found"),
        ("/", "Not found"),
        ("/pairing/v2/acme", "Page not found"),
    ] {
        let missing = house.get(OPERATOR, path, None).await;
        assert_eq!(missing.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(missing.detail(), text, "{path}");
    }
    for path in [
        "/housekeeping/v1/realms",
        "/tanit/v1/status",
        "/pairing/v1/acme/agent/devices",
    ] {
        let refused = house.call(OPERATOR, Method::PUT, path, None, None).await;
        assert_eq!(refused.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
        assert_eq!(refused.detail(), "Method not allowed", "{path}");
    }
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused() {
    let house = House::start().await;
    let body = Body::from(vec![b' '; 1024 * 1024 + 1]);
    let request = Request::post("/housekeeping/v1/realms").body(body).unwrap();
    house.send(OPERATOR, request).await.is(413);
}

#[tokio::test]
async fn more_requests_than_allowed_are_told_to_come_back() {
    let house = House::with(limits(1), false).await;
    let gate = Arc::new(super::super::limits::Gate::new(
        Limits {
            requests: 0,
            ..Limits::default()
        },
        TaskTracker::new(),
    ));
    let router = Router::new()
        .route("/", axum::routing::get(async || "done"))
        .layer(axum::middleware::from_fn_with_state(
            gate,
            super::super::limits::bounded,
        ));
    let response = router
        .oneshot(Request::get("/").body(Body::empty()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    // one at a time is allowed, and its place comes back
    house.get(OPERATOR, "/tanit/v1/health", None).await.is(200);
    house.get(OPERATOR, "/tanit/v1/health", None).await.is(200);
}

#[tokio::test]
async fn fc_098_while_the_database_is_away_the_answer_is_try_again() {
    let house = House::start().await;
    let secret = house.register(ID).await;
    let token = house.token(TokenApi::Pairing);
    house.api.store.close().await;
    let device = format!("/pairing/v1/acme/devices/{ID}");
    for answer in [
        house.get(REMOTE, &device, Some(&secret)).await,
        house.get(REMOTE, &device, Some("wrong")).await,
        house
            .post(
                REMOTE,
                "/pairing/v1/acme/agent/devices",
                Some(&token),
                json!({ "hw_id": ID }),
            )
            .await,
        house.get(OPERATOR, "/housekeeping/v1/realms", None).await,
    ] {
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{answer:?}");
        assert_eq!(answer.headers[header::RETRY_AFTER], "5");
    }
    house.get(OPERATOR, "/tanit/v1/status", None).await.is(200);
}

#[tokio::test]
async fn a_change_runs_to_its_end_when_its_caller_hangs_up() {
    let gate = Arc::new(super::super::limits::Gate::new(
        Limits::default(),
        TaskTracker::new(),
    ));
    let (started, begun) = tokio::sync::oneshot::channel::<()>();
    let (go, wait) = tokio::sync::oneshot::channel::<()>();
    let (finished, done) = tokio::sync::oneshot::channel::<()>();
    let parts = Arc::new(Mutex::new(Some((started, wait, finished))));
    let handler = async move || {
        let (started, wait, finished) = parts.lock().unwrap().take().unwrap();
        started.send(()).unwrap();
        wait.await.unwrap();
        finished.send(()).unwrap();
    };
    let router = Router::new()
        .route("/", axum::routing::post(handler))
        .layer(axum::middleware::from_fn_with_state(
            gate,
            super::super::limits::bounded,
        ));
    let mut call = Box::pin(router.oneshot(Request::post("/").body(Body::empty()).unwrap()));
    tokio::select! {
        _ = &mut call => panic!("it waits to be told"),
        begun = begun => begun.unwrap(),
    }
    drop(call);
    go.send(()).unwrap();
    done.await.expect("the change was finished");
}
