//! One process that runs an instance.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nereid_backend_api::{Error, Peers, Result};
use nereid_worker_protocol::{Channel, Closer, Incoming, Message, VERSION, call};

use crate::calls::{Calls, LimitedChannel};
use crate::convert;
use crate::label::Label;
use crate::launch::Launch;
use crate::life::{CLOSED, CLOSING, Life, lost};
use crate::requests::Requests;
use crate::supervisor::Supervisor;

/// The time limits of a process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For the start, until its hello.
    pub start: Duration,
    /// For inspecting the model, and for initialising its instance; `None` for no limit.
    pub load: Option<Duration>,
    /// For one execution; `None` for no limit.
    pub execute: Option<Duration>,
    /// For one step of an instance that executes continuously; `None` for no limit.
    pub step: Option<Duration>,
    /// For reporting its readiness.
    pub ready: Duration,
    /// For finalising its instance and exiting.
    pub finish: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        let half_a_minute = Duration::from_secs(30);
        Self {
            start: half_a_minute,
            load: None,
            execute: None,
            step: None,
            ready: Duration::from_secs(5),
            finish: half_a_minute,
        }
    }
}

/// A running process. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    name: Label,
    calls: Calls,
    closers: [Closer; 2],
    life: Arc<Life>,
    pub(crate) requests: Arc<Requests>,
    pub(crate) limits: Limits,
}

/// Why a call failed.
pub(crate) enum CallError {
    /// The process reported an error, after this many messages on the side channel.
    Failed(Error, u64),
    /// The process ended or was killed.
    Lost(Error),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Failed(error, _) | CallError::Lost(error) => error,
        }
    }
}

impl Process {
    /// Starts a process and waits for its hello. `name` is the instance's, for the log and for errors. If it ends
    /// unexpectedly, `ended` is called with the reason, on a thread that it must not block.
    ///
    /// # Errors
    /// The process cannot be started, ends at once, or breaks the protocol.
    pub fn start(
        launch: &Launch,
        name: &str,
        peers: Arc<dyn Peers>,
        limits: Limits,
        ended: Box<dyn FnOnce(&str) + Send>,
    ) -> Result<Arc<Self>> {
        let (calls, their_calls) = Channel::pair().map_err(|error| cannot(launch, &error))?;
        let (side, their_side) = Channel::pair().map_err(|error| cannot(launch, &error))?;
        let name = Label::new(name);
        let process = Arc::new(Self {
            name: name.clone(),
            closers: [calls.closer(), side.closer()],
            life: Arc::default(),
            requests: Arc::default(),
            limits,
            calls: Calls::new(calls),
        });
        let (started, spawned) = mpsc::sync_channel(1);
        let supervisor = Supervisor {
            name,
            life: Arc::clone(&process.life),
            requests: Arc::clone(&process.requests),
            calls: process.closers[0].clone(),
            trimmer: process.channel().sender.trimmer(),
            side,
            peers,
            ended,
        };
        let (launch, program) = (launch.clone(), launch);
        // The system kills the process when the thread that started it ends: it has to be this one.
        let watching = thread::Builder::new().name("nereid-worker".to_owned());
        watching
            .spawn(move || supervisor.run(&launch, their_calls, &started))
            .map_err(|error| cannot(program, &error))?;
        spawned
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that starts it has ended")))
            .map_err(|error| cannot(program, &error))?;
        process.greet(their_side).map_err(|error| {
            process.life.kill_and_wait("did not start");
            error.context(format_args!("'{}'", program.program.display()))
        })?;
        Ok(process)
    }

    fn greet(&self, side: std::os::fd::OwnedFd) -> Result<()> {
        use std::os::fd::AsFd;
        let mut channel = self.channel();
        let start = |error: io::Error| lost(&self.name.get(), &format!("cannot be reached: {error}"));
        channel.limit(Some(self.limits.start)).map_err(start)?;
        let mut message = channel.sender.message(call::START);
        message.u32(VERSION);
        if message.send_with(Some(side.as_fd())).is_err() {
            return Err(self.lost(None).into());
        }
        drop(side);
        let hello = self.answer(&mut channel, call::HELLO)?;
        let mut reader = hello.reader();
        let (version, description) = (reader.u32(), reader.text());
        if version != Ok(VERSION) {
            return Err(Error::internal(format!(
                "the process of model instance '{}' speaks another version of the protocol than the server",
                self.name
            )));
        }
        tracing::debug!("{}: process {} has started", self.name, description.unwrap_or("without a name"));
        Ok(())
    }

