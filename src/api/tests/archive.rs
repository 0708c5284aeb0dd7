//! Backup and restore.

use super::*;

async fn backup(house: &House) -> Vec<u8> {
    let mut request = Request::post("/tanit/v1/backup")
        .body(Body::empty())
        .unwrap();
    request.extensions_mut().insert(OPERATOR);
    let response = house.router.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    axum::body::to_bytes(response.into_body(), usize::MAX)
        .await
        .unwrap()
        .to_vec()
}

async fn restore(house: &House, archive: Vec<u8>) -> Answer {
    let request = Request::post("/tanit/v1/restore")
        .body(Body::from(archive))
        .unwrap();
    house.send(OPERATOR, request).await
}

fn names(archive: &[u8]) -> Vec<String> {
    let mut tar = tar::Archive::new(archive);
    let entries = tar.entries().unwrap();
    entries
        .map(|entry| entry.unwrap().path().unwrap().display().to_string())
        .collect()
}

#[tokio::test]
async fn a_backup_holds_everything_but_the_master_key_and_comes_back_whole() {
    let house = House::start().await;
    house.register(ID).await;
    let dir = house.dir.path();
    std::fs::write(dir.join("server.crt"), "a certificate").unwrap();
    std::fs::write(dir.join("master.key"), "a secret").unwrap();
    std::fs::create_dir(dir.join("crl")).unwrap();
    std::fs::write(dir.join("crl/acme.pem"), "a CRL").unwrap();
    std::fs::write(dir.join("crl/notes.txt"), "no CRL").unwrap();
    let archive = backup(&house).await;
    assert_eq!(
        names(&archive),
        [
            "manifest.json",
            "crl/acme.pem",
            "server.crt",
            "sessions.redb",
            "tanit.db"
        ]
    );

    restore(&house, archive).await.is(202);
    let staged = house.node.restarted_with.lock().unwrap().clone().unwrap();
    assert_eq!(staged, dir.join("restore/staged"));
    assert_eq!(
        std::fs::read(staged.join("server.crt")).unwrap(),
        b"a certificate"
    );
    assert!(!dir.join("restore/upload.tar").exists());
    // what was handed over lies still until the node has taken it
    restore(&house, Vec::new()).await.is(409);
    assert!(staged.exists());
    let store = SqliteStore::open(&staged.join("tanit.db")).await.unwrap();
    assert!(store.device(&identity(ID)).await.unwrap().is_some());
    store.close().await;
    let audited = house.audited().await;
    for action in ["node.backup", "node.restore"] {
        let row = (
            "socket:1000".to_owned(),
            action.to_owned(),
            "node".to_owned(),
        );
        assert!(audited.contains(&row), "{audited:?}");
    }
    assert!(std::fs::read_dir(dir).unwrap().all(|entry| {
        !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("backup-")
    }));
}

#[tokio::test]
async fn an_archive_that_is_cut_changed_or_foreign_is_refused_as_a_whole() {
    let house = House::start().await;
    let archive = backup(&house).await;
    let mut changed = archive.clone();
    let at = changed
        .windows(16)
        .position(|w| w == b"SQLite format 3\0")
        .unwrap();
    changed[at + 200] ^= 1;
    let mut strange = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(1);
    strange
        .append_data(&mut header, "etc/passwd", &b"x"[..])
        .unwrap();
    for (why, archive) in [
        ("empty", Vec::new()),
        ("rubbish", b"rubbish".to_vec()),
        ("cut", archive[..archive.len() / 2].to_vec()),
        ("changed", changed),
        ("strange", strange.into_inner().unwrap()),
    ] {
        let refused = restore(&house, archive).await;
        assert_eq!(
            refused.status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{why}: {refused:?}"
        );
        assert!(!house.dir.path().join("restore/staged").exists(), "{why}");
    }
    assert!(house.node.restarted_with.lock().unwrap().is_none());

    let other = House::start().await;
    let refused = restore(&other, archive).await.is(422);
    assert!(refused.detail().contains("master key"), "{refused:?}");
}

#[tokio::test]
async fn one_archive_is_made_at_a_time() {
    let house = House::start().await;
    std::fs::create_dir(house.dir.path().join("crl")).unwrap();
    // more than waits in the channel, so that the first is not done while nobody reads
    std::fs::write(
        house.dir.path().join("crl/acme.pem"),
        vec![b' '; 4 * 1024 * 1024],
    )
    .unwrap();
    let mut request = Request::post("/tanit/v1/backup")
        .body(Body::empty())
        .unwrap();
    request.extensions_mut().insert(OPERATOR);
    let slow = house.router.clone().oneshot(request).await.unwrap();
    house
        .call(OPERATOR, Method::POST, "/tanit/v1/backup", None, None)
        .await
        .is(409);
    restore(&house, Vec::new()).await.is(409);
    axum::body::to_bytes(slow.into_body(), usize::MAX)
        .await
        .unwrap();
    backup(&house).await;
}
