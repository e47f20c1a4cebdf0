//! The requests in progress of a connection.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::request::Parts;
use http_body::Body as _;
use nereid_net::slow_clients::InProgress;
use tokio::time::{Instant, Sleep, sleep};

use crate::body::{Arriving, Incoming};
use crate::sending::{Sending, Wait};
use crate::wakers::{PlaceWaker, Woken};
use crate::{Reason, Service};

/// Bytes of a reply that a client must take within the limit, unless the reply is shorter.
const PROGRESS: usize = 64 << 10;

/// Free places are kept for the next requests up to this number.
const KEPT_PLACES: usize = 64;

/// A request and its reply.
pub(crate) struct Stream<V: Service> {
    pub id: u32,
    work: Work<V>,
    /// The body, unless it had arrived as a whole when the request was answered.
    pub arriving: Option<Arc<Arriving>>,
    /// The client's remaining window.
    pub receive_window: i64,
    /// Bytes that were read, and are not counted yet.
    pub read: usize,
    /// Bytes that were read, and that the client may send again on this stream.
    pub to_grant: usize,
    /// Whether the client has sent all of its request.
    pub has_ended: bool,
    /// Remaining bytes of the announced length of the body.
    pub content_left: Option<u64>,
    pub reply: Reply,
    _in_progress: InProgress,
}

enum Work<V: Service> {
    /// The service gets the request once all frames that have arrived are handled.
    New(Box<Parts>, Option<Bytes>),
    Answering(V::Future),
    Replying(V::Body),
    /// The service has failed.
    Nothing,
}

/// How far a reply is sent.
#[derive(Debug)]
pub(crate) struct Reply {
    pub window: i64,
    /// Waits for the client.
    piece: Bytes,
    /// Ends when the client has to have taken more of the reply.
    limit: Option<Pin<Box<Sleep>>>,
    /// Bytes that it took since the limit began.
    taken: usize,
}

/// The outcome of polling a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The service has nothing more yet.
    Pending,
    Waits(Wait),
    /// The reply is queued.
    Replied,
    Failed(Reason),
}

impl<V: Service> Stream<V> {
    pub(crate) fn new(
        id: u32,
        parts: Box<Parts>,
        content_left: Option<u64>,
        windows: (i64, i64),
        in_progress: InProgress,
    ) -> Self {
        Self {
            id,
            work: Work::New(parts, None),
            arriving: None,
            receive_window: windows.0,
            read: 0,
            to_grant: 0,
            has_ended: false,
            content_left,
            reply: Reply { window: windows.1, piece: Bytes::new(), limit: None, taken: 0 },
            _in_progress: in_progress,
        }
    }

    /// Whether the service does not have the request yet.
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.work, Work::New(..))
    }

    /// The first piece of the body, if it fits before the service has the request; otherwise the piece.
    pub(crate) fn add_first(&mut self, piece: Bytes) -> Option<Bytes> {
        match &mut self.work {
            Work::New(_, first @ None) if self.arriving.is_none() => {
                *first = Some(piece);
                None
            }
            _ => Some(piece),
        }
    }

    /// The body, for pieces that arrive from now on. `enough`: see [`Arriving`].
    pub(crate) fn arriving(&mut self, waker: &Waker, enough: usize) -> &Arc<Arriving> {
        let work = &mut self.work;
        self.arriving.get_or_insert_with(|| {
            let arriving = Arriving::new(waker.clone(), enough);
            if let Work::New(_, first) = work
                && let Some(first) = first.take()
            {
                arriving.push(first);
            }
            Arc::new(arriving)
        })
    }

    /// Passes the request to the service.
    fn start(&mut self, service: &V, waker: &Waker, enough: usize) {
        let body = match &mut self.work {
            Work::New(_, first) if self.has_ended && self.arriving.is_none() => {
                let whole = first.take();
                self.read += whole.as_ref().map_or(0, Bytes::len);
                Incoming::whole(whole)
            }
            Work::New(..) => Incoming::arriving(Arc::clone(self.arriving(waker, enough))),
            _ => return,
        };
        if let Work::New(parts, _) = std::mem::replace(&mut self.work, Work::Nothing) {
            let request = Request::from_parts(*parts, body);
            if let Ok(answer) = catch_unwind(AssertUnwindSafe(|| service.call(request))) {
                self.work = Work::Answering(answer);
            }
        }
    }

    /// Goes on with the request, and queues what its reply has.
    pub(crate) fn poll(
        &mut self,
        service: &V,
        sending: &mut Sending,
        (waker, enough): (&Waker, usize),
        taking: Duration,
    ) -> Progress {
        self.start(service, waker, enough);
        let mut context = Context::from_waker(waker);
        // A panic fails its request alone.
        catch_unwind(AssertUnwindSafe(|| match self.poll_work(sending, &mut context) {
            Poll::Ready(progress) => progress,
            Poll::Pending => Progress::Pending,
        }))
        .map(|progress| match progress {
            Progress::Waits(Wait::Stream | Wait::Connection) if self.reply.is_late(taking, &mut context) => {
                let seconds = taking.as_secs();
                tracing::debug!("ended a reply: its client took nothing of it for {seconds} s");
                Progress::Failed(Reason::CANCEL)
            }
            progress => progress,
        })
        .unwrap_or_else(|_| {
            self.work = Work::Nothing;
            Progress::Failed(Reason::INTERNAL_ERROR)
        })
    }

    fn poll_work(&mut self, sending: &mut Sending, context: &mut Context<'_>) -> Poll<Progress> {
        if let Work::Answering(answer) = &mut self.work {
            let (parts, body) = ready!(Pin::new(answer).poll(context)).into_parts();
            let is_whole = body.is_end_stream();
            sending.head(self.id, parts.status, &parts.headers, is_whole);
            self.work = Work::Replying(body);
            if is_whole {
                return Poll::Ready(Progress::Replied);
            }
        }
        let Work::Replying(body) = &mut self.work else {
            return Poll::Ready(Progress::Failed(Reason::INTERNAL_ERROR));
        };
        loop {
            if let Some(wait) = self.reply.send(self.id, sending) {
                return Poll::Ready(Progress::Waits(wait));
            }
            if sending.is_full() {
                return Poll::Ready(Progress::Waits(Wait::Room));
            }
            match ready!(Pin::new(&mut *body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(piece) => self.reply.piece = piece,
                    Err(frame) => {
                        if let Ok(trailers) = frame.into_trailers() {
                            sending.trailers(self.id, &trailers);
                            return Poll::Ready(Progress::Replied);
                        }
                    }
                },
                Some(Err(_)) => return Poll::Ready(Progress::Failed(Reason::INTERNAL_ERROR)),
                None => {
                    sending.end(self.id);
                    return Poll::Ready(Progress::Replied);
                }
            }
        }
    }
}

