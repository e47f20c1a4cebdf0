//! Replies in pieces, to clients that read them or do not.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{Receiver, channel};

use super::*;

/// A body that yields pieces of (seconds before it, bytes).
struct TimedPieces(VecDeque<(u64, usize)>, Option<Pin<Box<Sleep>>>);

impl Body for TimedPieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some((seconds, length)) = self.0.front().copied() else { return Poll::Ready(None) };
        let pause = self.1.get_or_insert_with(|| Box::pin(sleep(Duration::from_secs(seconds))));
        ready!(pause.as_mut().poll(context));
        self.1 = None;
        self.0.pop_front();
        Poll::Ready(Some(Ok(Frame::data(vec![7; length].into()))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.iter().map(|(_, length)| *length as u64).sum())
    }
}

fn body(pieces: impl IntoIterator<Item = (u64, usize)>) -> TimedBody<TimedPieces> {
    TimedBody::new(TimedPieces(pieces.into_iter().collect(), None))
}

async fn next(body: &mut TimedBody<TimedPieces>) -> Option<Bytes> {
    let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await?;
    frame.unwrap().into_data().ok()
}

/// Sends a body as the library does: with a piece in hand while it waits for room.
async fn sent(mut body: TimedBody<TimedPieces>, mut room: Receiver<()>, taken: Arc<Mutex<usize>>) {
    while let Some(piece) = next(&mut body).await {
        if room.recv().await.is_none() {
            std::future::pending().await
        }
        *taken.lock().unwrap() += piece.len();
    }
}

/// A client reads one piece after each pause and nothing afterwards. Returns the bytes that it read and, if the reply
/// was ended, the time.
async fn taken(pieces: &[(u64, usize)], pauses: &[u64]) -> (usize, Option<u64>) {
    let (room, receiver) = channel(1);
    let taken = Arc::new(Mutex::new(0));
    let task = sent(body(pieces.iter().copied()), receiver, Arc::clone(&taken));
    let start = Instant::now();
    let requests = Arc::new(Requests::default());
    requests.open.fetch_add(1, Ordering::Relaxed);
    let limited = TakenInTime::new(task, InProgress(Arc::clone(&requests)));
    assert_eq!(requests.idle_after(), None);
    let task = tokio::spawn(tokio::time::timeout(Duration::from_secs(100_000), limited));
    for pause in pauses {
        sleep(Duration::from_secs(*pause)).await;
        if task.is_finished() {
            break;
        }
        let _ = room.send(()).await;
    }
    let _room = room;
    let ended = task.await.unwrap().is_ok().then(|| start.elapsed().as_secs());
    assert_eq!(requests.idle_after(), Some(0));
    let taken = *taken.lock().unwrap();
    (taken, ended)
}

#[tokio::test(start_paused = true)]
async fn reply_ends_when_its_client_stops_reading() {
    let large = &[(0, 10 * PIECE)];
    assert_eq!(taken(large, &[]).await, (0, Some(300)));
    let (length, ended) = taken(large, &[100, 250, 290]).await;
    assert!(length == 3 * PIECE && ended.is_some_and(|at| (940..=1240).contains(&at)), "{ended:?}");
    // Ten pieces and the short one behind them.
    let (length, ended) = taken(large, &[250; 11]).await;
    assert!(length == 10 * PIECE && ended == Some(2750), "{length} {ended:?}");
}

#[tokio::test(start_paused = true)]
async fn client_waiting_for_the_model_is_not_timed_out() {
    for seconds in [1, 299, 5000] {
        let (length, ended) = taken(&[(seconds, 10), (seconds, 10), (seconds, 10)], &[0, 0, 0]).await;
        assert_eq!((length, ended), (30, Some(3 * seconds)));
    }
}

proptest! {
    #[test]
    fn split_body_has_equal_contents(lengths in prop::collection::vec(0..300_000_usize, 0..8)) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut body = body(lengths.iter().map(|length| (0, *length)));
            let whole: usize = lengths.iter().sum();
            let mut seen = 0;
            while let Some(piece) = next(&mut body).await {
                prop_assert!(piece.len() <= PIECE);
                seen += piece.len();
                prop_assert_eq!(body.size_hint().exact(), Some((whole - seen) as u64));
            }
            prop_assert_eq!(seen, whole);
            Ok(())
        })?;
    }

    #[test]
    fn unmonitored_tail_of_a_reply_is_short(length in 0..300_000_usize) {
        let mut rest = Bytes::from(vec![0; length]);
        let mut last = 0;
        while !rest.is_empty() {
            last = piece(&mut rest).len();
        }
        prop_assert!(last <= SHORT);
    }
}
