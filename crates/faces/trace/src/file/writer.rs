//! The thread that writes traces to files. Requests never wait for it.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use super::array::ArrayFile;

/// Most bytes of traces that wait to be written. Further ones are lost.
const MOST_WAITING: usize = 256 << 20;

/// Most bytes of traces buffered for a file before its log frequency is reached. Beyond it they are written early.
const MOST_KEPT: usize = 1 << 20;

/// Minimum interval of log messages about lost traces: while a disk is full, every write fails.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// How long shutdown waits for pending traces.
const PATIENCE: Duration = Duration::from_secs(10);

/// A complete trace.
pub(super) struct FinishedTrace {
    /// The number of the series that it belongs to.
    pub series: u64,
    /// The trace's objects, separated by commas.
    pub text: String,
    /// Number of traces of the series per file; 0 for no limit.
    pub frequency: u32,
    /// Whether this trace completes the series' count.
    pub completes: bool,
}

enum Message {
    Finished(FinishedTrace),
    /// The end of this series.
    End(u64),
}

/// The queue and the thread that writes it.
#[derive(Debug)]
pub(super) struct Writer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    /// The length of the texts among them.
    bytes: usize,
    /// Number of traces lost because the queue was full.
    lost: u64,
    started: bool,
    closed: bool,
    /// Whether the thread has ended.
    done: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    pub(super) fn new(path: PathBuf) -> Self {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { path, queue, changed }) }
    }

    /// Takes a trace, unless too much waits already.
    pub(super) fn take(&self, trace: FinishedTrace) {
        let mut queue = self.shared.lock();
        if queue.closed {
            return;
        }
        if queue.bytes + trace.text.len() > MOST_WAITING {
            queue.lost += 1;
            return;
        }
        if !queue.started {
            let shared = Arc::clone(&self.shared);
            if let Err(error) = Builder::new().name("trace-writer".into()).spawn(move || shared.run()) {
                tracing::error!("a trace is lost: the thread that writes it cannot be started: {error}");
                return;
            }
            queue.started = true;
        }
        queue.bytes += trace.text.len();
        queue.messages.push_back(Message::Finished(trace));
        drop(queue);
        self.shared.changed.notify_all();
    }

    /// Ends a series.
    pub(super) fn end(&self, series: u64) {
        let mut queue = self.shared.lock();
        if queue.started && !queue.closed {
            queue.messages.push_back(Message::End(series));
            drop(queue);
            self.shared.changed.notify_all();
        }
    }

    /// Writes all queued traces, as if all series had ended, and accepts no more.
    pub(super) fn close(&self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        self.shared.changed.notify_all();
        let unwritten = |queue: &mut Queue| queue.started && !queue.done;
        let waited = self.shared.changed.wait_timeout_while(queue, PATIENCE, unwritten);
        queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        if unwritten(&mut queue) {
            tracing::error!("traces are lost: they were not written within {} seconds", PATIENCE.as_secs());
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut files = Files::new(&self.path);
        loop {
            let mut queue = self.lock();
            while queue.messages.is_empty() && !queue.closed {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let closed = queue.closed;
            let messages = std::mem::take(&mut queue.messages);
            queue.bytes = 0;
            let lost = std::mem::take(&mut queue.lost);
            drop(queue);
            if lost > 0 {
                tracing::warn!("lost {lost} traces: they arrived faster than they could be written");
            }
            for message in messages {
                match message {
                    Message::Finished(trace) => files.add(trace),
                    Message::End(series) => files.end(series),
                }
            }
            if closed {
                files.end_all();
                self.lock().done = true;
                self.changed.notify_all();
                return;
            }
        }
    }
}

/// The files, as the thread has them.
struct Files<'p> {
    path: &'p Path,
    /// Index of the next numbered file.
    index: u64,
    main: Option<ArrayFile>,
    /// Traces of each series that wait for enough to fill a file.
    kept: HashMap<u64, PendingTraces>,
    losses: Losses,
}

/// Failed writes, and what was logged about them.
#[derive(Default)]
struct Losses {
    /// Number of traces lost since the last log message.
    unreported: u64,
    /// Time of the last log message.
    reported_at: Option<Instant>,
    /// Whether the last logged state is a failure.
    failing: bool,
}

impl Losses {
    /// Traces are lost. Returns how many to log now, if it is time to.
    fn add(&mut self, traces: u32, now: Instant) -> Option<u64> {
        self.unreported += u64::from(traces);
        if self.reported_at.is_some_and(|then| now.saturating_duration_since(then) < COMPLAINT_INTERVAL) {
            return None;
        }
        (self.reported_at, self.failing) = (Some(now), true);
        Some(std::mem::take(&mut self.unreported))
    }
}

