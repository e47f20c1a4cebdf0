//! Frames that the other end has not taken yet, for a sender that must not wait.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::SendFlags;

use crate::frame::{HEADER, header};
use crate::socket::send_from;

/// The frames, in the order in which they are sent.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    frames: VecDeque<WaitingMessage>,
    length: usize,
}

#[derive(Debug)]
struct WaitingMessage {
    head: [u8; HEADER],
    payload: Vec<u8>,
    fd: Option<OwnedFd>,
    sent: usize,
}

impl Backlog {
    /// The bytes that wait.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Sends a frame after those that wait.
    pub(crate) fn send(
        &mut self,
        socket: impl AsFd,
        kind: u16,
        payload: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> io::Result<()> {
        self.flush(&socket)?;
        let head = header(kind, payload.len()).ok_or(ErrorKind::InvalidInput)?;
        let whole = HEADER + payload.len();
        let mut sent = 0;
        while sent < whole && self.frames.is_empty() {
            match send_from(&socket, sent, &head, payload, fd, SendFlags::DONTWAIT) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if sent < whole {
            let fd = fd.filter(|_| sent == 0).map(|fd| fd.try_clone_to_owned()).transpose()?;
            self.length += whole - sent;
            self.frames.push_back(WaitingMessage { head, payload: payload.to_vec(), fd, sent });
        }
        Ok(())
    }

    /// Sends what the other end takes now.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> io::Result<()> {
        while let Some(WaitingMessage { head, payload, fd, sent }) = self.frames.front_mut() {
            let fd = fd.as_ref().map(AsFd::as_fd);
            match send_from(&socket, *sent, head, payload, fd, SendFlags::DONTWAIT) {
                Ok(count) => {
                    *sent += count;
                    self.length -= count;
                    if *sent == HEADER + payload.len() {
                        self.frames.pop_front();
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