impl Reply {
    /// Whether a part of it waits for the client.
    pub(crate) fn waits(&self) -> bool {
        !self.piece.is_empty()
    }

    /// Queues what the client takes of the current piece. Returns why the rest waits.
    fn send(&mut self, id: u32, sending: &mut Sending) -> Option<Wait> {
        if self.piece.is_empty() {
            return None;
        }
        let before = self.piece.len();
        let wait = sending.data(id, &mut self.piece, &mut self.window);
        self.taken += before - self.piece.len();
        if wait.is_none() {
            self.limit = None;
        }
        wait
    }

    /// Called while the client takes nothing. Whether that has lasted too long.
    fn is_late(&mut self, taking: Duration, context: &mut Context<'_>) -> bool {
        let limit = self.limit.get_or_insert_with(|| {
            self.taken = 0;
            Box::pin(sleep(taking))
        });
        while limit.as_mut().poll(context).is_ready() {
            if self.taken < PROGRESS {
                return true;
            }
            self.taken = 0;
            limit.as_mut().reset(Instant::now() + taking);
        }
        false
    }
}

/// A place for one request after the other.
struct Place<V: Service> {
    waker: Waker,
    listed: Arc<PlaceWaker>,
    /// Whether the place is in `due`.
    is_due: bool,
    stream: Option<Box<Stream<V>>>,
}

/// The requests by stream and by place.
pub(crate) struct Streams<V: Service> {
    woken: Arc<Woken>,
    places: Vec<Place<V>>,
    free: Vec<u32>,
    by_id: BTreeMap<u32, u32>,
    /// The places that have to be polled.
    due: VecDeque<u32>,
}

impl<V: Service> Streams<V> {
    pub(crate) fn new(woken: Arc<Woken>) -> Self {
        Self { woken, places: Vec::new(), free: Vec::new(), by_id: BTreeMap::new(), due: VecDeque::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Adds a stream, and has it polled.
    pub(crate) fn insert(&mut self, stream: Stream<V>) {
        let place = self.free.pop().unwrap_or_else(|| {
            let place = self.places.len() as u32;
            let (waker, listed) = self.woken.waker(place);
            self.places.push(Place { waker, listed, is_due: false, stream: None });
            place
        });
        self.by_id.insert(stream.id, place);
        if let Some(there) = self.places.get_mut(place as usize) {
            there.stream = Some(Box::new(stream));
        }
        self.poll_later(place);
    }

    /// The place of a stream.
    pub(crate) fn place(&self, id: u32) -> Option<u32> {
        self.by_id.get(&id).copied()
    }

    /// The stream at a place, and its waker.
    pub(crate) fn get(&mut self, place: u32) -> Option<(&mut Stream<V>, &Waker)> {
        let place = self.places.get_mut(place as usize)?;
        Some((place.stream.as_deref_mut()?, &place.waker))
    }

    /// All streams, and their places.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut Stream<V>)> {
        (0..).zip(&mut self.places).filter_map(|(index, place)| Some((index, place.stream.as_deref_mut()?)))
    }

    /// Removes the stream of a place.
    pub(crate) fn remove(&mut self, place: u32) -> Option<Box<Stream<V>>> {
        let stream = self.places.get_mut(place as usize)?.stream.take()?;
        self.by_id.remove(&stream.id);
        self.free.push(place);
        if self.by_id.is_empty() && self.places.len() > KEPT_PLACES {
            (self.places, self.free) = (Vec::new(), Vec::new());
        }
        Some(stream)
    }

    /// Has a place polled.
    pub(crate) fn poll_later(&mut self, place: u32) {
        if let Some(there) = self.places.get_mut(place as usize)
            && !std::mem::replace(&mut there.is_due, true)
        {
            self.due.push_back(place);
        }
    }

    /// Wakes who waits for a stream's body, without waking the connection's task if that is the stream itself.
    pub(crate) fn wake(&mut self, place: u32, waker: Waker) {
        if self.places.get(place as usize).is_some_and(|there| there.waker.will_wake(&waker)) {
            self.poll_later(place);
        } else {
            waker.wake();
        }
    }

    /// The next place that has to be polled.
    pub(crate) fn next_due(&mut self) -> Option<u32> {
        let place = self.due.pop_front()?;
        if let Some(there) = self.places.get_mut(place as usize) {
            there.is_due = false;
        }
        Some(place)
    }

    /// A place was taken from the list of woken ones.
    pub(crate) fn was_woken(&mut self, place: u32) {
        if let Some(there) = self.places.get(place as usize) {
            there.listed.taken();
        }
        self.poll_later(place);
    }
}
