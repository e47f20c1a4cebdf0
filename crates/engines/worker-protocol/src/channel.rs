//! One end of a connection: sends messages, whose larger tensors are in shared memory, and receives the other end's.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use crate::backlog::Backlog;
use crate::codec::{Malformed, Reader, Writer};
use crate::frame::Frame;
use crate::memory::Segments;
use crate::pool::{LentRegion, MAX_INLINE, Pool, Trimmer};
use crate::socket::{FrameReader, send};

/// Announces the sender's next segment: its number (u32) and length (u64), with the file.
const SEGMENT: u16 = 0;

/// Payload buffers that became larger than this are not kept.
const MAX_KEPT: usize = 1 << 20;

/// Both directions of a connection.
#[derive(Debug)]
pub struct Channel {
    /// Sends.
    pub sender: Sender,
    /// Receives.
    pub receiver: Receiver,
}

impl Channel {
    /// Two connected channels. The second is a socket still, to be handed to another process.
    ///
    /// # Errors
    /// The system has no more sockets.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Self::new(ours), theirs))
    }

    /// A channel on a connected Unix socket.
    pub fn new(socket: OwnedFd) -> Self {
        let socket = Arc::new(socket);
        Self {
            sender: Sender {
                socket: Arc::clone(&socket),
                pool: Arc::default(),
                announced: 0,
                payload: Vec::new(),
                sent: 0,
                backlog: None,
            },
            receiver: Receiver { socket, frames: FrameReader::new(), segments: Arc::default() },
        }
    }

    /// Ends the connection from any thread, in both directions. Both ends find the end when they receive.
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.sender.socket))
    }
}

/// Ends a connection.
#[derive(Clone, Debug)]
pub struct Closer(Arc<OwnedFd>);

impl Closer {
    /// Ends it.
    pub fn close(&self) {
        // An error means that the other end has closed the connection already.
        let _ = shutdown(&*self.0, Shutdown::Both);
    }
}

impl AsFd for Closer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends messages.
#[derive(Debug)]
pub struct Sender {
    socket: Arc<OwnedFd>,
    pool: Arc<Mutex<Pool>>,
    /// How many of the pool's segments the other end knows.
    announced: usize,
    /// Kept for the next message.
    payload: Vec<u8>,
    sent: u64,
    /// Unsent frames, if the sender never waits.
    backlog: Option<Backlog>,
}

impl Sender {
    /// Begins a message. A message that is dropped is not sent.
    pub fn message(&mut self, kind: u16) -> Message<'_> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.clear();
        Message { kind, writer: Writer(payload), lent: Vec::new(), sender: self }
    }

    /// How many messages were sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// From now on, sending does not wait while the other end does not read: what it does not take is kept, and
    /// [flushed](Self::flush) later.
    pub fn keep_backlog(&mut self) {
        self.backlog.get_or_insert_default();
    }

    /// Sends of the backlog what the other end takes now.
    ///
    /// # Errors
    /// The connection is closed.
    pub fn flush(&mut self) -> io::Result<()> {
        self.backlog.as_mut().map_or(Ok(()), |backlog| backlog.flush(&self.socket))
    }

    /// The length of the backlog in bytes.
    pub fn backlog(&self) -> usize {
        self.backlog.as_ref().map_or(0, Backlog::len)
    }

    fn transmit(&mut self, kind: u16, payload: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        match &mut self.backlog {
            Some(backlog) => backlog.send(&self.socket, kind, payload, fd),
            None => send(&*self.socket, kind, payload, fd),
        }
    }

    /// Releases the memory that messages used.
    pub fn trimmer(&self) -> Trimmer {
        Trimmer(Arc::clone(&self.pool))
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        // Nothing panics under this lock.
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&mut self) -> io::Result<()> {
        let pool = Arc::clone(&self.pool);
        let pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
        for (number, (segment, length)) in pool.segments().enumerate().skip(self.announced) {
            let mut writer = Writer::default();
            writer.count(number);
            writer.u64(length as u64);
            self.transmit(SEGMENT, &writer.0, Some(segment.file.as_fd()))?;
            self.announced = number + 1;
        }
        Ok(())
    }
}

impl AsFd for Sender {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A message under construction: append its values, then [send](Self::send) it.
#[derive(Debug)]
pub struct Message<'a> {
    sender: &'a mut Sender,
    kind: u16,
    writer: Writer,
    lent: Vec<LentRegion>,
}

/// A place in a message to return to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    written: usize,
    lent: usize,
}

