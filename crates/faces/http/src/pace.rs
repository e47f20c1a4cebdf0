//! Closes connections of HTTP/1.1 whose clients stall. A request in progress must keep moving; idle connections may
//! stay open indefinitely, since clients pool them, unless the transport sets a limit.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use nereid_net::listener::{Activity, Awaited};
use nereid_net::slow_clients::{ARRIVAL, PROGRESS, Requests};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{MissedTickBehavior, interval, sleep};

/// The preface of an HTTP/2 connection.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Interval between two checks of a connection.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// How long an idle connection is kept at shutdown: a client with consecutive requests sends the next one within it and
/// learns from the reply that the connection ends.
const QUIET: Duration = Duration::from_millis(500);

/// Maximum bytes of a head kept for the original case of its names.
const MAX_HEAD_KEPT: usize = 64 << 10;

/// A client's progress on a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    progress: Arc<Mutex<Progress>>,
    /// The requests over HTTP/2.
    requests: Arc<Requests>,
    /// Idle limit of the connection; `None` for none.
    idle_timeout: Option<Duration>,
}

#[derive(Debug, Default)]
struct Progress {
    state: State,
    /// Number of requests started over HTTP/1.1.
    begun: u32,
    /// The number of checks since this state was entered. Counted instead of reading the clock at each step of a request.
    checks: u32,
    /// Bytes of the body that arrived since then.
    arrived: usize,
    /// The head of the latest request as received, possibly with some bytes after it; `None` if heads are not kept.
    head: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    /// No request has started.
    #[default]
    Idle,
    /// Waiting for the rest of a request's head.
    Head,
    /// Waiting for more of its body.
    Body,
    /// The server is working on `replies` replies. `next`: whether bytes of another request have arrived since; their
    /// delay is not the client's fault.
    Busy { replies: usize, next: bool },
    /// HTTP/2: requests overlap, and frames arrive at any time. Each body has its own timeout, and the connection is
    /// checked by pings.
    Off,
}

/// A reply in the making. Dropped when it is sent.
#[derive(Debug)]
pub struct Busy(Pace);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.finish_reply();
    }
}

/// Like [`Busy`], for a reply that ends before its connection.
pub(crate) struct Working<'a>(&'a Pace);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.finish_reply();
    }
}

impl Progress {
    /// Enters a state, and counts checks from now on.
    fn enter(&mut self, state: State) {
        self.state = state;
        self.checks = 0;
        self.arrived = 0;
    }

    fn turn_off(&mut self) {
        *self = Self { state: State::Off, ..Self::default() };
    }
}

