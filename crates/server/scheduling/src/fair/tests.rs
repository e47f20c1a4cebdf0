//! Random traffic through the queue and through plainly written rules, and what the rules promise to flows.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU32;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

pub(crate) fn flow(id: u64, weight: u32) -> Flow {
    Flow { id, weight: NonZeroU32::new(weight).unwrap() }
}

/// The rules, slowly: a list of numbers, flows and costs.
#[derive(Clone, Default)]
pub(crate) struct PlainFair {
    items: Vec<(u64, Flow, usize)>,
    /// The start of each flow's first item, or the end of its last one.
    starts: BTreeMap<u64, u64>,
    clock: u64,
    shared: bool,
}

impl PlainFair {
    pub(crate) fn push(&mut self, number: u64, flow: Flow, cost: usize) {
        let others = self.items.iter().map(|(_, other, _)| other.id).find(|other| *other != flow.id);
        if let (Some(other), false) = (others, self.shared) {
            self.starts = BTreeMap::from([(other, self.clock)]);
            self.shared = true;
        }
        if self.items.iter().all(|(_, other, _)| other.id != flow.id) {
            let end = self.starts.get(&flow.id).copied().unwrap_or(0);
            self.starts.insert(flow.id, end.max(self.clock));
        }
        self.items.push((number, flow, cost));
    }

    /// The number that leaves first.
    pub(crate) fn first(&self) -> Option<u64> {
        let first_of = |id: u64| self.items.iter().find(|(_, other, _)| other.id == id);
        let heads = self.starts.iter().filter_map(|(id, start)| Some((*start, first_of(*id)?.0)));
        if self.shared { heads.min().map(|(_, number)| number) } else { Some(self.items.first()?.0) }
    }

    /// The numbers in the order in which they leave.
    pub(crate) fn in_order(&self) -> Vec<u64> {
        let mut copy = self.clone();
        std::iter::from_fn(|| copy.pop()).collect()
    }

    pub(crate) fn pop(&mut self) -> Option<u64> {
        let number = self.first()?;
        let (_, flow, cost) = self.remove(number)?;
        if let Some(start) = self.starts.get_mut(&flow.id).filter(|_| self.shared) {
            self.clock = *start;
            *start += ((cost as u64) << 20) / u64::from(flow.weight.get());
        }
        Some(number)
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<(u64, Flow, usize)> {
        let index = self.items.iter().position(|(other, ..)| *other == number)?;
        let removed = self.items.remove(index);
        if self.items.is_empty() && self.shared {
            (self.starts, self.clock, self.shared) = Default::default();
        }
        Some(removed)
    }
}

#[derive(Clone, Debug)]
enum Event {
    /// A flow's id and weight, and the item's cost.
    Push(u64, u32, usize),
    Pop,
    /// Removes the item that came this many before the last one.
    Remove(usize),
}

fn events(flows: u64) -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        5 => (0..flows, 1..6_u32, 1..9_usize).prop_map(|(flow, weight, cost)| Event::Push(flow, weight, cost)),
        3 => Just(Event::Pop),
        1 => (0..9_usize).prop_map(Event::Remove),
    ];
    vec(event, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn queue_follows_the_plain_rules(events in (1..5_u64).prop_flat_map(events)) {
        let (mut queue, mut plain, mut tickets) = (FairQueue::default(), PlainFair::default(), Vec::new());
        for event in events {
            match event {
                Event::Push(id, weight, cost) => {
                    let (number, flow) = (tickets.len() as u64, flow(id, weight));
                    let before = queue.ahead_of(id);
                    tickets.push(queue.push(number, flow, cost, number));
                    plain.push(number, flow, cost);
                    let ahead = plain.in_order().iter().position(|other| *other == number);
                    prop_assert_eq!(Some(before), ahead);
                }
                Event::Pop => {
                    prop_assert_eq!(queue.first().copied(), plain.first());
                    prop_assert_eq!(queue.pop(), plain.pop());
                }
                Event::Remove(back) => {
                    let Some(number) = tickets.len().checked_sub(back + 1) else { continue };
                    let (slot, number) = (tickets[number], number as u64);
                    prop_assert_eq!(queue.get(slot, number).copied(), plain.remove(number).map(|_| number));
                    prop_assert_eq!(queue.get(slot, number).copied(), queue.remove(slot, number));
                    prop_assert_eq!(queue.remove(slot, number), None);
                }
            }
            let order: Vec<_> = queue.iter().map(|(slot, number, item)| {
                assert_eq!((tickets[number as usize], *item), (slot, number));
                number
            }).collect();
            prop_assert_eq!(&order, &plain.in_order());
            if let Some((slot, ..)) = queue.iter().next() {
                let behind = queue.iter_behind(slot).map(|(_, number, _)| number);
                prop_assert!(behind.eq(order[1..].iter().copied().filter(|_| !queue.is_shared())));
            }
            prop_assert_eq!((queue.len(), queue.is_empty()), (order.len(), order.is_empty()));
        }
    }

    /// However weights and costs vary within it.
    #[test]
    fn one_flow_is_first_in_first_out(events in events(1)) {
        let (mut queue, mut plain) = (FairQueue::default(), VecDeque::new());
        for (number, event) in events.into_iter().enumerate() {
            match event {
                Event::Push(id, weight, cost) => {
                    let slot = queue.push(number as u64, flow(id, weight), cost, number);
                    plain.push_back((slot, number));
                }
                Event::Pop => prop_assert_eq!(queue.pop(), plain.pop_front().map(|(_, number)| number)),
                Event::Remove(back) => {
                    let Some(index) = plain.len().checked_sub(back + 1) else { continue };
                    let (slot, number) = plain.remove(index).unwrap();
                    prop_assert_eq!(queue.remove(slot, number as u64), Some(number));
                }
            }
            let items = queue.iter().map(|(slot, _, item)| (slot, *item));
            prop_assert!(!queue.is_shared() && items.eq(plain.iter().copied()));
        }
    }

    /// While two flows have items, their service divided by their weights differs by no more than the greatest item of each, so
    /// no flow starves. Other flows have items now and then, and items are cancelled.
    #[test]
    fn flows_get_their_shares(
        weights in vec(1..10_u32, 2..5),
        costs in vec(1..9_usize, 400),
        noise in vec((0..5_usize, any::<bool>()), 400),
    ) {
        let mut queue = FairQueue::default();
        let mut number = 0;
        let mut push = |queue: &mut FairQueue<(usize, usize)>, id: usize| {
            let cost = costs[number % costs.len()];
            let slot = queue.push(number as u64, flow(id as u64, weights[id]), cost, (id, cost));
            number += 1;
            (slot, number as u64 - 1)
        };
        // The first two always have items.
        for id in [0, 1, 0, 1, 0, 1] {
            push(&mut queue, id);
        }
        let mut served = vec![0.0; weights.len()];
        let (mut lowest, mut highest) = (0.0_f64, 0.0_f64);
        for (id, cancels) in noise {
            if id < weights.len() {
                push(&mut queue, id);
                if cancels {
                    let (slot, number) = push(&mut queue, id);
                    prop_assert!(queue.remove(slot, number).is_some());
                }
            }
            let (id, cost) = queue.pop().unwrap();
            served[id] += cost as f64 / f64::from(weights[id]);
            if id < 2 {
                push(&mut queue, id);
            }
            let difference = served[0] - served[1];
            (lowest, highest) = (lowest.min(difference), highest.max(difference));
        }
        let bound = 8.0 / f64::from(weights[0]) + 8.0 / f64::from(weights[1]);
        prop_assert!(highest - lowest <= bound + 1e-3, "{lowest} to {highest}, {bound}");
    }

    /// Behind any number of items of others, a new flow waits for the item in front of each of them at most.
    #[test]
    fn a_newcomer_passes_those_who_flood(
        floods in vec((1..2000_usize, 1..10_u32), 1..6),
        popped in 0..500_usize,
        weight in 1..10_u32,
    ) {
        let mut queue = FairQueue::default();
        let mut number = 0;
        for (id, (count, weight)) in floods.iter().enumerate() {
            for _ in 0..*count {
                queue.push(number, flow(id as u64, *weight), 1, id);
                number += 1;
            }
        }
        for _ in 0..popped {
            queue.pop();
        }
        queue.push(number, flow(99, weight), 1, 99);
        let before = std::iter::from_fn(|| queue.pop()).position(|id| id == 99);
        prop_assert!(before.unwrap() <= floods.len(), "{before:?}");
    }
}

