//! The audit log: a line of JSON for each change by a client or by the server itself, and for each refusal.
//!
//! A thread writes the lines, so that a slow or full disk does not delay requests. Lines that cannot be written are lost, which
//! is counted and logged.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use nereid_protocol::{Audit, AuditEvent, AuditOutcome};

use self::line::Line;

mod line;

/// The most lines that wait for the disk.
const MAX_WAITING: usize = 4096;

/// The most refusals in a second that are written: a client with a wrong key could fill the disk.
const MAX_REFUSALS: u64 = 100;

/// The length of that second.
const WINDOW: Duration = Duration::from_secs(1);

/// Events by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuditCounts {
    /// Written.
    pub written: u64,
    /// Not written, because of the file.
    pub lost: u64,
    /// Refusals that were not written, because there were too many.
    pub omitted: u64,
}

#[derive(Debug, Default)]
struct Counters {
    written: AtomicU64,
    lost: AtomicU64,
    omitted: AtomicU64,
}

enum Message {
    Line(String),
    Reopen,
    End,
}

/// Writes the audit log.
#[derive(Debug)]
pub struct AuditLog {
    path: PathBuf,
    counters: Arc<Counters>,
    queue: SyncSender<Message>,
    refusals: Mutex<Refusals>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl AuditLog {
    /// Opens the file, which is made if it is missing, and otherwise continued.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: impl Into<PathBuf>) -> Result<Arc<Self>, String> {
        let path = path.into();
        let cannot = |error: io::Error| format!("cannot open the audit log '{}': {error}", path.display());
        let file = opened(&path).map_err(cannot)?;
        let (queue, messages) = sync_channel(MAX_WAITING);
        let counters = Arc::<Counters>::default();
        let writer = Writer {
            path: path.clone(),
            file,
            counters: Arc::clone(&counters),
            is_torn: false,
            is_failing: false,
        };
        let thread = Builder::new().name("nereid-audit".into());
        let thread = thread.spawn(move || writer.run(&messages)).map_err(cannot)?;
        let (refusals, writer) = (Mutex::default(), Mutex::new(Some(thread)));
        Ok(Arc::new(Self { path, counters, queue, refusals, writer }))
    }

    /// Opens the path again after a tool has renamed the file. Keeps the old file if that fails.
    pub fn reopen(&self) {
        if self.queue.try_send(Message::Reopen).is_err() {
            let path = self.path.display();
            tracing::warn!("cannot reopen the audit log '{path}': earlier lines are still to be written");
        }
    }

    /// The number of events.
    pub fn counts(&self) -> AuditCounts {
        let Counters { written, lost, omitted } = &*self.counters;
        let [written, lost, omitted] = [written, lost, omitted].map(|count| count.load(Ordering::Relaxed));
        AuditCounts { written, lost, omitted }
    }

    /// Waits until the lines of all events so far are written. Later events are lost.
    pub fn close(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer
            && self.queue.send(Message::End).is_ok()
        {
            let _ = writer.join();
        }
    }

    fn queue(&self, line: String) {
        match self.queue.try_send(Message::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                if self.counters.lost.fetch_add(1, Ordering::Relaxed).is_multiple_of(MAX_WAITING as u64) {
                    tracing::error!(
                        "the audit log '{}' loses lines: it is written too slowly",
                        self.path.display()
                    );
                }
            }
        }
    }

    fn record_at(&self, event: &AuditEvent<'_>, now: Instant) {
        if matches!(event.outcome, AuditOutcome::Refused(_)) {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(omitted) = refusals.admit(now) else {
                self.counters.omitted.fetch_add(1, Ordering::Relaxed);
                return;
            };
            drop(refusals);
            if omitted > 0 {
                self.queue(line::omitted(omitted));
            }
        }
        self.queue(Line::of(event).text());
    }
}

impl Audit for AuditLog {
    fn record(&self, event: &AuditEvent<'_>) {
        self.record_at(event, Instant::now());
    }
}

/// The refusals of the current second.
#[derive(Debug, Default)]
struct Refusals {
    began: Option<Instant>,
    count: u64,
}

impl Refusals {
    /// Whether another refusal is written, with the number of those that were omitted before.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        let is_over = self.began.is_none_or(|began| now.saturating_duration_since(began) >= WINDOW);
        let omitted = if is_over { self.count.saturating_sub(MAX_REFUSALS) } else { 0 };
        if is_over {
            (self.began, self.count) = (Some(now), 0);
        }
        self.count += 1;
        (self.count <= MAX_REFUSALS).then_some(omitted)
    }
}

fn opened(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// The thread's side of the log.
struct Writer {
    path: PathBuf,
    file: File,
    counters: Arc<Counters>,
    /// Whether the file ends within a line.
    is_torn: bool,
    /// Whether the last line could not be written.
    is_failing: bool,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>) {
        for message in messages {
            match message {
                Message::Line(line) => self.write(line),
                Message::Reopen => self.reopen(),
                Message::End => return,
            }
        }
    }

    fn write(&mut self, mut line: String) {
        line.push('\n');
        if self.is_torn {
            line.insert(0, '\n');
        }
        let path = self.path.display();
        match self.file.write_all(line.as_bytes()) {
            Ok(()) => {
                self.counters.written.fetch_add(1, Ordering::Relaxed);
                if self.is_failing {
                    let lost = self.counters.lost.load(Ordering::Relaxed);
                    tracing::warn!("the audit log '{path}' is written again; {lost} lines are lost so far");
                }
                (self.is_torn, self.is_failing) = (false, false);
            }
            Err(error) => {
                self.counters.lost.fetch_add(1, Ordering::Relaxed);
                if !self.is_failing {
                    tracing::error!("cannot write the audit log '{path}'; requests go on: {error}");
                }
                (self.is_torn, self.is_failing) = (true, true);
            }
        }
    }

    fn reopen(&mut self) {
        let path = self.path.display();
        match opened(&self.path) {
            Ok(file) => {
                (self.file, self.is_torn) = (file, false);
                tracing::info!("reopened the audit log '{path}'");
            }
            Err(error) => {
                tracing::error!("cannot reopen the audit log '{path}'; the old file goes on: {error}")
            }
        }
    }
}

#[cfg(test)]
mod tests;