impl Message<'_> {
    /// Contents of that length, which `fill` writes: within the message if they are small, or else in shared memory. What
    /// `fill` finds there is undefined.
    ///
    /// # Errors
    /// The system is out of memory. Nothing was appended.
    pub fn contents(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> io::Result<()> {
        if length <= MAX_INLINE {
            self.writer.u8(0);
            self.writer.count(length);
            let start = self.writer.0.len();
            self.writer.0.resize(start + length, 0);
            fill(&mut self.writer.0[start..]);
            return Ok(());
        }
        let mut pool = self.sender.pool();
        let lent = pool.lend(length)?;
        fill(pool.contents_mut(&lent, length));
        drop(pool);
        self.writer.u8(1);
        self.writer.count(lent.segment);
        self.writer.u64(lent.offset() as u64);
        self.writer.u64(length as u64);
        self.lent.push(lent);
        Ok(())
    }

    /// The message as it is now.
    pub fn mark(&self) -> Mark {
        Mark { written: self.writer.0.len(), lent: self.lent.len() }
    }

    /// Takes back what was appended since the mark.
    pub fn truncate(&mut self, mark: Mark) {
        self.writer.0.truncate(mark.written);
        let pool = self.sender.pool();
        self.lent.drain(mark.lent.min(self.lent.len())..).for_each(|lent| pool.free(&lent));
    }

    /// Sends it. Waits while the other end does not read, unless there is a [backlog](Sender::keep_backlog).
    ///
    /// # Errors
    /// The connection is closed, or the message is longer than [`MAX_FRAME`](crate::MAX_FRAME).
    pub fn send(self) -> io::Result<()> {
        self.send_with(None)
    }

    /// Sends it with a file descriptor.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn send_with(mut self, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        if !self.lent.is_empty() {
            self.sender.announce()?;
        }
        self.sender.transmit(self.kind, &self.writer.0, fd)?;
        self.sender.sent += 1;
        self.lent.clear();
        Ok(())
    }
}

impl Drop for Message<'_> {
    fn drop(&mut self) {
        self.truncate(Mark { written: usize::MAX, lent: 0 });
        if self.writer.0.capacity() <= MAX_KEPT {
            self.sender.payload = std::mem::take(&mut self.writer.0);
        }
    }
}

impl Deref for Message<'_> {
    type Target = Writer;

    fn deref(&self) -> &Writer {
        &self.writer
    }
}

impl DerefMut for Message<'_> {
    fn deref_mut(&mut self) -> &mut Writer {
        &mut self.writer
    }
}

/// Receives messages.
#[derive(Debug)]
pub struct Receiver {
    socket: Arc<OwnedFd>,
    frames: FrameReader,
    segments: Arc<Segments>,
}

impl Receiver {
    /// The next message; `None` at the end of the connection.
    ///
    /// # Errors
    /// The connection ended within a message, or what came makes no sense. After an error, the connection is of no more use.
    pub fn receive(&mut self) -> io::Result<Option<Incoming>> {
        self.next(true)
    }

    /// The next message that has arrived completely; `None` at the end of the connection.
    ///
    /// # Errors
    /// `WouldBlock` if no message has arrived completely; otherwise as for [`receive`](Self::receive).
    pub fn try_receive(&mut self) -> io::Result<Option<Incoming>> {
        self.next(false)
    }

    fn next(&mut self, wait: bool) -> io::Result<Option<Incoming>> {
        loop {
            let Some(frame) = self.frames.next(&*self.socket, wait)? else { return Ok(None) };
            if frame.kind != SEGMENT {
                return Ok(Some(Incoming { frame, segments: Arc::clone(&self.segments) }));
            }
            let mut reader = frame.reader();
            let (number, length) = (reader.u32()?, reader.u64()?);
            reader.end()?;
            let file = self.frames.claim_fd().ok_or(Malformed("a segment comes without its file"))?;
            Arc::make_mut(&mut self.segments).add(number, file, length)?;
        }
    }

    /// How long [`receive`](Self::receive) waits for more before it fails with `WouldBlock`; `None` for ever. A message that has
    /// arrived in part is kept, so receiving may go on.
    ///
    /// # Errors
    /// The system refuses that time.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        Ok(set_socket_timeout(&self.socket, Timeout::Recv, timeout)?)
    }

    /// The file descriptor that came with the message that was received last.
    pub fn claim_fd(&mut self) -> Option<OwnedFd> {
        self.frames.claim_fd()
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A message that was received. Read it once: each region that is read frees its place when it is dropped.
#[derive(Debug)]
pub struct Incoming {
    /// The message itself.
    pub frame: Frame,
    segments: Arc<Segments>,
}

impl Incoming {
    /// The message's kind: a constant of [`call`](crate::call) or [`side`](crate::side).
    pub fn kind(&self) -> u16 {
        self.frame.kind
    }

    /// Reads its values.
    pub fn reader(&self) -> Reader<'_> {
        self.frame.reader().with(&self.segments)
    }
}

#[cfg(test)]
mod tests;