    #[expect(clippy::expect_used, reason = "without a limit the call waits, and always succeeds")]
    fn channel(&self) -> crate::calls::ChannelInUse<'_> {
        self.calls.take(None).expect("without a limit, it waits")
    }

    /// Calls the process: sends the message of a kind, whose values `write` appends, and waits for its answer, within
    /// the limit for a load.
    ///
    /// # Errors
    /// The error that the process reports, or that it ended.
    pub fn call(&self, kind: u16, answer: u16, write: impl FnOnce(&mut Message<'_>)) -> Result<Incoming> {
        self.call_within(self.limits.load, kind, answer, write)
    }

    /// As [`call`](Self::call), with a limit of its own.
    ///
    /// # Errors
    /// As there.
    pub fn call_within(
        &self,
        limit: Option<Duration>,
        kind: u16,
        answer: u16,
        write: impl FnOnce(&mut Message<'_>),
    ) -> Result<Incoming> {
        let mut channel = self.channel();
        self.request(&mut channel, limit, kind, write)?;
        Ok(self.answer(&mut channel, answer)?)
    }

    /// Sends a call whose answer may take up to a limit.
    fn request(
        &self,
        channel: &mut LimitedChannel,
        limit: Option<Duration>,
        kind: u16,
        write: impl FnOnce(&mut Message<'_>),
    ) -> Result<(), CallError> {
        channel.limit(limit).map_err(|error| self.lost(Some(error)))?;
        let mut message = channel.sender.message(kind);
        write(&mut message);
        message.send().map_err(|error| self.lost(Some(error)))
    }

    /// The channel, for an execution.
    pub(crate) fn begin_execution(&self) -> Result<crate::calls::ChannelInUse<'_>, CallError> {
        let mut channel = self.channel();
        channel.limit(self.limits.execute).map_err(|error| self.lost(Some(error)))?;
        Ok(channel)
    }

    /// Waits for the answer to a call.
    pub(crate) fn answer(&self, channel: &mut LimitedChannel, kind: u16) -> Result<Incoming, CallError> {
        self.check(channel.receive(), kind)
    }

    /// Checks that an answer is of a kind.
    fn check(&self, received: io::Result<Option<Incoming>>, kind: u16) -> Result<Incoming, CallError> {
        match received {
            Ok(Some(incoming)) if incoming.kind() == kind => Ok(incoming),
            Ok(Some(incoming)) if incoming.kind() == call::FAILED => {
                let mut reader = incoming.reader();
                match reader.failure().and_then(|failure| Ok((failure, reader.u64()?))) {
                    Ok((failure, sent)) => Err(CallError::Failed(convert::error(failure), sent)),
                    Err(error) => Err(self.broke_protocol(&error)),
                }
            }
            Ok(Some(_)) => Err(self.broke_protocol(&"an answer to another call")),
            Ok(None) => Err(self.lost(None)),
            Err(error) => Err(self.lost(Some(error))),
        }
    }

    /// Kills the process, because it broke the protocol.
    pub(crate) fn broke_protocol(&self, how: &dyn std::fmt::Display) -> CallError {
        let end = self.life.kill_and_wait(&format!("was killed, because it broke the protocol: {how}"));
        CallError::Lost(lost(&self.name.get(), &end))
    }

    /// The process is unusable: it ended, timed out, or broke the protocol.
    pub(crate) fn lost(&self, error: Option<io::Error>) -> CallError {
        use io::ErrorKind::{InvalidData, TimedOut, WouldBlock};
        let end = match error {
            Some(error) if matches!(error.kind(), WouldBlock | TimedOut) => {
                self.life.kill_and_wait("was killed, because it did not answer in time")
            }
            Some(error) if error.kind() == InvalidData => return self.broke_protocol(&error),
            _ => self.life.wait(CLOSING).unwrap_or_else(|| self.life.kill_and_wait(CLOSED)),
        };
        CallError::Lost(lost(&self.name.get(), &end))
    }

    /// Asks the instance whether it is ready.
    ///
    /// # Errors
    /// The instance is not ready, or did not answer in time.
    pub fn ready(&self) -> Result<()> {
        let limit = self.limits.ready;
        let slow = |what: &str| {
            let seconds = limit.as_secs_f32();
            Error::unavailable(format!("model instance '{}' {what} for {seconds} s", self.name))
        };
        let mut channel = self.calls.take(Some(limit)).ok_or_else(|| slow("has executed one batch"))?;
        self.request(&mut channel, Some(limit), call::READY, |_| ())?;
        let answer = match channel.receive() {
            // The process may merely be busy with this question.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                channel.give_up();
                return Err(slow("has not said whether it is ready"));
            }
            received => self.check(received, call::READINESS)?,
        };
        match answer.reader().bool() {
            Ok(true) => Ok(()),
            Ok(false) => {
                Err(Error::unavailable(format!("model instance '{}' says that it is not ready", self.name)))
            }
            Err(error) => Err(self.broke_protocol(&error).into()),
        }
    }

    /// How it ended, if it did.
    pub fn ended(&self) -> Option<Arc<str>> {
        self.life.ended()
    }

    /// The id of the process while it lives.
    pub(crate) fn id(&self) -> Option<u32> {
        self.life.id()
    }

    /// Renames it for the instance that takes it.
    pub fn rename(&self, name: &str) {
        self.name.set(name);
    }

    /// Kills it for a reason, which describes its end.
    pub fn kill(&self, why: &str) {
        self.life.kill(why);
    }

    /// How it ended. Waits a few seconds at most.
    pub fn wait(&self) -> Option<Arc<str>> {
        self.life.wait(self.limits.finish)
    }

    /// Finalises the instance and ends the process; kills it if that takes too long.
    ///
    /// # Errors
    /// The error that the instance reports.
    pub fn finish(&self) -> Result<()> {
        if self.ended().is_some() {
            return Ok(());
        }
        self.life.leave();
        self.life.resume();
        let outcome = self.finalize();
        self.closers.iter().for_each(Closer::close);
        if self.life.wait(self.limits.finish).is_none() {
            self.life.kill_and_wait("was killed, because it did not end in time");
        }
        outcome
    }

    fn finalize(&self) -> Result<()> {
        let limit = self.limits.finish;
        let busy = || Error::unavailable(format!("model instance '{}' is busy", self.name));
        let mut channel = self.calls.take(Some(limit)).ok_or_else(busy)?;
        self.request(&mut channel, Some(limit), call::FINALIZE, |_| ())?;
        self.answer(&mut channel, call::FINALIZED)?;
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.life.leave();
        self.closers.iter().for_each(Closer::close);
        self.life.kill("was stopped: no longer used");
    }
}

fn cannot(launch: &Launch, error: &io::Error) -> Error {
    Error::unavailable(format!("cannot start '{}': {error}", launch.program.display()))
}
