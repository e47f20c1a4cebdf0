//! Change notifications: what changed is read from the server, that something changed comes from here.
//!
//! Every change of the model table, of a backend's readiness, of a fetch's progress, of a release and of the server's own
//! state raises the generation. A subscriber waits for a generation it has not seen and then reads the state it cares about. A slow
//! subscriber skips generations but never the last one. Requests raise none, so they pay nothing.

use tokio::sync::watch;

/// Raises the generation.
#[derive(Clone, Debug)]
pub(crate) struct Events(watch::Sender<u64>);

impl Default for Events {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Events {
    /// Announces a change that is already visible.
    pub(crate) fn notify(&self) {
        self.0.send_modify(|generation| *generation += 1);
    }

    pub(crate) fn subscribe(&self) -> Changes {
        Changes(self.0.subscribe())
    }
}

/// A subscription to the changes of a [`Server`](crate::Server). It needs no particular runtime.
#[derive(Clone, Debug)]
pub struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Waits for a generation later than the last one returned (or than the subscription), and returns it; `None` once
    /// the server has ended. State read from the server afterwards is at least that recent.
    pub async fn next(&mut self) -> Option<u64> {
        self.0.changed().await.ok()?;
        Some(*self.0.borrow_and_update())
    }

    /// The generation now. It counts as seen.
    pub fn generation(&mut self) -> u64 {
        *self.0.borrow_and_update()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_slow_subscriber_skips_generations_but_not_the_last() {
        let events = Events::default();
        let mut changes = events.subscribe();
        assert_eq!(changes.next().now_or_never(), None);
        (0..5).for_each(|_| events.notify());
        assert_eq!(changes.next().now_or_never(), Some(Some(5)));
        assert_eq!(changes.next().now_or_never(), None);
        events.notify();
        assert_eq!(changes.generation(), 6);
        assert_eq!(changes.next().now_or_never(), None);
    }

    #[test]
    fn a_change_before_the_end_is_seen_before_the_end() {
        let events = Events::default();
        let mut changes = events.subscribe();
        events.notify();
        drop(events);
        assert_eq!(changes.next().now_or_never(), Some(Some(1)));
        assert_eq!(changes.next().now_or_never(), Some(None));
    }
}
