//! Frames, however they are cut into pieces.

use std::task::Waker;

use proptest::prelude::*;
use tokio::io::{AsyncWriteExt as _, duplex};

use super::*;
use crate::frame::put_head;

const MAX_FRAME: usize = 40_000;

/// Sends bytes in pieces of this size. Returns the frames found, and the error that ended them.
fn read(bytes: &[u8], size: usize) -> (Vec<(u8, Vec<u8>)>, Option<Error>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (mut near, mut far) = duplex(1 << 20);
        let mut context = Context::from_waker(Waker::noop());
        let (mut reader, mut found) = (Reader::new(MAX_FRAME), Vec::new());
        for piece in bytes.chunks(size) {
            near.write_all(piece).await.unwrap();
            loop {
                let polled = reader.poll_read(Pin::new(&mut far), &mut context, |head, contents| {
                    assert_eq!(head.length, contents.bytes().len());
                    found.push((head.kind, contents.keep(0, head.length).to_vec()));
                    Ok(())
                });
                match polled {
                    Poll::Ready(Ok(1..)) => {}
                    Poll::Ready(Ok(0)) => panic!("the end comes too early"),
                    Poll::Ready(Err(error)) => return (found, Some(error)),
                    Poll::Pending => break,
                }
                tokio::task::yield_now().await;
            }
        }
        (found, None)
    })
}

fn bytes_of(frames: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = PREFACE.to_vec();
    for (kind, contents) in frames {
        put_head(&mut bytes, contents.len(), *kind, 0, 1);
        bytes.extend(contents);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn frames_are_found_for_any_segmentation(
        lengths in prop::collection::vec(prop_oneof![0..30_usize, 8000..8400_usize, 20_000..=MAX_FRAME], 0..12),
        size in prop_oneof![1..12_usize, 1000..5000_usize, Just(70_000), Just(1 << 20)],
    ) {
        let frames: Vec<_> =
            (0..).zip(&lengths).map(|(kind, length)| (kind, vec![kind ^ 0x5a; *length])).collect();
        // Single bytes of long frames take long.
        let size = if lengths.iter().sum::<usize>() > 10_000 { size.max(300) } else { size };
        let (found, error) = read(&bytes_of(&frames), size);
        prop_assert!(error.is_none());
        prop_assert!(found == frames);
    }
}

#[test]
fn frames_that_are_too_long_are_refused() {
    for (length, is_refused) in [(MAX_FRAME, false), (MAX_FRAME + 1, true), (0x00ff_ffff, true)] {
        let mut bytes = bytes_of(&[(3, vec![7; 5])]);
        put_head(&mut bytes, length, 0, 0, 1);
        let (found, error) = read(&bytes, 1000);
        assert_eq!(found.len(), 1);
        let is_error = matches!(error, Some(Error::Protocol { reason: Reason::FRAME_SIZE_ERROR, .. }));
        assert_eq!(is_error, is_refused, "{length}");
    }
}

#[test]
fn other_protocols_are_refused_at_the_first_difference() {
    for (bytes, is_refused) in [
        (&b"GET / HTTP/1.1\r\n"[..], true),
        (b"\x16\x03\x01", true),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", false),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\r", true),
        (b"PRI * HTTP/1", true),
    ] {
        for size in [1, 100] {
            let (found, error) = read(bytes, size);
            assert!(found.is_empty());
            assert_eq!(matches!(error, Some(Error::NotHttp2)), is_refused, "{bytes:?}");
        }
    }
}
