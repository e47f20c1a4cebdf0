//! The thread that starts a process, watches it, forwards its output to the log, and serves its side channel.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use nereid_backend_api::Peers;
use nereid_worker_protocol::{Channel, Closer, Receiver, Trimmer};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::label::Label;
use crate::launch::{Launch, SpawnedProcess};
use crate::life::{CLOSED, CLOSING, Life, lost};
use crate::lines::Lines;
use crate::requests::Requests;
use crate::service::Service;
use crate::wake::Tasks;

/// The interval between releases of unused memory.
const TRIM_INTERVAL: Duration = Duration::from_secs(10);

/// The most messages handled in a row.
const TURN: usize = 64;

/// The most output that is read after a process has ended: a child of it may keep its output open and continue to
/// print.
const LAST_READS: usize = 64;

/// The thread's state.
pub(crate) struct Supervisor {
    pub name: Label,
    pub life: Arc<Life>,
    pub requests: Arc<Requests>,
    /// Wakes the thread that waits for an answer to a call.
    pub calls: Closer,
    pub trimmer: Trimmer,
    pub side: Channel,
    pub peers: Arc<dyn Peers>,
    pub ended: Box<dyn FnOnce(&str) + Send>,
}

impl Supervisor {
    /// Starts the process, and returns when it has ended.
    pub(crate) fn run(self, launch: &Launch, socket: OwnedFd, started: &SyncSender<io::Result<()>>) {
        let spawned = Tasks::new().and_then(|tasks| Ok((launch.spawn(socket)?, tasks)));
        let (spawned, mut tasks) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                self.life.end(None);
                // The receiver exists: its thread waits for this message only.
                let _ = started.send(Err(error));
                return;
            }
        };
        let SpawnedProcess { mut child, pid, ended, stdout, stderr, confinement } = spawned;
        self.life.begin(pid);
        let _ = started.send(Ok(()));
        let Self { name, life, requests, calls, trimmer, side, peers, ended: report } = self;
        let Channel { sender, receiver } = side;
        let side_trimmer = sender.trimmer();
        let service = Service::new(name.clone(), Arc::clone(&requests), peers, sender, &mut tasks);
        let mut watch = Watch {
            name: &name,
            life: &life,
            requests: &requests,
            receiver: Some(receiver),
            output: [Lines::new(stdout), Lines::new(stderr)],
            tasks,
            service,
            unhandled: false,
            closed: None,
        };
        // Registers the task that reports cancellations, before there is any event to wait for.
        watch.tasks.run();
        let mut trimmed = Instant::now();
        while watch.wait(&ended, watch.patience(TRIM_INTERVAL.saturating_sub(trimmed.elapsed()))) {
            watch.end_if_closed();
            watch.end_if_stalled();
            if trimmed.elapsed() >= TRIM_INTERVAL {
                trimmed = Instant::now();
                trimmer.trim();
                side_trimmer.trim();
            }
        }
        watch.finish();
        drop(watch);
        life.bury();
        let status = wait(&mut child);
        drop(confinement);
        let end = life.end(status);
        requests.close(&lost(&name.get(), &end));
        calls.close();
        if !life.is_leaving() {
            tracing::error!("the process of model instance '{name}' {end}");
            report(&end);
        }
    }
}

fn wait(child: &mut Child) -> Option<std::process::ExitStatus> {
    child.wait().ok()
}

struct Watch<'a> {
    name: &'a Label,
    life: &'a Life,
    requests: &'a Requests,
    /// Until the process ends.
    receiver: Option<Receiver>,
    /// Standard output and standard error.
    output: [Lines; 2],
    tasks: Tasks,
    service: Service,
    /// Received messages may be unhandled: the socket does not signal them.
    unhandled: bool,
    /// When the process closed its side channel.
    closed: Option<Instant>,
}

