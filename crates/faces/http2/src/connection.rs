//! A connection: reads, polls what was woken, and writes, until it ends.

mod frames;
mod keepalive;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use nereid_net::slow_clients::Requests;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep};

use self::frames::Receiving;
use self::keepalive::Keepalive;
use crate::frame::{put_goaway, put_number, put_ping, put_settings, setting};
use crate::reader::Reader;
use crate::sending::{Sending, WINDOW, Wait};
use crate::streams::{Progress, Streams};
use crate::wakers::{PlaceWaker, TIMERS, Woken};
use crate::{Options, Pings, Reason, Service};

/// Between the client's acknowledgement of the first GOAWAY frame and the second: a client that was about to open streams sends them
/// with the acknowledgement, or right after it. gRPC's C core does when it is busy.
const LAST_STREAMS: Duration = Duration::from_millis(250);

/// The contents of the ping that finds out whether a client has read the first GOAWAY frame.
const DRAIN: [u8; 8] = *b"draining";

/// The last stream of a GOAWAY frame that excludes none.
const EVERY_STREAM: u32 = (1 << 31) - 1;

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The client does not speak HTTP/2.
    #[error("the client's preface is not that of HTTP/2")]
    NotHttp2,
    /// The client broke the protocol, or exceeded a limit.
    #[error("{details} ({reason:?})")]
    Protocol {
        /// The code of the GOAWAY frame.
        reason: Reason,
        /// Debug data of the GOAWAY frame.
        details: &'static str,
    },
    /// The client does not answer pings.
    #[error("the client did not answer a ping in time")]
    KeepaliveTimeout,
}

impl Error {
    pub(crate) fn of_protocol(reason: Reason, details: &'static str) -> Self {
        Self::Protocol { reason, details }
    }
}

/// A connection, served while it is polled.
pub struct Connection<S, V: Service> {
    stream: S,
    reader: Reader,
    core: Core<V>,
    woken: Arc<Woken>,
    /// Woken places, in memory that is reused.
    places: Vec<u32>,
    started: Arc<AtomicBool>,
    timers: Waker,
    timers_listed: Arc<PlaceWaker>,
    are_timers_due: bool,
    keepalive: Option<Keepalive>,
    drain: Drain,
    /// The outcome, once known. Queued bytes are still written then.
    outcome: Option<Result<(), Error>>,
}

/// The progress of draining.
enum Drain {
    No,
    /// The client has to acknowledge the announcement.
    Announced,
    /// The last streams may still come.
    Acknowledged(Pin<Box<Sleep>>),
    /// No stream is accepted any more.
    Last,
}

/// The state that frames and replies change.
struct Core<V: Service> {
    service: V,
    options: Options,
    streams: Streams<V>,
    sending: Sending,
    receiving: Receiving,
    pings: Option<Box<dyn Pings>>,
    requests: Arc<Requests>,
    /// Places whose replies wait until bytes are written.
    without_room: Vec<u32>,
    /// Places whose replies wait for the window of the connection.
    without_window: Vec<u32>,
}

