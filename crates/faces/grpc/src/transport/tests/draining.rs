//! Clients that were sending calls when the server began to drain.

use super::resets::frame;
use super::*;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const DATA: u8 = 0;

/// The head of a call to `Health/Check`.
fn head(stream: u32) -> Vec<u8> {
    let path = b"/grpc.health.v1.Health/Check";
    let mut fields = vec![0x83, 0x86, 0x04, path.len() as u8];
    fields.extend(path);
    fields.extend(b"\x01\x01x");
    fields.extend(b"\x0f\x10\x10application/grpc");
    fields.extend(b"\x00\x02te\x08trailers");
    frame(HEADERS, 4, stream, &fields)
}

/// A call as sent by gRPC's C core: its head, a window update, its message.
fn call(stream: u32) -> Vec<u8> {
    let mut bytes = head(stream);
    bytes.extend(frame(WINDOW_UPDATE, 0, stream, &5_u32.to_be_bytes()));
    bytes.extend(frame(DATA, 1, stream, &[0; 5]));
    bytes
}

/// Reads the server's next frame: type, flags, stream and contents; `None` at the end.
async fn next_frame(near: &mut DuplexStream) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    near.read_exact(&mut head).await.ok()?;
    let mut contents = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    near.read_exact(&mut contents).await.ok()?;
    Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), contents))
}

#[tokio::test(start_paused = true)]
async fn calls_sent_with_the_goaway_acknowledgement_are_answered() {
    // The pieces in which the client's last bytes arrive, and how many calls are among them.
    for (size, calls) in
        [(usize::MAX, 1), (usize::MAX, 20), (1, 3), (5, 3), (16, 3), (17, 3), (100, 3), (9, 0)]
    {
        let (server, shutdown) = (server(), CancellationToken::new());
        server.start(None).unwrap();
        let (mut near, served) = served(TransportOptions::default(), &server, &shutdown);
        near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        near.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        near.write_all(&call(1)).await.unwrap();
        let mut answered = Vec::new();
        let mut ended = Vec::new();
        while let Some((kind, flags, stream, contents)) = next_frame(&mut near).await {
            match kind {
                SETTINGS if flags == 0 => near.write_all(&frame(SETTINGS, 1, 0, &[])).await.unwrap(),
                HEADERS if flags & 1 != 0 => {
                    answered.push(stream);
                    if answered.len() == 1 {
                        shutdown.cancel();
                    }
                }
                GOAWAY => ended.push((
                    u32::from_be_bytes(contents[..4].try_into().unwrap()),
                    u32::from_be_bytes(contents[4..8].try_into().unwrap()),
                )),
                PING if flags == 0 => {
                    let mut bytes = frame(PING, 1, 0, &contents);
                    (1..=calls).for_each(|call_| bytes.extend(call(2 * call_ + 1)));
                    for piece in bytes.chunks(size.min(bytes.len())) {
                        near.write_all(piece).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                }
                _ => {}
            }
        }
        answered.sort_unstable();
        let sent: Vec<_> = (0..=calls).map(|call| 2 * call + 1).collect();
        assert_eq!(answered, sent, "pieces of {size}");
        assert_eq!(ended, [(0x7fff_ffff, 0), (2 * calls + 1, 0)], "pieces of {size}");
        served.await.unwrap();
    }
}
