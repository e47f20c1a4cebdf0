//! Connections in memory, under paused time: with h2's client, with single frames, and with random ones.

use std::sync::Mutex;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::frame::{
    ACK, CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEAD, HEADERS, Head, PADDED, PING, PREFACE,
    PRIORITISED, PRIORITY, PUSH_PROMISE, RST_STREAM, SETTINGS, WINDOW_UPDATE, put_head,
};
use crate::{Cancelled, Incoming};

const OPTIONS: Options = Options {
    max_streams: 10,
    stream_window: 1 << 16,
    connection_window: 1 << 17,
    max_frame: 1 << 15,
    max_head: 1 << 10,
    max_pending_resets: 20,
    max_error_resets: 30,
    keepalive: None,
    taking: Duration::from_secs(300),
};

/// Answers with the body of the request. Panics at the path `/panic`, and never answers at `/wait`.
#[derive(Default)]
struct Echo {
    cancelled: Arc<Mutex<u32>>,
}

struct Pending(Option<Incoming>, bool, Arc<Mutex<u32>>);

impl Future for Pending {
    type Output = Response<Incoming>;

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Response<Incoming>> {
        match self.1 {
            true => Poll::Pending,
            false => Poll::Ready(Response::new(self.0.take().unwrap())),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        *self.2.lock().unwrap() += u32::from(self.0.is_some());
    }
}

impl Service for Echo {
    type Body = Incoming;
    type Future = Pending;

    fn call(&self, request: Request<Incoming>) -> Pending {
        let path = request.uri().path().to_owned();
        assert_ne!(path, "/panic");
        Pending(Some(request.into_body()), path == "/wait", Arc::clone(&self.cancelled))
    }
}

/// The client's end, and the outcome of the server's.
fn served(options: Options) -> (DuplexStream, JoinHandle<Result<(), Error>>) {
    let (near, far) = duplex(1 << 20);
    (near, tokio::spawn(Connection::new(far, Echo::default(), options, None, Arc::default())))
}

fn run<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(future)
}

fn frame(kind: u8, flags: u8, stream: u32, contents: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_head(&mut bytes, contents.len(), kind, flags, stream);
    bytes.extend(contents);
    bytes
}

/// POST, http, the path, and no authority.
fn head(path: &str) -> Vec<u8> {
    [b"\x83\x86\x04", &[path.len() as u8][..], path.as_bytes()].concat()
}

/// Sends frames behind the preface and settings. Returns the frames that come back until the server has nothing to do, and how it
/// ended, if it did.
async fn exchange(frames: &[Vec<u8>], size: usize) -> (Vec<(Head, Vec<u8>)>, Option<Result<(), Error>>) {
    let (mut near, server) = served(OPTIONS);
    let bytes = [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[]), frames.concat()].concat();
    let mut answered = Vec::new();
    for piece in bytes.chunks(size) {
        if near.write_all(piece).await.is_err() {
            break;
        }
        tokio::task::yield_now().await;
    }
    let mut buffer = [0; 4096];
    while let Ok(Ok(count @ 1..)) = timeout(Duration::from_millis(1), near.read(&mut buffer)).await {
        answered.extend(&buffer[..count]);
    }
    let ended = if server.is_finished() { Some(server.await.unwrap()) } else { None };
    let (mut found, mut rest) = (Vec::new(), &answered[..]);
    while let Some(head) = Head::read(rest) {
        found.push((head, rest[HEAD..HEAD + head.length].to_vec()));
        rest = &rest[HEAD + head.length..];
    }
    assert!(rest.is_empty());
    (found, ended)
}

/// The code of the GOAWAY frame, and the streams that were reset with their codes.
fn endings(frames: &[(Head, Vec<u8>)]) -> (Option<u32>, Vec<(u32, u32)>) {
    let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    let goaway = frames.iter().find(|(head, _)| head.kind == GOAWAY).map(|(_, it)| number(&it[4..8]));
    let resets = frames.iter().filter(|(head, _)| head.kind == RST_STREAM);
    (goaway, resets.map(|(head, contents)| (head.stream, number(contents))).collect())
}

