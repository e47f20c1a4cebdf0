//! Frames and file descriptors on a Unix socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use crate::codec::Malformed;
use crate::frame::{Frame, HEADER, header, parse_header};

/// Frames that came with one call of the system are taken from here one by one.
const BUFFER: usize = 64 << 10;

/// Largest part of a payload for which memory is taken before it has arrived.
const MAX_UNVERIFIED: usize = 1 << 20;

/// Limit of received file descriptors that no frame has claimed.
const MAX_UNCLAIMED: usize = 16;

/// Sends a frame, and a file descriptor with it. Waits while the other end does not read.
pub(crate) fn send(
    socket: impl AsFd,
    kind: u16,
    payload: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let head = header(kind, payload.len()).ok_or(io::ErrorKind::InvalidInput)?;
    let mut sent = 0;
    while sent < HEADER + payload.len() {
        sent += send_from(&socket, sent, &head, payload, fd, SendFlags::empty())?;
    }
    Ok(())
}

/// Sends of a frame what is beyond `sent`, as much as goes at once; how much that was.
pub(crate) fn send_from(
    socket: impl AsFd,
    sent: usize,
    head: &[u8; HEADER],
    payload: &[u8],
    fd: Option<BorrowedFd<'_>>,
    flags: SendFlags,
) -> io::Result<usize> {
    let parts =
        [IoSlice::new(&head[sent.min(HEADER)..]), IoSlice::new(&payload[sent.saturating_sub(HEADER)..])];
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if sent == 0 && fd.is_some() {
            ancillary.push(SendAncillaryMessage::ScmRights(fd.as_slice()));
        }
        match sendmsg(&socket, &parts, &mut ancillary, flags | SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            outcome => return outcome.map_err(Into::into),
        }
    }
}

/// Receives frames. File descriptors are kept in their order until they are [claimed](Self::claim_fd).
#[derive(Debug)]
pub(crate) struct FrameReader {
    buffer: Box<[u8]>,
    /// The unread part of the buffer.
    filled: std::ops::Range<usize>,
    /// The frame of which a part has arrived, and how long it becomes.
    partial: Option<(Frame, usize)>,
    fds: VecDeque<OwnedFd>,
}

impl FrameReader {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; BUFFER].into(), filled: 0..0, partial: None, fds: VecDeque::new() }
    }

    /// The next frame; `None` at the end. With `wait`, waits for it; without, fails with `WouldBlock` if it has not arrived
    /// completely.
    pub(crate) fn next(&mut self, socket: impl AsFd, wait: bool) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.take()? {
                return Ok(Some(frame));
            }
            if !self.fill(&socket, wait)? {
                let whole = self.partial.is_none() && self.filled.is_empty();
                return if whole { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }

    /// The file descriptor that was received first, of those that were not claimed yet.
    pub(crate) fn claim_fd(&mut self) -> Option<OwnedFd> {
        self.fds.pop_front()
    }

    /// The next frame, if the buffer completes it.
    fn take(&mut self) -> io::Result<Option<Frame>> {
        let (mut frame, length) = match self.partial.take() {
            Some(partial) => partial,
            None => {
                let Some(head) = self.buffer[self.filled.clone()].first_chunk::<HEADER>() else {
                    return Ok(None);
                };
                let (kind, length) = parse_header(*head)?;
                self.filled.start += HEADER;
                (Frame { kind, payload: Vec::with_capacity(length.min(MAX_UNVERIFIED)) }, length)
            }
        };
        let missing = length - frame.payload.len();
        let end = self.filled.end.min(self.filled.start + missing);
        frame.payload.extend_from_slice(&self.buffer[self.filled.start..end]);
        self.filled.start = end;
        if frame.payload.len() == length {
            return Ok(Some(frame));
        }
        self.partial = Some((frame, length));
        Ok(None)
    }

    /// Receives what has arrived; `false` at the end.
    fn fill(&mut self, socket: impl AsFd, wait: bool) -> io::Result<bool> {
        self.buffer.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        let flags =
            if wait { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut parts = [IoSliceMut::new(&mut self.buffer[self.filled.end..])];
            match recvmsg(&socket, &mut parts, &mut ancillary, flags) {
                Ok(received) => break received.bytes,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds);
            }
        }
        if self.fds.len() > MAX_UNCLAIMED {
            return Err(Malformed("too many file descriptors").into());
        }
        self.filled.end += received;
        Ok(received > 0)
    }
}