impl Watch<'_> {
    /// How long to wait, at most `patience`.
    fn patience(&self, patience: Duration) -> Duration {
        let patience = self.requests.time_to_stall().map_or(patience, |left| patience.min(left));
        self.closed.map_or(patience, |closed| patience.min(CLOSING.saturating_sub(closed.elapsed())))
    }

    /// Kills a process whose instance executes requests continuously and has made no progress for too long.
    fn end_if_stalled(&self) {
        if self.requests.time_to_stall().is_some_and(|left| left.is_zero()) && !self.life.is_leaving() {
            self.life.kill("was killed, because it made no progress with its requests in time");
        }
    }

    /// Kills a process that closed its side channel and did not end.
    fn end_if_closed(&mut self) {
        if self.closed.take_if(|closed| closed.elapsed() >= CLOSING).is_some() && !self.life.is_leaving() {
            self.life.kill(CLOSED);
        }
    }

    /// Waits for the next event, and handles it. Returns `false` once the process has ended.
    fn wait(&mut self, ended: &OwnedFd, patience: Duration) -> bool {
        let mut fds: Vec<(Source, BorrowedFd<'_>)> =
            vec![(Source::End, ended.as_fd()), (Source::Bell, self.tasks.bell())];
        fds.extend(self.receiver.as_ref().map(|receiver| (Source::Side, receiver.as_fd())));
        let wanted = PollFlags::IN | if self.service.flush() { PollFlags::OUT } else { PollFlags::empty() };
        for (index, lines) in self.output.iter().enumerate() {
            fds.extend(lines.pipe.as_ref().map(|pipe| (Source::Output(index), pipe.as_fd())));
        }
        let flags = |source| if source == Source::Side { wanted } else { PollFlags::IN };
        let mut polled: Vec<_> =
            fds.iter().map(|(source, fd)| PollFd::from_borrowed_fd(*fd, flags(*source))).collect();
        let patience = if self.unhandled { Duration::ZERO } else { patience };
        let timeout = Timespec::try_from(patience).ok();
        // Errors that are not reported now, such as after an interrupted call, are reported the next time.
        let _ = poll(&mut polled, timeout.as_ref());
        let happened: Vec<Source> = fds
            .iter()
            .zip(&polled)
            .filter(|(_, polled)| !polled.revents().is_empty())
            .map(|((source, _), _)| *source)
            .collect();
        for source in &happened {
            match source {
                Source::Side => self.unhandled = true,
                Source::Output(index) => {
                    self.print(*index);
                }
                Source::Bell | Source::End => {}
            }
        }
        if self.unhandled {
            self.unhandled = self.serve(TURN);
        }
        self.tasks.run();
        !happened.contains(&Source::End)
    }

    /// Handles messages of the side channel, up to a limit. Returns `false` once none is left.
    fn serve(&mut self, most: usize) -> bool {
        for _ in 0..most {
            let Some(receiver) = &mut self.receiver else { return false };
            let outcome = match receiver.try_receive() {
                Ok(Some(incoming)) => self.service.handle(&incoming, &mut self.tasks).map_err(Into::into),
                Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => Err(error),
            };
            match outcome {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) => {
                    self.receiver = None;
                    // Without its side channel, the process cannot respond or make calls.
                    match error.kind() {
                        io::ErrorKind::InvalidData => {
                            self.life.kill(format!("was killed, because it broke the protocol: {error}"));
                        }
                        // It is usually about to end, by itself or because the server closed the channel. The channel of a process
                        // that ended before it had read everything is reset.
                        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                            self.closed = Some(Instant::now());
                        }
                        _ => self
                            .life
                            .kill(format!("was killed, because its messages cannot be received: {error}")),
                    }
                    return false;
                }
            }
        }
        true
    }

    fn print(&mut self, index: usize) -> bool {
        let name = self.name;
        let mut report = |line: &str| match index {
            0 => tracing::info!("{name}: {line}"),
            _ => tracing::warn!("{name}: {line}"),
        };
        self.output.get_mut(index).is_some_and(|lines| lines.read(&mut report))
    }

    /// Handles the messages that the process sent before it ended.
    fn finish(&mut self) {
        while self.serve(TURN) {}
        self.tasks.run();
        for index in 0..self.output.len() {
            for _ in 0..LAST_READS {
                if !self.print(index) {
                    break;
                }
            }
            let name = self.name;
            if let Some(lines) = self.output.get_mut(index) {
                lines.pipe = None;
                lines.end(&mut |line| tracing::info!("{name}: {line}"));
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    End,
    Bell,
    Side,
    Output(usize),
}