impl<S, V> Connection<S, V>
where
    S: AsyncRead + AsyncWrite + Unpin,
    V: Service,
{
    /// A connection whose first bytes are still to be read. Its requests are counted in `requests`.
    pub fn new(
        stream: S,
        service: V,
        options: Options,
        pings: Option<Box<dyn Pings>>,
        requests: Arc<Requests>,
    ) -> Self {
        let woken = Arc::new(Woken::default());
        let (timers, timers_listed) = woken.waker(TIMERS);
        let mut sending = Sending::default();
        let settings = [
            (setting::MAX_CONCURRENT_STREAMS, options.max_streams),
            (setting::INITIAL_WINDOW_SIZE, options.stream_window),
            (setting::MAX_FRAME_SIZE, options.max_frame),
            (setting::MAX_HEADER_LIST_SIZE, options.max_head),
        ];
        put_settings(sending.outgoing.buffer(), &settings);
        if let Some(more) = options.connection_window.checked_sub(WINDOW as u32).filter(|more| *more > 0) {
            put_number(sending.outgoing.buffer(), crate::frame::WINDOW_UPDATE, 0, more);
        }
        Self {
            stream,
            reader: Reader::new(options.max_frame as usize),
            core: Core {
                service,
                options,
                streams: Streams::new(Arc::clone(&woken)),
                sending,
                receiving: Receiving::new(&options),
                pings,
                requests,
                without_room: Vec::new(),
                without_window: Vec::new(),
            },
            woken,
            places: Vec::new(),
            started: Arc::default(),
            timers,
            timers_listed,
            are_timers_due: true,
            keepalive: options.keepalive.map(|(interval, timeout)| Keepalive::new(interval, timeout)),
            drain: Drain::No,
            outcome: None,
        }
    }

    /// Turns true when the head of the client's first frame has arrived.
    pub fn has_started(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.started)
    }

    /// Accepts no more requests than the client has under way, and ends when these are answered.
    pub fn drain(&mut self) {
        if matches!(self.drain, Drain::No) {
            let buffer = self.core.sending.outgoing.buffer();
            put_goaway(buffer, EVERY_STREAM, Reason::NO_ERROR, "");
            put_ping(buffer, 0, DRAIN);
            self.drain = Drain::Announced;
        }
    }

    /// Reads once. Whether anything arrived.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.core.sending.is_overfull() {
            return Poll::Pending;
        }
        let (reader, core) = (&mut self.reader, &mut self.core);
        let count = match reader
            .poll_read(Pin::new(&mut self.stream), context, |head, contents| core.receive(head, contents))
        {
            Poll::Ready(count) => count?,
            Poll::Pending => {
                self.core.receiving.pending_resets = 0;
                return Poll::Pending;
            }
        };
        if count == 0 {
            self.outcome = Some(Ok(()));
        }
        if self.reader.has_started() && !self.started.load(Ordering::Relaxed) {
            self.started.store(true, Ordering::Relaxed);
        }
        if let Some(keepalive) = &mut self.keepalive {
            let answered = std::mem::take(&mut self.core.receiving.keepalive_answered);
            self.are_timers_due |= keepalive.arrived(answered);
        }
        if std::mem::take(&mut self.core.receiving.drain_answered) && matches!(self.drain, Drain::Announced) {
            self.drain = Drain::Acknowledged(Box::pin(sleep(LAST_STREAMS)));
            self.are_timers_due = true;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_timers(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.are_timers_due) {
            return Ok(());
        }
        let mut context = Context::from_waker(&self.timers);
        if let Drain::Acknowledged(limit) = &mut self.drain
            && limit.as_mut().poll(&mut context).is_ready()
        {
            let last = self.core.receiving.refuse_further();
            put_goaway(self.core.sending.outgoing.buffer(), last, Reason::NO_ERROR, "");
            self.drain = Drain::Last;
        }
        match &mut self.keepalive {
            Some(keepalive) => keepalive.poll(self.core.sending.outgoing.buffer(), &mut context),
            None => Ok(()),
        }
    }

    /// Marks the woken places as due.
    fn poll_woken(&mut self) {
        self.woken.take(&mut self.places);
        for place in self.places.drain(..) {
            if place == TIMERS {
                self.timers_listed.taken();
                self.are_timers_due = true;
            } else {
                self.core.streams.was_woken(place);
            }
        }
    }

    /// Serves until nothing more can be done, or the connection ends.
    fn poll_serving(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.woken.register(context.waker());
        loop {
            let read = self.poll_read(context)?;
            if let Some(outcome) = self.outcome.take() {
                return Poll::Ready(outcome);
            }
            self.poll_woken();
            self.poll_timers()?;
            self.core.poll_streams();
            let was_overfull = self.core.sending.is_overfull();
            let written = self.core.sending.outgoing.poll_write(Pin::new(&mut self.stream), context)?;
            if written.is_ready() && self.is_over() {
                return Poll::Ready(Ok(()));
            }
            let mut progressed = read.is_ready() || (was_overfull && !self.core.sending.is_overfull());
            if !self.core.sending.is_full() {
                progressed |= self.core.poll_those_without_room();
            }
            if !progressed {
                return Poll::Pending;
            }
        }
    }

    /// Whether the connection may end: no further requests come, and all are answered.
    fn is_over(&self) -> bool {
        let is_last = matches!(self.drain, Drain::Last) || self.core.receiving.has_client_left;
        is_last && self.core.streams.len() == 0
    }
}

