//! The worker's end: connects a process to the server that started it.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::channel::Channel;
use crate::codec::Malformed;
use crate::{VERSION, call};

/// The channels of a process.
#[derive(Debug)]
pub struct Connection {
    /// Calls from the server.
    pub calls: Channel,
    /// Messages to the server.
    pub side: Channel,
}

/// Connects the process to the server that started it, over the socket that is its standard input, and closes that
/// input. The process is killed when the thread that started it ends. `description` describes the process in the
/// server's log.
///
/// Call it once, early, while no other thread uses standard input.
///
/// # Errors
/// The process was not started by a server, or by one that speaks another version of the protocol.
pub fn connect(description: &str) -> io::Result<Connection> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let stdin = io::stdin();
    let socket = fcntl_dupfd_cloexec(&stdin, 3)?;
    let null = open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    over(socket, description)
}

/// Connects over a socket, see [`connect`].
///
/// # Errors
/// As for [`connect`].
pub fn over(socket: OwnedFd, description: &str) -> io::Result<Connection> {
    let mut calls = Channel::new(socket);
    let start = calls.receiver.receive()?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if start.kind() != call::START {
        return Err(Malformed("the first message is not a start").into());
    }
    let version = start.reader().u32()?;
    let side = calls.receiver.claim_fd().ok_or(Malformed("the start comes without its socket"))?;
    let mut hello = calls.sender.message(call::HELLO);
    hello.u32(VERSION);
    hello.text(description);
    hello.send()?;
    if version != VERSION {
        return Err(io::Error::other(format!(
            "the server speaks version {version} of the protocol, this process {VERSION}"
        )));
    }
    Ok(Connection { calls, side: Channel::new(side) })
}
