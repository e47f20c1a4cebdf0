//! The call channel of a process: one caller at a time.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nereid_worker_protocol::{Channel, Incoming};

/// The channel while it is idle.
#[derive(Debug)]
pub(crate) struct Calls {
    place: Mutex<Place>,
    returned: Condvar,
}

#[derive(Debug)]
struct Place {
    channel: Option<LimitedChannel>,
    /// Number of waiting callers. Waking without any would still cost a system call.
    waiting: usize,
}

/// A channel, and how long its answers may take.
#[derive(Debug)]
pub(crate) struct LimitedChannel {
    channel: Channel,
    limit: Option<Duration>,
    /// Late answers, whose callers have stopped waiting.
    late: usize,
}

impl LimitedChannel {
    /// The next answer. Those that come too late are passed over.
    pub(crate) fn receive(&mut self) -> io::Result<Option<Incoming>> {
        loop {
            let received = self.channel.receiver.receive();
            match (&received, self.late) {
                (Ok(Some(_)), 1..) => self.late -= 1,
                _ => return received,
            }
        }
    }

    /// Gives up waiting for the answer to the last call.
    pub(crate) fn give_up(&mut self) {
        self.late += 1;
    }

    /// Sets how long an answer may take.
    pub(crate) fn limit(&mut self, limit: Option<Duration>) -> io::Result<()> {
        if self.limit != limit {
            self.channel.receiver.set_timeout(limit)?;
            self.limit = limit;
        }
        Ok(())
    }
}

impl Deref for LimitedChannel {
    type Target = Channel;

    fn deref(&self) -> &Channel {
        &self.channel
    }
}

impl DerefMut for LimitedChannel {
    fn deref_mut(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

impl Calls {
    pub(crate) fn new(channel: Channel) -> Self {
        let channel = Some(LimitedChannel { channel, limit: None, late: 0 });
        Self { place: Mutex::new(Place { channel, waiting: 0 }), returned: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Place> {
        // Nothing panics under this lock.
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The channel, once it is idle; `None` if that takes longer than the limit.
    pub(crate) fn take(&self, limit: Option<Duration>) -> Option<ChannelInUse<'_>> {
        let mut place = self.lock();
        if place.channel.is_none() {
            let used = |place: &mut Place| place.channel.is_none();
            place.waiting += 1;
            place = match limit {
                None => self.returned.wait_while(place, used).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => {
                    let waited = self.returned.wait_timeout_while(place, limit, used);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
            place.waiting -= 1;
        }
        let channel = place.channel.take()?;
        Some(ChannelInUse { calls: self, channel: Some(channel) })
    }
}

/// The channel in use. It returns when it is dropped.
pub(crate) struct ChannelInUse<'a> {
    calls: &'a Calls,
    channel: Option<LimitedChannel>,
}

impl Deref for ChannelInUse<'_> {
    type Target = LimitedChannel;

    #[expect(clippy::expect_used, reason = "present until the drop")]
    fn deref(&self) -> &LimitedChannel {
        self.channel.as_ref().expect("it is there until the drop")
    }
}

impl DerefMut for ChannelInUse<'_> {
    #[expect(clippy::expect_used, reason = "present until the drop")]
    fn deref_mut(&mut self) -> &mut LimitedChannel {
        self.channel.as_mut().expect("it is there until the drop")
    }
}

impl Drop for ChannelInUse<'_> {
    fn drop(&mut self) {
        let mut place = self.calls.lock();
        place.channel = self.channel.take();
        if place.waiting > 0 {
            self.calls.returned.notify_one();
        }
    }
}