impl<S, V> Future for Connection<S, V>
where
    S: AsyncRead + AsyncWrite + Unpin,
    V: Service + Unpin,
{
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let this = &mut *self;
        if this.outcome.is_none() {
            let outcome = ready!(this.poll_serving(context));
            this.core.cancel_all();
            if let Err(Error::Protocol { reason, details }) = &outcome {
                let buffer = this.core.sending.outgoing.buffer();
                put_goaway(buffer, this.core.receiving.highest(), *reason, details);
            }
            this.outcome = Some(outcome);
        }
        if !matches!(this.outcome, Some(Err(Error::Io(_)))) {
            // An error here means that the client has gone.
            let _ = ready!(this.core.sending.outgoing.poll_write(Pin::new(&mut this.stream), context));
            let _ = ready!(Pin::new(&mut this.stream).poll_shutdown(context));
        }
        Poll::Ready(this.outcome.take().unwrap_or(Ok(())))
    }
}

impl<V: Service> Core<V> {
    /// Polls the requests that are due, and queues what their replies have.
    fn poll_streams(&mut self) {
        let enough = self.options.stream_window as usize / 2;
        while let Some(place) = self.streams.next_due() {
            let Some((stream, waker)) = self.streams.get(place) else { continue };
            let progress =
                stream.poll(&self.service, &mut self.sending, (waker, enough), self.options.taking);
            if let Some(arriving) = &stream.arriving {
                stream.read += arriving.take_read();
            }
            if stream.read > 0 {
                self.receiving.read(stream, &mut self.sending);
            }
            match progress {
                Progress::Pending | Progress::Waits(Wait::Stream) => {}
                // A list has each place once, however often the stream is polled.
                Progress::Waits(_) if std::mem::replace(&mut stream.is_listed, true) => {}
                Progress::Waits(Wait::Room) => self.without_room.push(place),
                Progress::Waits(Wait::Connection) => self.without_window.push(place),
                Progress::Replied if stream.has_ended => self.remove(place),
                Progress::Replied => self.reset(place, Reason::NO_ERROR),
                Progress::Failed(reason) => self.reset(place, reason),
            }
        }
        if std::mem::take(&mut self.sending.has_replied)
            && let Some(pings) = &mut self.pings
        {
            pings.replied();
        }
    }

    /// Polls the streams that waited for room. Returns whether there were any.
    fn poll_those_without_room(&mut self) -> bool {
        let places = std::mem::take(&mut self.without_room);
        self.poll_listed(&places);
        !places.is_empty()
    }

    /// Polls the streams of a list, which is empty from now on.
    fn poll_listed(&mut self, places: &[u32]) {
        for place in places {
            if let Some((stream, _)) = self.streams.get(*place) {
                stream.is_listed = false;
            }
            self.streams.poll_later(*place);
        }
    }

    /// Resets the stream at a place.
    fn reset(&mut self, place: u32, reason: Reason) {
        let Some((stream, _)) = self.streams.get(place) else { return };
        let id = stream.id;
        if !stream.has_ended {
            self.receiving.abandon(id);
        }
        put_number(self.sending.outgoing.buffer(), crate::frame::RST_STREAM, id, reason.0);
        self.remove(place);
    }

    /// Removes a stream that is over, or that its client takes back.
    fn remove(&mut self, place: u32) {
        if let Some(stream) = self.streams.remove(place) {
            self.receiving.discarded(stream.end(), &mut self.sending);
        }
    }

    fn cancel_all(&mut self) {
        let places: Vec<u32> = self.streams.iter_mut().map(|(place, _)| place).collect();
        for place in places {
            self.remove(place);
        }
    }
}

#[cfg(test)]
mod tests;