/// Frames, the code of GOAWAY, and the streams that are reset with their codes.
type Case = (Vec<Vec<u8>>, Option<u32>, Vec<(u32, u32)>);

#[test]
fn frames_that_break_the_protocol_end_their_stream_or_the_connection() {
    const OPEN: u8 = END_HEADERS;
    let wait = |stream| frame(HEADERS, OPEN, stream, &head("/wait"));
    let whole = |stream| frame(HEADERS, OPEN | END_STREAM, stream, &head("/"));
    let with = |block: &[u8]| frame(HEADERS, OPEN | END_STREAM, 1, &[head("/"), block.to_vec()].concat());
    let four = |number: u32| number.to_be_bytes().to_vec();
    let setting = |name: u16, value: u32| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat();
    let data = |length: usize| frame(DATA, 0, 1, &vec![7; length]);
    let (protocol, flow, closed, size) = (0x1, 0x3, 0x5, 0x6);
    let (compression, calm) = (0x9, 0xb);
    let cases: Vec<Case> = vec![
        (vec![whole(1), whole(3)], None, vec![]),
        (vec![frame(0x77, 0xff, 9, &[1, 2, 3])], None, vec![]),
        // Streams.
        (vec![whole(2)], Some(protocol), vec![]),
        (vec![whole(0)], Some(protocol), vec![]),
        (vec![frame(HEADERS, OPEN | END_STREAM, 1, &head("/wait")), whole(1)], None, vec![(1, closed)]),
        (vec![wait(5), whole(3)], Some(protocol), vec![]),
        ((0..11).map(|index| wait(2 * index + 1)).collect(), None, vec![(21, 0x7)]),
        (vec![frame(HEADERS, OPEN | END_STREAM, 1, &head("/panic"))], None, vec![(1, 0x2)]),
        // DATA.
        (vec![frame(DATA, 0, 0, &[])], Some(protocol), vec![]),
        (vec![frame(DATA, 0, 1, &[])], Some(protocol), vec![]),
        (vec![wait(1), frame(DATA, PADDED, 1, &[3, 0, 0])], Some(protocol), vec![]),
        (vec![wait(1), frame(DATA, END_STREAM, 1, &[7]), data(1)], None, vec![(1, closed)]),
        (vec![wait(1), data(1 << 15), data(1 << 15)], None, vec![]),
        (vec![wait(1), data(1 << 15), data(1 << 15), data(1)], None, vec![(1, flow)]),
        (vec![wait(1), data((1 << 15) + 1)], Some(size), vec![]),
        // Heads.
        (vec![frame(HEADERS, OPEN, 1, b"\xff")], Some(compression), vec![]),
        (vec![frame(HEADERS, OPEN | END_STREAM, 1, b"\x83\x86")], None, vec![(1, protocol)]),
        (vec![with(b"\x86")], None, vec![(1, protocol)]),
        (vec![with(b"\x00\x01A\x01x")], None, vec![(1, protocol)]),
        (vec![with(b"\x00\x02te\x04gzip")], None, vec![(1, protocol)]),
        (vec![with(b"\x00\x02te\x08trailers")], None, vec![]),
        (vec![with(b"\x00\x0aconnection\x05close")], None, vec![(1, protocol)]),
        (vec![with(b"\x00\x01a\x01x\x82")], None, vec![(1, protocol)]),
        (vec![with(b"\x00\x07:status\x03200")], None, vec![(1, protocol)]),
        (vec![with(b"\x0f\x0d\x013")], None, vec![(1, protocol)]),
        (vec![frame(HEADERS, OPEN | PRIORITISED, 1, &[0, 0, 0, 1, 9])], None, vec![(1, protocol)]),
        (vec![frame(HEADERS, OPEN | PRIORITISED, 1, &[0, 0])], Some(size), vec![]),
        (vec![frame(HEADERS, OPEN | PADDED, 1, &[9, 0])], Some(protocol), vec![]),
        // Trailers.
        (vec![wait(1), frame(HEADERS, OPEN | END_STREAM, 1, b"\x00\x01a\x01x")], None, vec![]),
        (vec![wait(1), frame(HEADERS, OPEN, 1, b"\x00\x01a\x01x")], None, vec![(1, protocol)]),
        (vec![wait(1), frame(HEADERS, OPEN | END_STREAM, 1, b"\x83")], None, vec![(1, protocol)]),
        // CONTINUATION.
        (vec![frame(CONTINUATION, END_HEADERS, 1, &[])], Some(protocol), vec![]),
        (vec![frame(HEADERS, 0, 1, &head("/")), frame(PING, 0, 0, &[0; 8])], Some(protocol), vec![]),
        (vec![frame(HEADERS, 0, 1, &[]), frame(CONTINUATION, END_HEADERS, 3, &[])], Some(protocol), vec![]),
        (
            [vec![frame(HEADERS, END_STREAM, 1, &[])], vec![frame(CONTINUATION, 0, 1, &[]); 65]].concat(),
            Some(calm),
            vec![],
        ),
        (
            vec![
                frame(HEADERS, END_STREAM, 1, &head("/")[..2]),
                frame(CONTINUATION, 0, 1, &[]),
                frame(CONTINUATION, END_HEADERS, 1, &head("/")[2..]),
            ],
            None,
            vec![],
        ),
        // RST_STREAM, PRIORITY, SETTINGS, PUSH_PROMISE, PING, GOAWAY.
        (vec![frame(RST_STREAM, 0, 1, &four(8))], Some(protocol), vec![]),
        (vec![wait(1), frame(RST_STREAM, 0, 1, &[8])], Some(size), vec![]),
        (vec![wait(1), frame(RST_STREAM, 0, 1, &four(8)), whole(3)], None, vec![]),
        (vec![frame(PRIORITY, 0, 1, &[0, 0, 0, 3, 1])], None, vec![]),
        (vec![frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 1])], Some(protocol), vec![]),
        (vec![frame(PRIORITY, 0, 1, &[0])], Some(size), vec![]),
        (vec![frame(SETTINGS, 0, 1, &[])], Some(protocol), vec![]),
        (vec![frame(SETTINGS, 0, 0, &[0; 5])], Some(size), vec![]),
        (vec![frame(SETTINGS, ACK, 0, &[0; 6])], Some(size), vec![]),
        (vec![frame(SETTINGS, 0, 0, &setting(2, 2))], Some(protocol), vec![]),
        (vec![frame(SETTINGS, 0, 0, &setting(4, 1 << 31))], Some(flow), vec![]),
        (vec![frame(SETTINGS, 0, 0, &setting(5, 100))], Some(protocol), vec![]),
        (vec![frame(SETTINGS, 0, 0, &setting(99, 1))], None, vec![]),
        (vec![frame(PUSH_PROMISE, END_HEADERS, 1, &[0; 4])], Some(protocol), vec![]),
        (vec![frame(PING, 0, 1, &[0; 8])], Some(protocol), vec![]),
        (vec![frame(PING, 0, 0, &[0; 7])], Some(size), vec![]),
        (vec![frame(GOAWAY, 0, 1, &[0; 8])], Some(protocol), vec![]),
        // WINDOW_UPDATE.
        (vec![frame(WINDOW_UPDATE, 0, 1, &four(1))], Some(protocol), vec![]),
        (vec![frame(WINDOW_UPDATE, 0, 0, &four(0))], Some(protocol), vec![]),
        (vec![frame(WINDOW_UPDATE, 0, 0, &[1])], Some(size), vec![]),
        (vec![frame(WINDOW_UPDATE, 0, 0, &four(0x7fff_ffff))], Some(flow), vec![]),
        (vec![wait(1), frame(WINDOW_UPDATE, 0, 1, &four(0))], None, vec![(1, protocol)]),
        (vec![wait(1), frame(WINDOW_UPDATE, 0, 1, &four(0x7fff_ffff))], None, vec![(1, flow)]),
    ];
    for (frames, goaway, resets) in cases {
        for size in [1 << 20, 10] {
            let (found, ended) = run(exchange(&frames, size));
            assert_eq!(endings(&found), (goaway, resets.clone()), "{frames:x?}\n{found:x?}");
            assert_eq!(ended.is_some(), goaway.is_some(), "{frames:x?}");
        }
    }
}

