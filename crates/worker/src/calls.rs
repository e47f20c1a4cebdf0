//! The call channel of a process: one caller at a time.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use nereid_worker_protocol::Channel;

/// The channel, when nobody uses it.
#[derive(Debug)]
pub(crate) struct Calls {
    channel: Mutex<Option<Limited>>,
    returned: Condvar,
}

/// A channel, and how long its answers may take.
#[derive(Debug)]
pub(crate) struct Limited {
    channel: Channel,
    limit: Option<Duration>,
}

impl Limited {
    /// Sets how long an answer may take.
    pub(crate) fn limit(&mut self, limit: Option<Duration>) -> io::Result<()> {
        if self.limit != limit {
            self.channel.receiver.set_timeout(limit)?;
            self.limit = limit;
        }
        Ok(())
    }
}

impl Deref for Limited {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl DerefMut for Limited {
    fn deref_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

impl Calls {
    pub(crate) fn new(channel: Channel) -> Self {
        Self { channel: Mutex::new(Some(Limited { channel, limit: None })), returned: Condvar::new() }
    }

    /// The channel, once nobody else uses it; `None` if that takes longer than a limit.
    pub(crate) fn take(&self, limit: Option<Duration>) -> Option<Taken<'_>> {
        // Nothing panics under this lock.
        let channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let used = |channel: &mut Option<Limited>| channel.is_none();
        let mut channel = match limit {
            None => self.returned.wait_while(channel, used).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let waited = self.returned.wait_timeout_while(channel, limit, used);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        channel.take().map(|channel| Taken { calls: self, channel: Some(channel) })
    }
}

/// The channel in use. It returns when it is dropped.
pub(crate) struct Taken<'a> {
    calls: &'a Calls,
    channel: Option<Limited>,
}

impl Deref for Taken<'_> {
    type Target = Limited;

    fn deref(&self) -> &Limited {
        self.channel.as_ref().expect("it is there until the drop")
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Limited {
        self.channel.as_mut().expect("it is there until the drop")
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.calls.channel.lock().unwrap_or_else(PoisonError::into_inner) = self.channel.take();
        self.calls.returned.notify_one();
    }
}
