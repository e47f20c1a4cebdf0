//! Messages in pieces, complete and truncated: what passes, and when.

use std::convert::Infallible;

use http_body_util::{BodyExt, StreamBody};
use tonic::Code;

use super::*;

/// A message of this many copies of one byte.
fn message(length: usize, byte: u8) -> Vec<u8> {
    let mut message = vec![0];
    message.extend(u32::try_from(length).unwrap().to_be_bytes());
    message.resize(HEAD + length, byte);
    message
}

/// The polls of a body that arrives in these pieces.
fn through(pieces: Vec<Bytes>) -> Vec<Result<Bytes, Status>> {
    let frames = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
    let mut body = Messages::new(StreamBody::new(futures_util::stream::iter(frames)), BodyBudget::UNLIMITED);
    let mut seen = Vec::new();
    let mut context = Context::from_waker(std::task::Waker::noop());
    while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(&mut context) {
        let failed = frame.is_err();
        seen.push(frame.map(|frame| frame.into_data().unwrap()).map_err(Status::from_error));
        if failed {
            break;
        }
    }
    seen
}

fn cut(bytes: &[u8], length: usize) -> Vec<Bytes> {
    bytes.chunks(length).map(Bytes::copy_from_slice).collect()
}

#[test]
fn small_messages_pass_piece_by_piece() {
    let pieces = cut(&[message(3, 1), message(0, 0), message(300, 2)].concat(), 7);
    let seen: Vec<_> = through(pieces.clone()).into_iter().map(Result::unwrap).collect();
    assert_eq!(seen, pieces);
}

#[test]
fn messages_pass_unchanged_for_any_segmentation() {
    let sent = [
        message(3, 1),
        message(MAX_UNVERIFIED_LEN + 9, 2),
        message(5, 3),
        message(2 * MAX_UNVERIFIED_LEN, 4),
    ]
    .concat();
    for length in
        [1000, 16 << 10, MAX_UNVERIFIED_LEN - 1, MAX_UNVERIFIED_LEN + 20, 3 * MAX_UNVERIFIED_LEN, sent.len()]
    {
        let seen: Result<Vec<_>, _> = through(cut(&sent, length)).into_iter().collect();
        assert!(seen.unwrap().concat() == sent, "cut every {length} bytes");
    }
    // The head of the long message in every place of a piece.
    for length in 1..=14 {
        let mut pieces = vec![Bytes::copy_from_slice(&sent[..length]), Bytes::new()];
        pieces.extend(cut(&sent[length..], 100_000));
        let seen: Result<Vec<_>, _> = through(pieces).into_iter().collect();
        assert!(seen.unwrap().concat() == sent, "{length} bytes first");
    }
}

#[tokio::test]
async fn long_message_is_held_until_nearly_complete() {
    let long = message(3 * MAX_UNVERIFIED_LEN, 7);
    let first = [message(1, 1), long[..100].to_vec()].concat();
    let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async {
        let piece = receiver.recv().await?;
        Some((Ok::<_, Infallible>(Frame::data(piece)), receiver))
    });
    let mut body = Box::pin(Messages::new(Box::pin(StreamBody::new(frames)), BodyBudget::UNLIMITED));
    let mut next = |count: usize| {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut seen = Vec::new();
        while let Poll::Ready(Some(frame)) = body.as_mut().poll_frame(&mut context) {
            seen.push(frame.unwrap().into_data().unwrap());
        }
        assert_eq!(seen.len(), count);
        seen.concat()
    };
    sender.try_send(first.into()).unwrap();
    // Earlier messages are not delayed.
    assert_eq!(next(1), message(1, 1));
    sender.try_send(long[100..2 * MAX_UNVERIFIED_LEN].to_vec().into()).unwrap();
    assert!(next(0).is_empty());
    sender.try_send(long[2 * MAX_UNVERIFIED_LEN..2 * MAX_UNVERIFIED_LEN + HEAD].to_vec().into()).unwrap();
    assert_eq!(next(3), long[..2 * MAX_UNVERIFIED_LEN + HEAD]);
    sender.try_send(long[2 * MAX_UNVERIFIED_LEN + HEAD..].to_vec().into()).unwrap();
    assert_eq!(next(1), long[2 * MAX_UNVERIFIED_LEN + HEAD..]);
}

#[test]
fn truncated_and_oversized_messages_are_refused() {
    let long = message(2 * MAX_UNVERIFIED_LEN, 7);
    let refused = |pieces: Vec<Bytes>| through(pieces).pop().unwrap().unwrap_err();
    let early = refused(cut(&long[..1000], 300));
    assert_eq!(
        (early.code(), early.message()),
        (Code::Internal, "the last message ends 2096157 bytes too early")
    );
    let mut endless = vec![0, 0x80, 0, 0, 0];
    assert_eq!(refused(vec![endless.clone().into()]).code(), Code::ResourceExhausted);
    endless[1] = 0x7f;
    endless[2..].fill(0xff);
    assert_eq!(refused(vec![endless.into()]).code(), Code::Internal);
}

#[tokio::test]
async fn trailers_pass() {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("a", http::HeaderValue::from_static("b"));
    let frames = [Frame::data(Bytes::from(message(1, 1))), Frame::trailers(trailers.clone())];
    let frames = frames.map(Ok::<_, Infallible>);
    let body = Messages::new(StreamBody::new(futures_util::stream::iter(frames)), BodyBudget::UNLIMITED);
    let collected = body.collect().await.unwrap();
    assert_eq!(collected.trailers(), Some(&trailers));
}
