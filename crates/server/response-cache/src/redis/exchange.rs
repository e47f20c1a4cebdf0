//! Commands and replies on one connection.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::encoding::{decode_entry, encode_entry};
use crate::entry::CacheEntry;
use crate::key::CacheKey;
use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

use super::MAX_ENTRY;
use super::connection::Stream;
use super::resp::{Replies, Reply, write_command};
use super::settings::RedisSettings;

/// Maximum number of commands in flight.
const MAX_PENDING: usize = 4096;

/// The connection is given up after this many timed-out lookups in a row.
const MAX_LATE: usize = 3;

/// The bytes around a value's entry.
const FRAME: usize = 1 << 10;

/// A command to Redis.
pub(super) enum Command {
    Get { key: CacheKey, reply: oneshot::Sender<Option<CacheEntry>>, deadline: Instant },
    Set { key: CacheKey, entry: CacheEntry, share: Share },
}

/// A part of the bytes that may wait to be stored, until it is dropped.
pub(super) struct Share {
    of: Arc<AtomicUsize>,
    bytes: usize,
}

impl Share {
    /// Reserves `bytes` of a limit, if they fit.
    pub(super) fn take(of: &Arc<AtomicUsize>, bytes: usize, most: usize) -> Option<Self> {
        let room = |taken: usize| taken.checked_add(bytes).filter(|taken| *taken <= most);
        of.fetch_update(Relaxed, Relaxed, room).ok()?;
        Some(Self { of: Arc::clone(of), bytes })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.fetch_sub(self.bytes, Relaxed);
    }
}

/// A command whose reply has not come.
enum Pending {
    /// `None` once its time is over.
    Get {
        key: CacheKey,
        reply: Option<oneshot::Sender<Option<CacheEntry>>>,
        deadline: Instant,
        since: Instant,
    },
    Set {
        _share: Share,
    },
}

/// How the use of a connection ended.
pub(super) enum ExchangeEnd {
    /// Nobody sends commands any more.
    Unwanted,
    /// The connection is of no use: why.
    Failed(String),
}

/// Exchanges commands and replies until either side ends.
pub(super) async fn exchange(
    stream: impl Stream,
    commands: &mut mpsc::Receiver<Command>,
    settings: &RedisSettings,
) -> ExchangeEnd {
    let (mut reader, mut writer) = split(stream);
    let mut exchange = Exchange::new(settings);
    let (mut unsent, mut unflushed) = (BytesMut::new(), false);
    loop {
        let deadline = exchange.deadline();
        let failed = tokio::select! {
            command = commands.recv(), if exchange.pending.len() < MAX_PENDING => match command {
                None => return ExchangeEnd::Unwanted,
                Some(command) => {
                    exchange.begin(command, &mut unsent);
                    // Further queued commands are sent along.
                    while exchange.pending.len() < MAX_PENDING
                        && let Ok(command) = commands.try_recv()
                    {
                        exchange.begin(command, &mut unsent);
                    }
                    None
                }
            },
            pushed = push(&mut writer, &unsent), if !unsent.is_empty() || unflushed => match pushed {
                Ok(0) if !unsent.is_empty() => Some("the server does not read".to_owned()),
                Ok(count) => {
                    unflushed = !unsent.is_empty();
                    unsent.advance(count);
                    None
                }
                Err(error) => Some(error.to_string()),
            },
            read = reader.read_buf(&mut exchange.arrived) => match read {
                Ok(0) => Some("the server closed the connection".to_owned()),
                Ok(_) => exchange.read().err(),
                Err(error) => Some(error.to_string()),
            },
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                exchange.expire_lookups(unsent.is_empty()).err()
            }
        };
        if let Some(why) = failed {
            return ExchangeEnd::Failed(why);
        }
    }
}

/// Writes a part of the unsent bytes, or flushes if there are none.
async fn push(writer: &mut (impl AsyncWrite + Unpin), unsent: &[u8]) -> io::Result<usize> {
    if unsent.is_empty() { writer.flush().await.map(|()| 0) } else { writer.write(unsent).await }
}