#[test]
fn what_was_cancelled_or_expired_costs_its_flow_nothing() {
    for from_the_front in [true, false] {
        let mut queue = FairQueue::default();
        for number in 0..100 {
            queue.push(number, flow(number % 2, 1), 1, number % 2);
        }
        // One flow's items all leave the queue unserved, again and again.
        for round in 1..50 {
            let own = queue.iter().filter(|(.., flow)| **flow == 1);
            let mut own: Vec<_> = own.map(|(slot, number, _)| (number, slot)).collect();
            own.sort_unstable();
            if !from_the_front {
                own.reverse();
            }
            own.into_iter().for_each(|(number, slot)| assert!(queue.remove(slot, number).is_some()));
            for item in 0..20 {
                queue.push(round * 1000 + item, flow(1, 1), 1, 1);
            }
            assert!(queue.pop().is_some());
        }
        let next: Vec<_> = queue.iter().take(4).map(|(.., flow)| *flow).collect();
        assert_eq!(next.iter().filter(|flow| **flow == 1).count(), 2, "{next:?}");
    }
}

#[test]
fn flows_that_are_gone_are_forgotten() {
    let mut queue = FairQueue::default();
    // The queue is never empty, and every item is of another flow.
    queue.push(0, flow(0, 1), 1, 0);
    for number in 1..20_000_u64 {
        queue.push(number, flow(number, 1), 1, number);
        assert!(queue.pop().is_some());
        assert!(queue.others.len() <= 2 * (MAX_AHEAD + 2), "{number}: {}", queue.others.len());
    }
    assert_eq!(queue.len(), 1);
    assert!(queue.pop().is_some());
    assert!(
        queue.others.is_empty()
            && queue.active == 0
            && queue.heads.first().is_none()
            && !queue.has_others
            && queue.lines.len() == 1
    );
}

#[test]
fn lines_of_few_flows_are_used_again_and_nothing_else_is_remembered() {
    let mut queue = FairQueue::default();
    for round in 0..100_u64 {
        // Flow 0 is ahead when the queue becomes empty.
        for (number, id) in [1, 0, 0, 0, 1].into_iter().enumerate() {
            queue.push(round * 5 + number as u64, flow(id, 1), 1, id);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!((order, queue.ahead_of(0)), (vec![1, 0, 0, 1, 0], 0), "{round}");
        assert_eq!((queue.lines.len(), queue.others.len()), (2, 1), "{round}");
    }
}