#[test]
fn resets_and_errors_are_limited() {
    let reset = |stream: u32| {
        [frame(HEADERS, END_HEADERS, stream, &head("/")), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])]
            .concat()
    };
    let malformed = |stream: u32| frame(HEADERS, END_HEADERS | END_STREAM, stream, b"\x83");
    for (count, is_too_many) in [(20, false), (21, true)] {
        let frames: Vec<_> = (0..count).map(|index| reset(2 * index + 1)).collect();
        let goaway = endings(&run(exchange(&frames, 1 << 20)).0).0;
        assert_eq!(goaway, is_too_many.then_some(0xb), "{count} resets");
    }
    for (count, is_too_many) in [(30, false), (31, true)] {
        let frames: Vec<_> = (0..count).map(|index| malformed(2 * index + 1)).collect();
        let goaway = endings(&run(exchange(&frames, 1 << 20)).0).0;
        assert_eq!(goaway, is_too_many.then_some(0xb), "{count} errors");
    }
}

#[test]
fn large_heads_are_refused_and_leave_the_connection_intact() {
    for (length, is_refused) in [(100, false), (800, false), (1000, true), (3000, true)] {
        let mut block = head("/");
        block.extend(b"\x40\x01a\x7f");
        let mut rest = length - 127;
        if length < 127 {
            block.pop();
            block.push(length as u8);
        } else {
            while rest >= 128 {
                block.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            block.push(rest as u8);
        }
        block.extend(vec![b'x'; length as usize]);
        // The second request takes the field from the table.
        let again = [head("/"), b"\xbe".to_vec()].concat();
        let frames = [
            frame(HEADERS, END_HEADERS | END_STREAM, 1, &block),
            frame(HEADERS, END_HEADERS | END_STREAM, 3, &again),
            frame(HEADERS, END_HEADERS | END_STREAM, 5, &head("/")),
        ];
        let (found, ended) = run(exchange(&frames, 1 << 20));
        assert!(ended.is_none());
        for stream in [1, 3, 5] {
            let head = found.iter().find(|(head, _)| (head.kind, head.stream) == (HEADERS, stream)).unwrap();
            let is_success = head.1.first() == Some(&0x88);
            assert_eq!(is_success, !is_refused || stream == 5, "{length}, {stream}");
        }
    }
}

/// A client of h2, whose connection is polled in the background.
async fn h2_client(window: u32) -> (SendRequest<Bytes>, JoinHandle<Result<(), Error>>) {
    let (near, server) = served(OPTIONS);
    let mut builder = client::Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(2 * window);
    let (requests, connection) = builder.handshake(near).await.unwrap();
    tokio::spawn(connection);
    (requests, server)
}

/// Sends a body in pieces while its echo is read. Returns the echo.
async fn echoed(requests: &SendRequest<Bytes>, pieces: Vec<Bytes>, has_trailers: bool) -> (Vec<u8>, bool) {
    let mut requests = requests.clone().ready().await.unwrap();
    let request = Request::post("http://x/").body(()).unwrap();
    let (answer, mut body) = requests.send_request(request, false).unwrap();
    let sending = tokio::spawn(async move {
        for mut piece in pieces {
            while !piece.is_empty() {
                body.reserve_capacity(piece.len());
                let room =
                    std::future::poll_fn(|context| body.poll_capacity(context)).await.unwrap().unwrap();
                body.send_data(piece.split_to(room.min(piece.len())), false).unwrap();
            }
        }
        match has_trailers {
            true => body.send_trailers(http::HeaderMap::new()).unwrap(),
            false => body.send_data(Bytes::new(), true).unwrap(),
        }
    });
    let mut answer = answer.await.unwrap().into_body();
    let mut received = Vec::new();
    while let Some(data) = answer.data().await {
        let data = data.unwrap();
        received.extend_from_slice(&data);
        answer.flow_control().release_capacity(data.len()).unwrap();
    }
    sending.await.unwrap();
    (received, answer.trailers().await.unwrap().is_some())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn bodies_come_back_unchanged_through_any_windows(
        calls in prop::collection::vec(
            (prop::collection::vec(prop_oneof![0..50_usize, 1000..5000_usize, 60_000..200_000_usize], 0..6), any::<bool>()),
            1..6,
        ),
        window in prop_oneof![1..100_u32, 1000..100_000_u32],
    ) {
        // Windows of single bytes take long.
        let most = if window < 100 { 3000 } else { usize::MAX };
        run(async {
            let (requests, server) = h2_client(window).await;
            let calls = calls.into_iter().enumerate().map(|(index, (lengths, has_trailers))| {
                let pieces: Vec<Bytes> =
                    lengths.iter().map(|length| vec![index as u8; *length.min(&most)].into()).collect();
                let (requests, expected) = (requests.clone(), pieces.concat());
                async move {
                    let (received, trailers) = echoed(&requests, pieces, has_trailers).await;
                    (received == expected, trailers == has_trailers)
                }
            });
            for outcome in futures_util::future::join_all(calls).await {
                prop_assert_eq!(outcome, (true, true));
            }
            prop_assert!(!server.is_finished());
            Ok(())
        })?;
    }

    #[test]
    fn random_frames_end_the_connection_at_most(
        frames in prop::collection::vec(
            (0..11_u8, any::<u8>(), 0..8_u32, prop_oneof![
                prop::collection::vec(any::<u8>(), 0..20),
                prop::collection::vec(any::<u8>(), 4),
                prop::collection::vec(0..8_u8, 8),
                Just(head("/")),
                Just(head("/wait")),
            ]),
            0..60,
        ),
        size in prop_oneof![1..40_usize, Just(1 << 20)],
    ) {
        let frames: Vec<_> = frames
            .iter()
            .map(|(kind, flags, stream, contents)| frame(*kind, *flags, *stream, contents))
            .collect();
        let (found, ended) = run(exchange(&frames, size));
        let (goaway, _) = endings(&found);
        // Without an error, the connection ends only if the client announces the end.
        match ended {
            Some(Err(Error::Protocol { reason, .. })) => prop_assert_eq!(goaway, Some(reason.0)),
            Some(outcome) => prop_assert!(outcome.is_ok() && goaway.is_none()),
            None => prop_assert!(goaway.is_none()),
        }
    }
}

#[test]
fn requests_taken_back_and_connections_that_end_cancel_their_answers() {
    run(async {
        for (ends, expected) in [(false, 1), (true, 2)] {
            let (mut near, far) = duplex(1 << 16);
            let service = Echo::default();
            let cancelled = Arc::clone(&service.cancelled);
            let server = tokio::spawn(Connection::new(far, service, OPTIONS, None, Arc::default()));
            let wait = |stream| frame(HEADERS, END_HEADERS, stream, &head("/wait"));
            near.write_all(&[PREFACE.to_vec(), frame(SETTINGS, 0, 0, &[]), wait(1), wait(3)].concat())
                .await
                .unwrap();
            sleep(Duration::from_millis(1)).await;
            assert_eq!(*cancelled.lock().unwrap(), 0);
            near.write_all(&frame(RST_STREAM, 0, 3, &[0, 0, 0, 8])).await.unwrap();
            sleep(Duration::from_millis(1)).await;
            if ends {
                drop(near);
                server.await.unwrap().unwrap();
            }
            assert_eq!(*cancelled.lock().unwrap(), expected);
        }
    });
}

#[test]
fn body_of_a_request_taken_back_fails_for_who_still_reads_it() {
    let arriving = Arc::new(crate::body::Arriving::new(Waker::noop().clone(), 10));
    let body = Incoming::arriving(Arc::clone(&arriving));
    arriving.push(Bytes::from_static(b"part"));
    assert_eq!(arriving.cancel(), 4);
    let collected = run(body.collect());
    assert!(matches!(collected, Err(Cancelled)));
}
