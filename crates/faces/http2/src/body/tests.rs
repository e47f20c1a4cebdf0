//! Bodies that arrive while they are read.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use http_body_util::BodyExt as _;
use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn poll(body: &mut Incoming, reader: &Arc<Counter>) -> Poll<Option<Result<Frame<Bytes>, Cancelled>>> {
    let waker = Waker::from(Arc::clone(reader));
    Pin::new(body).poll_frame(&mut Context::from_waker(&waker))
}

proptest! {
    #[test]
    fn pieces_are_read_in_order_and_counted_once(
        lengths in prop::collection::vec(prop_oneof![0..20_usize, 900..1100_usize, 5000..6000_usize], 0..40),
        reads in prop::collection::vec(0..4_u8, 40),
        leaves_at in 0..60_usize,
        has_trailers in any::<bool>(),
    ) {
        let connection = Arc::new(Counter::default());
        let arriving = Arc::new(Arriving::new(Waker::from(Arc::clone(&connection)), usize::MAX));
        let mut body = Some(Incoming::arriving(Arc::clone(&arriving)));
        let reader = Arc::new(Counter::default());
        let (mut sent, mut received, mut counted) = (Vec::new(), Vec::new(), 0);
        let mut read = |body: &mut Option<Incoming>| {
            let Some(body) = body else { return false };
            match poll(body, &reader) {
                Poll::Ready(Some(Ok(frame))) => {
                    received.extend(frame.into_data().unwrap());
                    true
                }
                Poll::Pending => false,
                other => panic!("{other:?}"),
            }
        };
        for (index, (length, reads)) in lengths.iter().zip(reads).enumerate() {
            if index == leaves_at {
                body = None;
            }
            let piece = vec![index as u8; *length];
            sent.extend(&piece);
            let (waiting, unread) = arriving.push(piece.into());
            if let Some(waiting) = waiting {
                waiting.wake();
            }
            counted += unread;
            for _ in 0..reads {
                read(&mut body);
            }
            counted += arriving.take_read();
        }
        if body.is_some() {
            while read(&mut body) {}
            prop_assert!(received == sent);
        }
        let trailers = has_trailers.then(HeaderMap::new);
        if let Some(waiting) = arriving.end(trailers.clone()) {
            waiting.wake();
        }
        if let Some(body) = &mut body {
            prop_assert!(has_trailers || body.is_end_stream());
            if has_trailers {
                let Poll::Ready(Some(Ok(frame))) = poll(body, &reader) else { panic!("no trailers") };
                prop_assert!(frame.is_trailers());
            }
            prop_assert!(matches!(poll(body, &reader), Poll::Ready(None)));
            prop_assert!(body.is_end_stream());
        }
        counted += arriving.cancel();
        prop_assert_eq!(counted, sent.len());
    }
}

#[test]
fn waiting_reader_is_woken_by_pieces_ends_and_cancellations() {
    for event in 0..3 {
        let arriving = Arc::new(Arriving::new(Waker::noop().clone(), 1));
        let mut body = Incoming::arriving(Arc::clone(&arriving));
        let reader = Arc::new(Counter::default());
        assert!(poll(&mut body, &reader).is_pending());
        match event {
            0 => arriving.push(Bytes::from_static(b"x")).0.unwrap().wake(),
            1 => arriving.end(None).unwrap().wake(),
            _ => assert_eq!(arriving.cancel(), 0),
        }
        assert_eq!(reader.0.load(Ordering::Relaxed), 1);
        let polled = poll(&mut body, &reader);
        match event {
            0 => assert!(matches!(polled, Poll::Ready(Some(Ok(_))))),
            1 => assert!(matches!(polled, Poll::Ready(None))),
            _ => assert!(matches!(polled, Poll::Ready(Some(Err(Cancelled))))),
        }
    }
}

#[test]
fn connection_is_woken_once_enough_was_read_or_the_body_is_dropped() {
    for (read, wakes) in [(0, 0), (1, 0), (2, 1), (3, 2)] {
        let connection = Arc::new(Counter::default());
        let arriving = Arc::new(Arriving::new(Waker::from(Arc::clone(&connection)), 4000));
        let mut body = Incoming::arriving(Arc::clone(&arriving));
        (0..4).for_each(|_| drop(arriving.push(vec![0; 2000].into())));
        for _ in 0..read {
            assert!(poll(&mut body, &Arc::default()).is_ready());
        }
        assert_eq!(connection.0.load(Ordering::Relaxed), wakes);
        drop(body);
        assert_eq!(connection.0.load(Ordering::Relaxed), wakes + 1);
        assert_eq!(arriving.take_read(), 8000);
        // Later pieces are discarded.
        assert_eq!(arriving.push(vec![0; 70].into()).1, 70);
    }
}

#[tokio::test]
async fn whole_body_needs_no_connection() {
    for bytes in [None, Some(Bytes::from_static(b"abc"))] {
        let body = Incoming::whole(bytes.clone());
        assert_eq!(body.size_hint().exact(), Some(bytes.as_ref().map_or(0, Bytes::len) as u64));
        assert_eq!(body.is_end_stream(), bytes.is_none());
        assert_eq!(body.collect().await.unwrap().to_bytes(), bytes.unwrap_or_default());
    }
}
