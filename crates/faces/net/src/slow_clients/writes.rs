//! A connection whose client must read.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::slow_clients::{PROGRESS, TAKING};

/// A connection whose writes fail once its client has read next to nothing for [`TAKING`].
#[derive(Debug)]
pub struct TimedWrites<S> {
    stream: S,
    /// Set since the connection accepted less than it was offered.
    limit: Option<Pin<Box<Sleep>>>,
    /// Bytes read by the client since then.
    taken: usize,
    backlog: Backlog,
}

/// Whether a connection has unsent bytes that its client does not read.
#[derive(Clone, Debug, Default)]
pub struct Backlog(Arc<AtomicBool>);

impl Backlog {
    /// Whether unsent bytes are pending.
    pub fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<S> TimedWrites<S> {
    /// The connection.
    pub fn new(stream: S) -> Self {
        Self { stream, limit: None, taken: 0, backlog: Backlog::default() }
    }

    /// A handle to the backlog.
    pub fn backlog(&self) -> Backlog {
        self.backlog.clone()
    }

    /// Handles the outcome of writing `given` bytes. A connection accepts all of them, or a large part, while its
    /// client reads.
    fn wrote<T>(
        &mut self,
        outcome: Poll<io::Result<T>>,
        is_little: impl FnOnce(&T) -> Option<usize>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        match &outcome {
            // The common case costs nothing.
            Poll::Ready(_) if self.limit.is_none() => outcome,
            Poll::Ready(Ok(taken)) => {
                self.taken += is_little(taken).unwrap_or(PROGRESS);
                if self.taken >= PROGRESS {
                    self.limit = None;
                    self.backlog.0.store(false, Ordering::Relaxed);
                }
                outcome
            }
            Poll::Ready(Err(_)) => outcome,
            Poll::Pending => {
                let limit = self.limit.get_or_insert_with(|| {
                    self.taken = 0;
                    self.backlog.0.store(true, Ordering::Relaxed);
                    Box::pin(sleep(TAKING))
                });
                limit.as_mut().poll(context).map(|()| {
                    let seconds = TAKING.as_secs();
                    Err(io::Error::new(
                        ErrorKind::TimedOut,
                        format!("the client read nothing for {seconds} s"),
                    ))
                })
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedWrites<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedWrites<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(outcome, |count| (*count < bytes.len()).then_some(*count), context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        let given = || pieces.iter().map(|piece| piece.len()).sum::<usize>();
        self.wrote(outcome, |count| (*count < given()).then_some(*count), context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Encrypted connections keep what they took until it is flushed.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.wrote(outcome, |()| None, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
        self.wrote(outcome, |()| None, context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::net::TcpSocket;
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn write_fails_after_the_client_stopped_reading() {
        // Bytes that are read at a time, seconds between them, and whether all is written.
        for (piece, pause, is_written) in [
            (64, 1, true),
            (64, 4, true),
            (64, 6, false),
            (1, 1, false),
            (4096, 290, true),
            (4096, 310, false),
        ] {
            let (mut near, far) = duplex(512);
            let mut far = TimedWrites::new(far);
            let written = tokio::spawn(async move {
                let outcome = far.write_all(&[7; 20_000]).await;
                (outcome.map_err(|error| error.kind()), Instant::now())
            });
            let start = Instant::now();
            let mut buffer = vec![0; piece];
            while !written.is_finished() {
                sleep(Duration::from_secs(pause)).await;
                let mut requested = piece;
                while requested > 0
                    && let Ok(Ok(count @ 1..)) =
                        timeout(Duration::ZERO, near.read(&mut buffer[..requested])).await
                {
                    requested -= count;
                    tokio::task::yield_now().await;
                }
            }
            let (outcome, end) = written.await.unwrap();
            assert_eq!(
                outcome,
                if is_written { Ok(()) } else { Err(ErrorKind::TimedOut) },
                "{piece} each {pause} s"
            );
            assert!(is_written || (end - start) >= TAKING, "{:?}", end - start);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn unread_sockets_fail_and_slowly_read_ones_do_not() {
        // Bytes that are read at a time, seconds between them, and whether all is written.
        for (piece, pause, is_written) in
            [(0, 60, false), (1 << 16, 30, true), (1 << 16, 290, true), (1 << 16, 400, false)]
        {
            let listener = TcpSocket::new_v4().unwrap();
            listener.set_recv_buffer_size(1 << 14).unwrap();
            listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let (address, listener) = (listener.local_addr().unwrap(), listener.listen(1).unwrap());
            let far = TcpSocket::new_v4().unwrap();
            far.set_send_buffer_size(1 << 14).unwrap();
            let (far, near) = tokio::join!(far.connect(address), listener.accept());
            let (mut far, (mut near, _)) = (TimedWrites::new(far.unwrap()), near.unwrap());
            let written = tokio::spawn(async move {
                let outcome = far.write_all(&[7; 1 << 20]).await;
                (outcome.map_err(|error| error.kind()), Instant::now())
            });
            let (start, mut buffer) = (Instant::now(), vec![0; piece]);
            while !written.is_finished() {
                sleep(Duration::from_secs(pause)).await;
                let mut requested = piece;
                while requested > 0
                    && !written.is_finished()
                    && let Ok(Ok(count @ 1..)) =
                        timeout(Duration::from_secs(1), near.read(&mut buffer[..requested])).await
                {
                    requested -= count;
                }
            }
            let (outcome, end) = written.await.unwrap();
            let expected = if is_written { Ok(()) } else { Err(ErrorKind::TimedOut) };
            assert_eq!(outcome, expected, "{piece} each {pause} s, after {:?}", end - start);
            assert!(is_written || end - start >= TAKING, "{:?}", end - start);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_writes_may_be_idle() {
        let (mut near, far) = duplex(512);
        let mut far = TimedWrites::new(far);
        for _ in 0..3 {
            sleep(10 * TAKING).await;
            far.write_all(&[7; 100]).await.unwrap();
            near.read_exact(&mut [0; 100]).await.unwrap();
        }
    }
}