impl Pace {
    /// `keep_heads`: whether [`take_head`](Self::take_head) will be called.
    pub(crate) fn new(keep_heads: bool, idle_timeout: Option<Duration>) -> Self {
        let head = keep_heads.then(Vec::new);
        let progress = Arc::new(Mutex::new(Progress { head, ..Progress::default() }));
        Self { progress, requests: Arc::default(), idle_timeout }
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records received bytes. The first ones start a request.
    fn arrived(&self, bytes: &[u8]) {
        let mut progress = self.lock();
        match &mut progress.state {
            State::Idle => {
                progress.begun = progress.begun.wrapping_add(1);
                progress.enter(State::Head);
            }
            State::Off | State::Body => return,
            State::Head => {}
            State::Busy { next, .. } => *next = true,
        }
        if let Some(head) = &mut progress.head {
            let room = MAX_HEAD_KEPT.saturating_sub(head.len());
            head.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
        }
    }

    /// The head of the current request as received, as far as known: empty for a request that arrived together with the
    /// end of the previous one.
    pub(crate) fn take_head(&self) -> Vec<u8> {
        self.lock().head.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Records received bytes of the request's body, which restarts the limit for the rest. Returns whether the limit
    /// is enforced here: on HTTP/2 each request needs its own timeout.
    pub(crate) fn progressed(&self, bytes: usize) -> bool {
        let mut progress = self.lock();
        match progress.state {
            State::Off => return false,
            State::Body if progress.arrived + bytes < PROGRESS => progress.arrived += bytes,
            _ => progress.enter(State::Body),
        }
        true
    }

    /// The requests over HTTP/2, which are counted elsewhere.
    pub(crate) fn requests(&self) -> Arc<Requests> {
        Arc::clone(&self.requests)
    }

    /// Whether clients' progress is enforced here, which it is on HTTP/1.1 alone.
    pub(crate) fn is_enforced(&self) -> bool {
        !matches!(self.lock().state, State::Off)
    }

    /// Marks the request as complete: the client is not expected to send anything until the guard is dropped.
    pub(crate) fn busy(&self) -> Busy {
        self.begin_reply();
        Busy(self.clone())
    }

    /// Like [`busy`](Self::busy), without a reference count.
    pub(crate) fn working(&self) -> Working<'_> {
        self.begin_reply();
        Working(self)
    }

    fn begin_reply(&self) {
        let mut progress = self.lock();
        match progress.state {
            State::Busy { replies, next } => progress.state = State::Busy { replies: replies + 1, next },
            State::Off => {}
            _ => progress.enter(State::Busy { replies: 1, next: false }),
        }
    }

    fn finish_reply(&self) {
        let mut progress = self.lock();
        match progress.state {
            State::Busy { replies, next } if replies > 1 => {
                progress.state = State::Busy { replies: replies - 1, next };
            }
            State::Busy { next: true, .. } => progress.enter(State::Head),
            State::Busy { .. } => progress.enter(State::Idle),
            _ => {}
        }
    }

    /// Completes when the server may close the connection on its own initiative: no request has started on it for
    /// [`QUIET`]. Call it once replies announce the end of their connection and no further connection is accepted.
    pub(crate) async fn quiet(&self) {
        // The checks record long idle times; otherwise the idle time counts from now.
        while !self.is_long_idle() {
            sleep(QUIET).await;
            if matches!(self.lock().state, State::Idle) {
                return;
            }
        }
    }

    fn is_long_idle(&self) -> bool {
        let progress = self.lock();
        matches!(progress.state, State::Idle) && progress.checks > 1
    }

    /// Returns when the client has stalled for too long.
    pub(crate) async fn stalled(&self) {
        let mut check = interval(CHECK_INTERVAL);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            check.tick().await;
            let mut progress = self.lock();
            let patience = match progress.state {
                State::Head | State::Body => Some(ARRIVAL),
                State::Idle => self.idle_timeout,
                State::Busy { .. } | State::Off => None,
            };
            progress.checks = progress.checks.saturating_add(1);
            // The state was entered somewhere between two checks.
            if patience.is_some_and(|patience| {
                CHECK_INTERVAL.saturating_mul(progress.checks) > patience + CHECK_INTERVAL
            }) {
                return;
            }
        }
    }
}

impl Activity for Pace {
    fn awaited(&self) -> Option<Awaited> {
        let progress = self.lock();
        match progress.state {
            State::Idle => Some(Awaited::Request(progress.begun)),
            State::Head => Some(Awaited::Rest(progress.begun)),
            // A check has seen no progress since another.
            State::Body if progress.checks > 1 => Some(Awaited::Rest(progress.begun)),
            State::Body | State::Busy { .. } => None,
            State::Off => self.requests.idle_after().map(Awaited::Request),
        }
    }
}

/// A connection that reports arriving bytes to its [`Pace`].
pub(crate) struct PacedConnection<S> {
    stream: S,
    pace: Pace,
    /// Bytes already read, which are read again.
    first: Bytes,
}

impl<S: AsyncRead + Unpin> PacedConnection<S> {
    pub(crate) fn new(stream: S, pace: Pace) -> Self {
        Self { stream, pace, first: Bytes::new() }
    }

    /// Puts back bytes, which are read again.
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        self.first = bytes;
    }

    /// Waits for the first bytes and detects HTTP/2. They are read again afterwards.
    ///
    /// # Errors
    /// The connection failed.
    pub(crate) async fn detect_http2(&mut self) -> io::Result<bool> {
        let mut first = [0; HTTP2.len()];
        let mut length = 0;
        while let Some((read, room)) = first.split_at_mut_checked(length)
            && HTTP2.starts_with(read)
            && !room.is_empty()
        {
            match self.read(room).await? {
                0 => break,
                count => length += count,
            }
        }
        self.first = Bytes::copy_from_slice(first.get(..length).unwrap_or(&first));
        let http2 = first == HTTP2;
        if http2 {
            self.pace.lock().turn_off();
        }
        Ok(http2)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PacedConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let count = self.first.len().min(buffer.remaining());
            buffer.put_slice(&self.first.split_to(count));
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(bytes @ [_, ..]) = buffer.filled().get(before..) {
            self.pace.arrived(bytes);
        }
        outcome
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PacedConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
