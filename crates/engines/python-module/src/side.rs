//! The side channel: calls from models to the server, at any time and from any thread, and the replies.
//!
//! A thread that waits for a reply reads the channel itself, unless another one does, so that a reply wakes no more
//! threads than necessary. The reading thread passes on the replies for others. A separate thread reads for calls
//! without a waiting thread.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::{io, thread};

use nereid_worker_protocol::side::ANSWER;
use nereid_worker_protocol::{Channel, Incoming, Message, Reader, Receiver, Sender};
use pyo3::prelude::*;
use pyo3::sync::MutexExt;

use crate::constants::exception;

/// The channel of this process.
pub struct Side {
    sender: Mutex<Sender>,
    receiver: Mutex<Receiver>,
    calls: Mutex<Calls>,
    /// Signalled when the calls have changed, or no thread reads.
    changed: Condvar,
    next: AtomicU64,
}

#[derive(Default)]
struct Calls {
    open: HashMap<u64, Call>,
    /// The reason why the channel ended.
    ended: Option<String>,
    /// Number of threads that wait for `changed`.
    waiting: usize,
    /// Calls with a `notify` callback, once for each reply.
    notifications: VecDeque<u64>,
    /// Number of open calls with a `notify` callback.
    notified: usize,
    reads_for_others: bool,
}

#[derive(Default)]
struct Call {
    answers: VecDeque<Incoming>,
    finished: bool,
    notify: Option<Py<PyAny>>,
}

impl Calls {
    /// The callback of a call, which is kept only while more replies may arrive: it may refer to the call's owner.
    fn callback(&mut self, python: Python<'_>, number: u64) -> Option<Py<PyAny>> {
        let is_last = self.ended.is_some();
        let call = self.open.get_mut(&number)?;
        if !is_last && !call.finished {
            return Some(call.notify.as_ref()?.clone_ref(python));
        }
        let notify = call.notify.take()?;
        self.notified -= 1;
        Some(notify)
    }

    fn is_pending(&self, number: u64) -> bool {
        let is_open = |call: &Call| call.answers.is_empty() && !call.finished;
        self.ended.is_none() && self.open.get(&number).is_some_and(is_open)
    }
}

static SIDE: OnceLock<Side> = OnceLock::new();

/// A reply of the server.
pub struct Answer {
    incoming: Incoming,
}

impl Answer {
    /// Reads the reply.
    pub fn reader(&self) -> PyResult<Reader<'_>> {
        let mut reader = self.incoming.reader();
        // Skip the number of the call, and whether this was the last reply.
        reader.u64().and_then(|_| reader.bool()).map_err(|error| exception(error.to_string()))?;
        Ok(reader)
    }
}

