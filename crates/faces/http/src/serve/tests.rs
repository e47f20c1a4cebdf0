//! Connections on real sockets, with a clock that advances only while every task is idle.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::*;
use crate::testing::{Echo, MAX_BODY, Serving, request_head, serving, serving_with};

async fn is_live(stream: &mut TcpStream) -> bool {
    if stream.write_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n").await.is_err() {
        return false;
    }
    let mut reply = [0; 1024];
    let length = stream.read(&mut reply).await.unwrap_or(0);
    reply[..length].starts_with(b"HTTP/1.1 200 ")
}

/// How long the server keeps a connection open after receiving these bytes.
async fn closed_after(serving: &Serving, bytes: &[u8]) -> Duration {
    let mut stream = serving.connect().await;
    stream.write_all(bytes).await.unwrap();
    let start = Instant::now();
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_stays_open_for_hours() {
    let mut stream = serving(Echo::default()).connect().await;
    assert!(is_live(&mut stream).await);
    sleep(Duration::from_secs(6 * 3600)).await;
    assert!(is_live(&mut stream).await);
}

#[tokio::test(start_paused = true)]
async fn only_targets_that_are_no_text_end_the_connection() {
    let serving = serving(Echo::default());
    for (target, status, stays_open) in [
        (b"/live".as_slice(), "200", true),
        (b"/live#x", "200", true),
        (b"/live#", "200", true),
        (b"/live?a#b", "200", true),
        (b"/live%23x", "404", true),
        ("/\u{e9}".as_bytes(), "404", true),
        ("/live/\u{4e2d}".as_bytes(), "404", true),
        (b"/\xe9", "400", false),
        (b"/live\xff", "400", false),
        // The first bytes of a character.
        (b"/live\xe4\xb8", "400", false),
    ] {
        let mut stream = serving.connect().await;
        let head = [b"GET ", target, b" HTTP/1.1\r\nHost: x\r\n\r\n"].concat();
        stream.write_all(&head).await.unwrap();
        let mut reply = [0; 1024];
        let length = stream.read(&mut reply).await.unwrap();
        let reply = String::from_utf8_lossy(&reply[..length]);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{target:?}: {reply}");
        assert_eq!(is_live(&mut stream).await, stays_open, "{target:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_timeout_closes_idle_connections() {
    let options =
        TransportOptions { idle_timeout: Some(Duration::from_secs(150)), ..TransportOptions::default() };
    let serving = serving_with(Echo::default(), options);
    for bytes in [b"".as_slice(), b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let waited = closed_after(&serving, bytes).await;
        assert!((150..=170).contains(&waited.as_secs()), "{waited:?}");
    }
    let waited = closed_after(&serving, b"GET /li").await;
    assert!((60..=80).contains(&waited.as_secs()), "{waited:?}");
}

#[tokio::test]
async fn busy_connections_keep_their_slots_and_others_wait() {
    let options = TransportOptions { max_connections: Some(1), ..TransportOptions::default() };
    let face = Echo::default();
    let (held, release) = (Arc::clone(&face.held), Arc::clone(&face.release));
    let serving = serving_with(face, options);
    let mut first = serving.connect().await;
    first.write_all(b"POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    held.notified().await;
    let mut second = serving.connect().await;
    second.write_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut reply = [0; 13];
    let waited = tokio::time::timeout(Duration::from_secs(1), second.read_exact(&mut reply)).await;
    assert!(waited.is_err(), "it was served although the only slot is taken");
    release.notify_one();
    first.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 200 ");
    // The first connection is idle now, and has to make room.
    second.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 200 ");
}

#[tokio::test(start_paused = true)]
async fn longest_idle_connection_makes_room() {
    for limit in [1, 2, 5] {
        let options = TransportOptions { max_connections: Some(limit), ..TransportOptions::default() };
        let serving = serving_with(Echo::default(), options);
        let mut open = Vec::new();
        for _ in 0..limit {
            let mut stream = serving.connect().await;
            assert!(is_live(&mut stream).await);
            open.push(stream);
            sleep(Duration::from_secs(60)).await;
        }
        // The first is used again, and so the second is idle longest.
        assert!(is_live(&mut open[0]).await);
        let longest = 1 % limit;
        assert!(is_live(&mut serving.connect().await).await, "of {limit}");
        for (index, stream) in open.iter_mut().enumerate() {
            assert_eq!(stream.try_read(&mut [0; 1]).is_ok(), index == longest, "{index} of {limit}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn connections_stopped_within_a_request_make_room() {
    // Bytes sent, and the seconds after which another connection takes the slot.
    let in_body = request_head("POST", "/echo", "", 5) + "ab";
    for (sent, limit_s) in [("G", 2), ("GET /live HTTP/1.1\r\nHo", 2), (&*in_body, 40)] {
        for count in [1, 3] {
            let options = TransportOptions { max_connections: Some(count), ..TransportOptions::default() };
            let serving = serving_with(Echo::default(), options);
            let mut stopped = Vec::new();
            for _ in 0..count {
                let mut stream = serving.connect().await;
                stream.write_all(sent.as_bytes()).await.unwrap();
                stopped.push(stream);
            }
            let start = Instant::now();
            assert!(is_live(&mut serving.connect().await).await, "{count} sent {sent:?}");
            assert!(start.elapsed().as_secs() < limit_s, "{count} sent {sent:?}: {:?}", start.elapsed());
            let open = stopped.iter().filter(|it| it.try_read(&mut [0; 1]).is_err()).count();
            assert_eq!(open, count - 1, "{sent:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn trickling_body_is_given_up_unless_it_ends_in_time() {
    // Bytes at a time, seconds between them, and whether the body of that length is read to its end.
    for (piece, pause, length, is_read) in [
        (1, 20, 100, false),
        (1, 50, MAX_BODY, false),
        (1, 5, 10, true),
        (100, 20, 1000, false),
        (1500, 20, MAX_BODY, true),
    ] {
        let (mut reader, mut writer) = serving(Echo::default()).connect().await.into_split();
        let head = request_head("POST", "/echo", "Connection: close\r\n", length);
        let trickle = tokio::spawn(async move {
            writer.write_all(head.as_bytes()).await.unwrap();
            let mut left = length;
            while left > 0 && writer.write_all(&vec![b'x'; piece.min(left)]).await.is_ok() {
                left -= piece.min(left);
                sleep(Duration::from_secs(pause)).await;
            }
        });
        let start = Instant::now();
        let mut reply = Vec::new();
        let _ = reader.read_to_end(&mut reply).await;
        assert_eq!(reply.starts_with(b"HTTP/1.1 200 "), is_read, "{piece} bytes each {pause} s of {length}");
        assert!(start.elapsed() < Duration::from_secs(100), "{:?}", start.elapsed());
        trickle.abort();
    }
}

/// An idle connection is mostly its task. With the rest of the task, this just fits a block of 2,048 bytes.
#[test]
fn the_task_of_a_connection_is_small() {
    let (_near, far) = tokio::io::duplex(1);
    let (options, shutdown, ending) =
        (TransportOptions::default(), CancellationToken::new(), AtomicBool::new(false));
    let transport = Arc::new(Transport { router: Echo::default().into(), options, shutdown, ending });
    let pace = Pace::new(false, None);
    let task = converse(far, transport, pace, Identity::default(), CancellationToken::new());
    assert!(size_of_val(&task) <= 1_536, "{} bytes", size_of_val(&task));
}

#[tokio::test]
async fn every_request_of_a_connection_has_its_principal() {
    for name in [None, Some("client"), Some("spiffe://example/a b")] {
        let (mut near, far) = tokio::io::duplex(1024);
        let (options, shutdown, ending) =
            (TransportOptions::default(), CancellationToken::new(), AtomicBool::new(false));
        let transport = Arc::new(Transport { router: Echo::default().into(), options, shutdown, ending });
        tokio::spawn(converse(
            far,
            transport,
            Pace::new(false, None),
            Identity::of_connection(Origin { certificate: name.map(Principal::new), ..Origin::default() }),
            CancellationToken::new(),
        ));
        let mut replies = String::new();
        near.write_all(request_head("GET", "/principal", "", 0).as_bytes()).await.unwrap();
        near.write_all(request_head("GET", "/principal", "Connection: close\r\n", 0).as_bytes())
            .await
            .unwrap();
        near.read_to_string(&mut replies).await.unwrap();
        let bodies: Vec<_> = replies.split("HTTP/1.1 200 OK").skip(1).collect();
        assert_eq!(bodies.len(), 2, "{replies}");
        assert!(bodies.iter().all(|body| body.ends_with(&format!("\r\n\r\n{}", name.unwrap_or_default()))));
    }
}

#[tokio::test(start_paused = true)]
async fn unread_reply_is_given_up() {
    // In-memory connections accept as many bytes as their buffer holds.
    for (pause, is_read) in [(0, true), (1, true), (400, false)] {
        let (mut near, far) = tokio::io::duplex(1024);
        let (options, shutdown, ending) =
            (TransportOptions::default(), CancellationToken::new(), AtomicBool::new(false));
        let transport = Arc::new(Transport { router: Echo::default().into(), options, shutdown, ending });
        tokio::spawn(converse(
            far,
            transport,
            Pace::new(false, None),
            Identity::default(),
            CancellationToken::new(),
        ));
        let head = request_head("POST", "/echo", "Connection: close\r\n", MAX_BODY);
        near.write_all(head.as_bytes()).await.unwrap();
        near.write_all(&[b'x'; MAX_BODY]).await.unwrap();
        let mut reply = Vec::new();
        let mut piece = [0; 64];
        while let Ok(count @ 1..) = near.read(&mut piece).await {
            reply.extend_from_slice(&piece[..count]);
            sleep(Duration::from_secs(pause)).await;
        }
        assert_eq!(reply.ends_with(&[b'x'; MAX_BODY]), is_read, "{pause} s between reads");
    }
}

#[tokio::test(start_paused = true)]
async fn client_stalled_in_head_or_body_is_disconnected() {
    let serving = serving(Echo::default());
    for request in [b"GET /li".as_slice(), b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{}"] {
        let waited = closed_after(&serving, request).await;
        assert!((60..=80).contains(&waited.as_secs()), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn trickling_head_is_given_up() {
    let (mut reader, mut writer) = serving(Echo::default()).connect().await.into_split();
    let start = Instant::now();
    let trickle = tokio::spawn(async move {
        while writer.write_all(b"G").await.is_ok() {
            sleep(Duration::from_secs(5)).await;
        }
    });
    let mut reply = Vec::new();
    let _ = reader.read_to_end(&mut reply).await;
    assert!(start.elapsed() < Duration::from_secs(90), "{:?}", start.elapsed());
    trickle.abort();
}

#[tokio::test(start_paused = true)]
async fn shutdown_closes_idle_connections_and_accepts_no_new_ones() {
    let Serving { address, shutdown, serving, .. } = serving(Echo::default());
    let mut idle = TcpStream::connect(address).await.unwrap();
    assert!(is_live(&mut idle).await);
    shutdown.cancel();
    serving.await.unwrap();
    assert!(!is_live(&mut idle).await);
    assert!(TcpStream::connect(address).await.is_err());
}

/// The head of the reply to another request, and whether the connection ends with it; `None` if it ended before.
async fn reply_and_end(stream: &mut TcpStream) -> Option<(String, bool)> {
    stream.write_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n").await.ok()?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let ends = tokio::time::timeout(Duration::from_secs(5), stream.read_u8()).await.is_ok();
    Some((String::from_utf8(head).unwrap().to_ascii_lowercase(), ends))
}

#[tokio::test(start_paused = true)]
async fn shutdown_announces_the_close_in_the_next_reply() {
    for (pause_ms, is_answered) in
        [(0, true), (1, true), (200, true), (490, true), (600, false), (9000, false)]
    {
        for asked_before in [false, true] {
            let serving = serving(Echo::default());
            let mut stream = serving.connect().await;
            if asked_before {
                let (head, ends) = reply_and_end(&mut stream).await.unwrap();
                assert!(!head.contains("connection: close") && !ends, "{head}");
            }
            sleep(Duration::from_millis(30)).await;
            serving.shutdown.cancel();
            // Lets the transport see it.
            sleep(Duration::from_millis(30)).await;
            sleep(Duration::from_millis(pause_ms).saturating_sub(Duration::from_millis(30))).await;
            let reply = reply_and_end(&mut stream).await;
            assert_eq!(reply.is_some(), is_answered, "after {pause_ms} ms");
            if let Some((head, ends)) = reply {
                assert!(
                    head.starts_with("http/1.1 200 ") && head.contains("connection: close") && ends,
                    "{head}"
                );
            }
            serving.serving.await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_idle_clients() {
    const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = format!("{PREFACE}\0\0\0\x04\0\0\0\0\0");
    let half_a_frame = format!("{settings}\0\0\x30\x01\x04");
    let unread = request_head("POST", "/echo", "", MAX_BODY) + &"x".repeat(MAX_BODY);
    let half_a_body = request_head("POST", "/echo", "", 5) + "ab";
    // What they sent before, and within how many seconds the connection is closed.
    for (sent, seconds) in [
        ("", 0..=1),
        ("GET /live HTTP/1.1\r\nHo", 5..=10),
        ("PRI * HT", 5..=10),
        (PREFACE, 5..=10),
        (&settings, 5..=10),
        (&half_a_frame, 5..=10),
        // It may be on its way.
        (&half_a_body, 15..=30),
        // It may be read.
        (&unread, 299..=320),
    ] {
        let (mut near, far) = tokio::io::duplex(1024);
        let (options, shutdown, ending) =
            (TransportOptions::default(), CancellationToken::new(), AtomicBool::new(false));
        let transport = Arc::new(Transport {
            router: Echo::default().into(),
            options,
            shutdown: shutdown.clone(),
            ending,
        });
        let served = tokio::spawn(converse(
            far,
            transport,
            Pace::new(false, None),
            Identity::default(),
            CancellationToken::new(),
        ));
        near.write_all(sent.as_bytes()).await.unwrap();
        sleep(Duration::from_millis(10)).await;
        shutdown.cancel();
        let start = Instant::now();
        served.await.unwrap();
        assert!(seconds.contains(&start.elapsed().as_secs()), "{sent:.40?}: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn long_idle_connection_is_closed_at_once() {
    let serving = serving(Echo::default());
    let mut idle = serving.connect().await;
    assert!(is_live(&mut idle).await);
    sleep(Duration::from_secs(25)).await;
    let start = Instant::now();
    serving.shutdown.cancel();
    serving.serving.await.unwrap();
    assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn closing_transport_serves_open_and_arriving_connections_only() {
    let Serving { address, closing, shutdown, serving } = serving(Echo::default());
    let mut open = TcpStream::connect(address).await.unwrap();
    assert!(is_live(&mut open).await);
    // The system has accepted it; the transport has not seen it yet.
    let mut on_its_way = TcpStream::connect(address).await.unwrap();
    closing.cancel();
    for _ in 0..3 {
        for stream in [&mut open, &mut on_its_way] {
            let (head, ends) = reply_and_end(stream).await.unwrap();
            assert!(head.starts_with("http/1.1 200 ") && !head.contains("connection:") && !ends, "{head}");
        }
    }
    assert!(TcpStream::connect(address).await.is_err());
    assert!(!serving.is_finished());
    shutdown.cancel();
    serving.await.unwrap();
    assert!(!is_live(&mut open).await);
}

#[tokio::test]
async fn shutdown_waits_for_requests_in_progress() {
    let face = Echo::default();
    let (held, release) = (Arc::clone(&face.held), Arc::clone(&face.release));
    let Serving { address, shutdown, serving, .. } = serving(face);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request_head("POST", "/hold", "", 0).as_bytes()).await.unwrap();
    held.notified().await;
    shutdown.cancel();
    release.notify_one();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pipelined_request_behind_a_slow_one_is_kept() {
    let served = serving(Echo::default());
    let mut stream = served.connect().await;
    stream.write_all(request_head("POST", "/hold", "", 0).as_bytes()).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    stream.write_all(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut reply = [0; 1024];
    let waited = tokio::time::timeout(Duration::from_secs(3600), stream.read(&mut reply)).await;
    assert!(waited.is_err(), "the connection was closed");
}

#[tokio::test(start_paused = true)]
async fn http1_is_detected_when_it_begins_like_http2() {
    let mut stream = serving(Echo::default()).connect().await;
    for piece in [b"P".as_slice(), b"RI", b" /live HTTP/1.1\r\nHost: x\r\n\r\n"] {
        stream.write_all(piece).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    let mut reply = [0; 1024];
    let length = stream.read(&mut reply).await.unwrap();
    assert!(reply[..length].starts_with(b"HTTP/1.1 405 "));
    assert!(is_live(&mut stream).await);
}
