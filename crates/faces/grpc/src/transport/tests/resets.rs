//! Clients that cancel their calls, innocently or as an attack.

use super::*;

/// Makes a call and cancels it. `sent`: whether its message was sent before.
async fn cancel(connection: &Connection, sent: bool) {
    let request = Request::post("http://x/grpc.health.v1.Health/Watch")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    let mut requests = connection.requests.clone().ready().await.unwrap();
    let (answer, mut body) = requests.send_request(request, false).unwrap();
    if sent {
        body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
    }
    drop(answer);
    body.send_reset(Reason::CANCEL);
}

#[tokio::test(start_paused = true)]
async fn cancelled_calls_do_not_affect_other_calls_of_the_connection() {
    for (count, at_once) in [(20_000, 1), (20_000, 100), (100_000, 900)] {
        let mut connection = connected(TransportOptions::default()).await;
        let mut watched = connection.watch().await;
        for call in 0..count {
            cancel(&connection, call % 2 == 0).await;
            if call % at_once == at_once - 1 {
                assert!(connection.answers().await, "after {call} calls, {at_once} at once");
            }
        }
        connection.server.begin_shutdown();
        assert_eq!(next(&mut watched).await.unwrap(), NOT_READY);
    }
}

/// A frame: type, flags, stream, contents.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, contents: &[u8]) -> Vec<u8> {
    let mut bytes = (contents.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(contents);
    bytes
}

#[tokio::test(start_paused = true)]
async fn rapid_reset_client_is_disconnected() {
    // Calls at once, and whether the connection bears them: a busy machine lets thousands wait.
    for (calls, is_borne) in [(100, true), (1500, true), (15_000, true), (30_000, false)] {
        // The preface, settings, and calls: POST, http, path `/`, authority `x`.
        let mut attack = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        attack.extend(frame(4, 0, 0, &[]));
        for call in 0..calls {
            attack.extend(frame(1, 4, 2 * call + 1, &[0x83, 0x86, 0x84, 0x01, 1, b'x']));
            attack.extend(frame(3, 0, 2 * call + 1, &8_u32.to_be_bytes()));
        }
        attack.extend(frame(6, 0, 0, b"answered"));
        let shutdown = CancellationToken::new();
        let (near, served) =
            served_with_room(attack.len(), TransportOptions::default(), &server(), &shutdown);
        // All resets are in the pipe before the first poll of the connection, or it is cut off earlier.
        let (mut reader, mut writer) = tokio::io::split(near);
        let _ = writer.write_all(&attack).await;
        let (mut answered, mut buffer) = (Vec::new(), [0; 1 << 12]);
        let has = |answered: &[u8], text: &[u8]| answered.windows(text.len()).any(|bytes| bytes == text);
        while !has(&answered, b"answered") {
            match reader.read(&mut buffer).await {
                Ok(count @ 1..) => answered.extend_from_slice(&buffer[..count]),
                _ => break,
            }
        }
        assert_eq!(has(&answered, b"answered"), is_borne, "{calls} calls: {answered:?}");
        assert_eq!(has(&answered, b"too_many_resets"), !is_borne, "{calls} calls: {answered:?}");
        drop((reader, writer));
        served.await.unwrap();
    }
}