/// Frees the shared memory of a reply that nothing else reads: reading takes hold of it, and dropping frees it.
fn discard(incoming: &Incoming) {
    let mut reader = incoming.reader();
    // A malformed reply holds nothing.
    let _ = reader.u64().and_then(|_| reader.bool()).and_then(|_| reader.reply().map(drop));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Side {
    /// Takes the process's channel.
    pub fn start(channel: Channel) -> PyResult<&'static Self> {
        let Channel { sender, receiver } = channel;
        let side = Self {
            sender: Mutex::new(sender),
            receiver: Mutex::new(receiver),
            calls: Mutex::default(),
            changed: Condvar::new(),
            next: AtomicU64::new(1),
        };
        SIDE.set(side).map_err(|_| exception("the process is connected already"))?;
        Self::get()
    }

    /// The process's channel.
    pub fn get() -> PyResult<&'static Self> {
        SIDE.get().ok_or_else(|| exception("no server is connected"))
    }

    /// Number of messages sent so far.
    pub fn sent(&self, python: Python<'_>) -> u64 {
        self.lock_sender(python).sent()
    }

    /// Releases memory that messages used.
    pub fn trim(&self, python: Python<'_>) {
        self.lock_sender(python).trimmer().trim();
    }

    fn lock_sender(&self, python: Python<'_>) -> MutexGuard<'_, Sender> {
        // No thread waits for this lock while it holds the interpreter's, so the holder of this lock may wait for the
        // interpreter's.
        self.sender.lock_py_attached(python).unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message written by `build`.
    pub fn send(
        &self,
        python: Python<'_>,
        kind: u16,
        build: impl FnOnce(&mut Message<'_>) -> PyResult<()>,
    ) -> PyResult<()> {
        let mut sender = self.lock_sender(python);
        let mut message = sender.message(kind);
        build(&mut message)?;
        python
            .detach(|| message.send())
            .map_err(|error| exception(format!("cannot send to the server: {error}")))
    }

    /// Begins a call. `notify` is called, without arguments, when replies have arrived; it is dropped after the last.
    pub fn begin(
        &'static self,
        python: Python<'_>,
        kind: u16,
        notify: Option<Py<PyAny>>,
        build: impl FnOnce(&mut Message<'_>) -> PyResult<()>,
    ) -> PyResult<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        {
            let mut calls = lock(&self.calls);
            calls.notified += usize::from(notify.is_some());
            if notify.is_some() && !std::mem::replace(&mut calls.reads_for_others, true) {
                thread::Builder::new().name("nereid-answers".into()).spawn(|| self.read_for_others())?;
            }
            calls.open.insert(number, Call { notify, ..Call::default() });
            self.wake(&calls);
        }
        let sent = self.send(python, kind, |message| {
            message.u64(number);
            build(message)
        });
        if let Err(error) = sent {
            self.forget(number);
            return Err(error);
        }
        Ok(number)
    }

    /// Makes a call with one reply, and waits for it.
    pub fn ask(
        &'static self,
        python: Python<'_>,
        kind: u16,
        build: impl FnOnce(&mut Message<'_>) -> PyResult<()>,
    ) -> PyResult<Answer> {
        let number = self.begin(python, kind, None, build)?;
        let answer = self.wait(python, number);
        self.forget(number);
        answer?.ok_or_else(|| exception("the server returned no answer"))
    }

    /// Waits for the next reply to a call; `None` after the last.
    pub fn wait(&self, python: Python<'_>, number: u64) -> PyResult<Option<Answer>> {
        let waited = python.detach(|| {
            let mut calls = self.wait_for_reply(number)?;
            Ok(calls.open.get_mut(&number).and_then(|call| call.answers.pop_front()))
        });
        Ok(waited.map_err(|why: String| exception(why))?.map(|incoming| Answer { incoming }))
    }

    /// Waits until the next reply to a call, or its end, has arrived.
    pub fn wait_for_arrival(&self, python: Python<'_>, number: u64) -> PyResult<()> {
        python.detach(|| self.wait_for_reply(number).map(drop)).map_err(exception)
    }

    /// Whether neither the next reply to a call nor its end has arrived.
    pub fn would_wait(&self, number: u64) -> bool {
        lock(&self.calls).is_pending(number)
    }

    /// Whether all replies to a call have been taken.
    pub fn is_over(&self, number: u64) -> bool {
        lock(&self.calls).open.get(&number).is_none_or(|call| call.finished && call.answers.is_empty())
    }

    fn wait_for_reply(&self, number: u64) -> Result<MutexGuard<'_, Calls>, String> {
        let mut calls = lock(&self.calls);
        while calls.is_pending(number) {
            calls = self.advance(calls);
        }
        let is_open = |call: &Call| call.answers.is_empty() && !call.finished;
        match &calls.ended {
            Some(why) if calls.open.get(&number).is_some_and(is_open) => Err(why.clone()),
            _ => Ok(calls),
        }
    }

    /// Forgets a call. Returns whether it has not finished.
    pub fn forget(&self, number: u64) -> bool {
        let forgotten = {
            let mut calls = lock(&self.calls);
            let forgotten = calls.open.remove(&number);
            calls.notified -= usize::from(forgotten.as_ref().is_some_and(|call| call.notify.is_some()));
            forgotten
        };
        forgotten.is_some_and(|call| {
            call.answers.iter().for_each(discard);
            !call.finished
        })
    }

    /// Receives a message, or waits until another thread has received one.
    fn advance<'a>(&'a self, mut calls: MutexGuard<'a, Calls>) -> MutexGuard<'a, Calls> {
        let mut receiver = match self.receiver.try_lock() {
            Ok(receiver) => receiver,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                calls.waiting += 1;
                calls = self.changed.wait(calls).unwrap_or_else(PoisonError::into_inner);
                calls.waiting -= 1;
                return calls;
            }
        };
        drop(calls);
        let received = receiver.receive();
        let mut calls = lock(&self.calls);
        if let Err(why) = self.dispatch(&mut calls, received) {
            calls.ended = Some(why);
        }
        // Under the lock, so that every waiting thread that saw a reader is woken.
        drop(receiver);
        self.wake(&calls);
        calls
    }

    fn dispatch(&self, calls: &mut Calls, received: io::Result<Option<Incoming>>) -> Result<(), String> {
        let incoming = received.map_err(|error| format!("cannot receive from the server: {error}"))?;
        let incoming = incoming.ok_or("the server has gone")?;
        if incoming.kind() != ANSWER {
            return Err(format!("the server sent an unknown message ({})", incoming.kind()));
        }
        let mut reader = incoming.reader();
        let head = reader.u64().and_then(|number| Ok((number, reader.bool()?)));
        let (number, last) = head.map_err(|error| error.to_string())?;
        let Some(call) = calls.open.get_mut(&number) else {
            // Its call was forgotten.
            discard(&incoming);
            return Ok(());
        };
        call.finished = last;
        call.answers.push_back(incoming);
        if call.notify.is_some() {
            calls.notifications.push_back(number);
        }
        Ok(())
    }

    fn wake(&self, calls: &Calls) {
        if calls.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Reads while calls without a waiting thread exist, and notifies their callers.
    fn read_for_others(&self) {
        let mut calls = lock(&self.calls);
        loop {
            if let Some(number) = calls.notifications.pop_front() {
                drop(calls);
                self.notify(number);
                calls = lock(&self.calls);
            } else if calls.ended.is_some() {
                let left: Vec<u64> = calls.open.keys().copied().collect();
                drop(calls);
                left.into_iter().for_each(|number| self.notify(number));
                return;
            } else if calls.notified == 0 {
                calls.waiting += 1;
                calls = self.changed.wait(calls).unwrap_or_else(PoisonError::into_inner);
                calls.waiting -= 1;
            } else {
                calls = self.advance(calls);
            }
        }
    }

    fn notify(&self, number: u64) {
        Python::attach(|python| {
            let notify = lock(&self.calls).callback(python, number);
            if let Some(Err(error)) = notify.map(|notify| notify.call0(python)) {
                error.print(python);
            }
        });
    }
}