#[derive(Default)]
struct PendingTraces {
    traces: u32,
    text: String,
    /// Number of traces in `text`.
    unwritten: u32,
    /// The numbered file of the series and its number, if one was started.
    file: Option<ArrayFile>,
    number: u64,
    /// Whether the series has a frequency and is therefore written to numbered files only.
    numbered: bool,
    /// Whether some of the traces were written to the first file.
    in_main: bool,
}

impl<'p> Files<'p> {
    fn new(path: &'p Path) -> Self {
        Self { path, index: 0, main: None, kept: HashMap::new(), losses: Losses::default() }
    }

    fn add(&mut self, trace: FinishedTrace) {
        let mut kept = self.kept.remove(&trace.series).unwrap_or_default();
        kept.numbered = trace.frequency > 0;
        kept.traces += 1;
        kept.unwritten += 1;
        if !kept.text.is_empty() && !trace.text.is_empty() {
            kept.text.push(',');
        }
        kept.text.push_str(&trace.text);
        let enough = kept.numbered && kept.traces >= trace.frequency;
        if enough || trace.completes {
            let numbered = !kept.in_main;
            self.write(&mut kept, numbered);
            // The next file is started.
            return;
        }
        if kept.text.len() > MOST_KEPT {
            let numbered = kept.numbered;
            self.write(&mut kept, numbered);
        }
        self.kept.insert(trace.series, kept);
    }

    fn end(&mut self, series: u64) {
        if let Some(mut kept) = self.kept.remove(&series) {
            let numbered = kept.numbered;
            self.write(&mut kept, numbered);
        }
    }

    fn end_all(&mut self) {
        let mut series: Vec<_> = self.kept.keys().copied().collect();
        series.sort_unstable();
        series.into_iter().for_each(|series| self.end(series));
        if self.losses.unreported > 0 {
            tracing::error!("{} more traces are lost: they could not be written", self.losses.unreported);
        }
    }

    /// Writes the buffered traces of a series, to its numbered file or to the first one.
    fn write(&mut self, kept: &mut PendingTraces, numbered: bool) {
        let text = std::mem::take(&mut kept.text);
        let traces = std::mem::take(&mut kept.unwritten);
        if text.is_empty() {
            return;
        }
        let (path, outcome) = if numbered {
            if kept.file.is_none() {
                kept.number = self.index;
                self.index += 1;
            }
            let mut path = self.path.as_os_str().to_owned();
            path.push(format!(".{}", kept.number));
            (PathBuf::from(&path), append(&mut kept.file, path.as_ref(), &text))
        } else {
            kept.in_main = true;
            (self.path.to_owned(), append(&mut self.main, self.path, &text))
        };
        let path = path.display();
        match outcome {
            Ok(()) if std::mem::take(&mut self.losses.failing) => {
                tracing::info!("traces are written to '{path}' again");
            }
            Ok(()) => {}
            Err(error) => {
                if let Some(lost) = self.losses.add(traces, Instant::now()) {
                    let hint = hint(&error);
                    tracing::error!(
                        "{lost} traces are lost: they cannot be written to '{path}': {error}{hint}"
                    );
                }
            }
        }
    }
}

/// A remedy, if the path caused the error.
fn hint(error: &io::Error) -> &'static str {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem};
    match error.kind() {
        IsADirectory | NotADirectory | NotFound | PermissionDenied | ReadOnlyFilesystem => {
            "; --trace-config=triton,file= must name a file in a folder that is writable for this server"
        }
        _ => "",
    }
}

fn append(file: &mut Option<ArrayFile>, path: &Path, text: &str) -> io::Result<()> {
    let file = match file {
        Some(file) => file,
        None => file.insert(ArrayFile::create(path)?),
    };
    file.append(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lost_traces_are_logged_at_intervals() {
        let start = Instant::now();
        let mut losses = Losses::default();
        for (second, lost, reported) in [
            (0, 2, Some(2)),
            (1, 1, None),
            (9, 5, None),
            (10, 1, Some(7)),
            (11, 3, None),
            (40, 0, Some(3)),
            (60, 4, Some(4)),
        ] {
            assert_eq!(losses.add(lost, start + Duration::from_secs(second)), reported, "after {second} s");
        }
        assert_eq!(losses.unreported, 0);
    }

    #[test]
    fn path_errors_have_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("none/trace.json");
        for (path, is_hinted) in [(folder.path(), true), (&*missing, true), (Path::new("/dev/full"), false)] {
            let error = append(&mut None, path, "{}").unwrap_err();
            assert_eq!(!hint(&error).is_empty(), is_hinted, "{}: {error}", path.display());
        }
    }
}