struct Exchange<'a> {
    settings: &'a RedisSettings,
    pending: VecDeque<Pending>,
    replies: Replies,
    arrived: BytesMut,
    /// When bytes were last received.
    last_read: Instant,
    /// Lookups in a row whose time was over.
    late: usize,
}

impl<'a> Exchange<'a> {
    fn new(settings: &'a RedisSettings) -> Self {
        Self {
            settings,
            pending: VecDeque::new(),
            replies: Replies::new(MAX_ENTRY + FRAME),
            arrived: BytesMut::new(),
            last_read: Instant::now(),
            late: 0,
        }
    }

    /// Deadline of the oldest pending lookup.
    fn deadline(&self) -> Option<Instant> {
        self.pending.iter().find_map(|pending| match pending {
            Pending::Get { reply: Some(_), deadline, .. } => Some(*deadline),
            _ => None,
        })
    }

    fn begin(&mut self, command: Command, unsent: &mut BytesMut) {
        let mut written = Vec::new();
        match command {
            Command::Get { key, reply, deadline } => {
                write_command(&mut written, &[b"GET", name(&key).as_bytes()]);
                let since = Instant::now();
                self.pending.push_back(Pending::Get { key, reply: Some(reply), deadline, since });
            }
            Command::Set { key, entry, share } => {
                let (name, value) = (name(&key), encode_entry(&key, &entry));
                match self.settings.ttl.map(|ttl| ttl.as_millis().to_string()) {
                    None => write_command(&mut written, &[b"SET", name.as_bytes(), &value]),
                    Some(ttl) => {
                        let parts = [b"SET", name.as_bytes(), &value, b"PX", ttl.as_bytes()];
                        write_command(&mut written, &parts);
                    }
                }
                self.pending.push_back(Pending::Set { _share: share });
            }
        }
        unsent.extend_from_slice(&written);
    }

    /// Reads the replies that have arrived.
    fn read(&mut self) -> Result<(), String> {
        self.last_read = Instant::now();
        loop {
            match self.replies.next(&mut self.arrived) {
                Ok(None) => return Ok(()),
                Ok(Some(reply)) => self.replied(reply)?,
                Err(_) => return Err("the server does not speak Redis's protocol".into()),
            }
        }
    }

    fn replied(&mut self, reply: Reply) -> Result<(), String> {
        let Some(pending) = self.pending.pop_front() else {
            return Err("unexpected reply: no request is pending".into());
        };
        if let Reply::Refusal(refusal) = &reply {
            // For example a value of another type, or exhausted memory.
            tracing::debug!("the response cache in Redis refuses a command: {refusal}");
        }
        if let Pending::Get { key, reply: Some(waits), .. } = pending {
            self.late = 0;
            let found = match reply {
                Reply::Value(Some(value)) => decode_entry(&key, &value).ok(),
                _ => None,
            };
            // The request may have been dropped.
            let _ = waits.send(found);
        }
        Ok(())
    }

    /// Expires timed-out lookups. Fails the connection if nothing was received since one was sent.
    fn expire_lookups(&mut self, all_is_sent: bool) -> Result<(), String> {
        let now = Instant::now();
        let mut stuck = false;
        for pending in &mut self.pending {
            let Pending::Get { reply, deadline, since, .. } = pending else { continue };
            if *deadline <= now && reply.take().is_some() {
                self.late += 1;
                stuck |= all_is_sent && self.last_read <= *since;
            }
        }
        if stuck || self.late >= MAX_LATE {
            return Err(format!("no answer within {} ms", self.settings.socket_timeout.as_millis()));
        }
        Ok(())
    }
}

/// The key's name in Redis.
fn name(key: &CacheKey) -> String {
    use std::fmt::Write as _;
    let mut name = "nereid:response:".to_owned();
    for byte in key.digest() {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests;
