//! The default scheduler's rules: each request by itself, first come, first served within a flow.

use std::time::Instant;

use super::fair::FairQueue;
use super::{Item, Queue, Readiness, Refusal, Ticket};

/// A queue without a limit, as the reference documents it for models that do not batch.
pub struct Fifo<T> {
    items: FairQueue<T>,
    next: u64,
}

impl<T> Default for Fifo<T> {
    fn default() -> Self {
        Self { items: FairQueue::default(), next: 0 }
    }
}

impl<T: Item> Queue for Fifo<T> {
    type Item = T;

    fn push(&mut self, item: T, _now: Instant) -> Result<Ticket, (T, Refusal)> {
        let number = self.next;
        self.next += 1;
        let flow = item.flow();
        let slot = self.items.push(number, flow, item.cost(), item);
        Ok(Ticket { level: 0, slot, number })
    }

    fn alone(&mut self, item: T) -> Result<Vec<T>, T> {
        if self.items.is_empty() { Ok(vec![item]) } else { Err(item) }
    }

    fn readiness(&mut self, _now: Instant) -> Readiness {
        if self.items.is_empty() { Readiness::Nothing } else { Readiness::Now }
    }

    fn first(&self) -> Option<&T> {
        self.items.first()
    }

    fn take(&mut self, _now: Instant) -> Vec<T> {
        self.items.pop().into_iter().collect()
    }

    fn remove(&mut self, ticket: Ticket) -> Option<T> {
        self.items.remove(ticket.slot, ticket.number)
    }

    fn expire(&mut self, _now: Instant) -> Vec<T> {
        Vec::new()
    }

    fn next_expiry(&self) -> Option<Instant> {
        None
    }

    fn batches_before(&self, item: &T) -> usize {
        self.items.ahead_of(item.flow().id)
    }

    fn len(&self) -> usize {
        self.items.len()
    }

    fn batches(&self) -> usize {
        self.items.len()
    }

    fn close(&mut self) {}
}
