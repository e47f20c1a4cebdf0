//! The order of executions, with instances on threads of their own.

use std::sync::mpsc::channel;
use std::thread;

use nereid_backend_api::ErrorCode;

use super::*;

fn instance(name: &str, priority: u32, resources: &[(&str, usize)]) -> Needs {
    let resources = resources
        .iter()
        .map(|&(name, count)| Need {
            name: name.trim_start_matches('*').into(),
            count,
            global: name.starts_with('*'),
        })
        .collect();
    Needs { instance: name.into(), device: 0, resources, priority }
}

fn limit(name: &str, count: usize, device: Option<i32>) -> ResourceLimit {
    ResourceLimit { name: name.into(), count, device }
}

#[test]
fn unobtainable_resources_are_refused_at_load() {
    let limiter = RateLimiter::new(vec![limit("R", 4, Some(0)), limit("R", 2, None), limit("S", 9, Some(1))]);
    limiter.register(vec![instance("a", 0, &[("R", 4)])]).unwrap();
    for (needs, in_message) in [
        (("R", 5), "needs 5 of resource 'R', but its limit is 4"),
        // There is some, but on another device.
        (("S", 1), "its limit is 0"),
        (("T", 1), "its limit is 0"),
    ] {
        let error = limiter.register(vec![instance("b", 0, &[needs])]).err().unwrap();
        assert_eq!(error.code(), ErrorCode::InvalidArg);
        assert!(error.message().contains(in_message), "{error}");
    }
    // Of a global resource it does not matter on which device.
    limiter.register(vec![instance("c", 0, &[("*S", 9)])]).unwrap();
}

#[test]
fn a_resource_is_global_everywhere_or_nowhere() {
    let limiter = RateLimiter::new(Vec::new());
    let first = limiter.register(vec![instance("a", 0, &[("*R", 1)])]).unwrap();
    let error = limiter.register(vec![instance("b", 0, &[("S", 1)]), instance("c", 0, &[("R", 1)])]).err();
    assert!(error.unwrap().message().contains("instance 'c': resource 'R' is global"));
    // What was refused left nothing behind, and neither does what is unloaded.
    limiter.register(vec![instance("b", 0, &[("*S", 1)])]).unwrap();
    drop(first);
    limiter.register(vec![instance("c", 0, &[("R", 1)])]).unwrap();
    assert!(limiter.lock().instances.is_empty() && limiter.lock().taken.values().all(|taken| *taken == 0));
}

/// The order in which waiting instances are served once the resource is released.
fn served(before: &[(usize, u64)], priorities: &[u32]) -> Vec<usize> {
    let limiter = RateLimiter::new(Vec::new());
    let needs = |(index, priority): (usize, &u32)| instance(&index.to_string(), *priority, &[("R", 1)]);
    let permits = limiter.register(priorities.iter().enumerate().map(needs).collect()).unwrap();
    let holder = limiter.register(vec![instance("holder", 1, &[("R", 1)])]).unwrap();
    for &(index, executions) in before {
        for _ in 0..executions {
            permits.acquire(index);
            permits.executed(index);
        }
    }
    holder.acquire(0);
    let (sender, order) = channel();
    thread::scope(|scope| {
        for index in 0..priorities.len() {
            let (permits, sender) = (&permits, sender.clone());
            scope.spawn(move || {
                permits.acquire(index);
                sender.send(index).unwrap();
                permits.executed(index);
            });
            while limiter.lock().waiting.len() <= index {
                thread::yield_now();
            }
        }
        holder.executed(0);
    });
    drop(sender);
    order.iter().collect()
}

#[test]
fn those_who_executed_less_often_go_first_weighed_by_their_priority() {
    assert_eq!(served(&[], &[1, 1, 1]), [0, 1, 2]);
    assert_eq!(served(&[(0, 3), (1, 1)], &[1, 1, 1]), [2, 1, 0]);
    // Three executions that count once against two that count twice; priority 0 counts as 1.
    assert_eq!(served(&[(0, 3), (1, 2)], &[0, 2]), [0, 1]);
    assert_eq!(served(&[(0, 5), (1, 2)], &[0, 2]), [1, 0]);
    // Of equal ranks, the more urgent priority goes first, and then the earlier request.
    assert_eq!(served(&[], &[3, 2, 1]), [2, 1, 0]);
    assert_eq!(served(&[(0, 2), (1, 4), (2, 2)], &[2, 1, 2]), [1, 0, 2]);
}

/// The instances that execute while all of them have work all the time, in order.
fn executions(priorities: &[u32], count: usize) -> Vec<usize> {
    let limiter = RateLimiter::new(Vec::new());
    let needs = |(index, priority): (usize, &u32)| instance(&index.to_string(), *priority, &[("R", 1)]);
    let permits = limiter.register(priorities.iter().enumerate().map(needs).collect()).unwrap();
    let holder = limiter.register(vec![instance("holder", 1, &[("R", 1)])]).unwrap();
    holder.acquire(0);
    let order = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for index in 0..priorities.len() {
            let (permits, order) = (&permits, &order);
            scope.spawn(move || {
                loop {
                    // Releases and requests in one step, as an instance with queued requests does.
                    permits.acquire(index);
                    let mut order = order.lock().unwrap();
                    if order.len() == count {
                        break;
                    }
                    order.push(index);
                }
                permits.executed(index);
            });
        }
        while limiter.waiting() < priorities.len() {
            thread::yield_now();
        }
        holder.executed(0);
    });
    order.into_inner().unwrap()
}

#[test]
fn a_less_urgent_instance_never_executes_more_often_than_its_priority_allows() {
    for priorities in [[1, 2], [2, 1], [1, 3], [2, 3], [5, 2], [1, 1]] {
        let order = executions(&priorities, 125);
        let mut counts = [0, 0];
        for index in order {
            let other = 1 - index;
            let (own, others) = (counts[index] * priorities[index], counts[other] * priorities[other]);
            let is_next = own < others || (own == others && priorities[index] <= priorities[other]);
            assert!(is_next, "{priorities:?}: {index} executes after {counts:?}");
            counts[index] += 1;
        }
    }
}

#[test]
fn one_that_needs_much_is_not_passed_over_and_holds_up_nobody_who_needs_something_else() {
    let limiter = RateLimiter::new(vec![limit("R", 2, None), limit("S", 1, None)]);
    let needs = [("small", "R", 1), ("large", "R", 2), ("late", "R", 1), ("other", "S", 1)];
    let needs = needs.map(|(name, resource, count)| instance(name, 1, &[(resource, count)]));
    let permits = limiter.register(needs.to_vec()).unwrap();
    permits.acquire(0);
    let waits = |count: usize| {
        while limiter.lock().waiting.len() != count {
            thread::yield_now();
        }
    };
    let (sender, order) = channel();
    thread::scope(|scope| {
        for (index, waiting) in [(1, 1), (2, 2)] {
            let (permits, sender) = (&permits, sender.clone());
            scope.spawn(move || {
                permits.acquire(index);
                sender.send(index).unwrap();
                permits.executed(index);
            });
            waits(waiting);
        }
        // There is enough of R for the late one, but it does not go before the one that waits for more.
        permits.acquire(3);
        permits.executed(3);
        assert!(order.try_recv().is_err());
        permits.executed(0);
    });
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn a_permit_given_back_is_not_an_execution() {
    let limiter = RateLimiter::new(Vec::new());
    let permits =
        limiter.register(vec![instance("a", 1, &[("R", 1)]), instance("b", 1, &[("R", 1)])]).unwrap();
    permits.acquire(0);
    permits.give_back(0);
    assert_eq!(permits.first(&[0, 1]), Some(0));
    permits.acquire(0);
    permits.executed(0);
    assert_eq!(permits.first(&[0, 1]), Some(1));
    // Without a permit there was no execution.
    permits.executed(0);
    assert_eq!(limiter.lock().instances[&0].executions, 1);
}

#[test]
fn an_instance_that_takes_requests_by_itself_yields_to_those_that_executed_less_often() {
    let limiter = RateLimiter::new(Vec::new());
    let needs = [("a", "R", 1), ("b", "R", 1), ("c", "S", 1)];
    let needs = needs.map(|(name, resource, priority)| instance(name, priority, &[(resource, 1)]));
    let permits = limiter.register(needs.to_vec()).unwrap();
    assert!(!permits.pull(0, true), "it holds nothing");
    permits.acquire(0);
    permits.acquire(2);
    for is_idle in [true, false, false, true] {
        assert!(permits.pull(0, is_idle) && permits.pull(2, is_idle));
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| permits.acquire(1));
        while limiter.waiting() == 0 {
            thread::yield_now();
        }
        // Keeps the resource while it executes, and releases it once it is idle.
        assert!(!permits.pull(0, false) && permits.pull(2, false));
        assert!(!waiting.is_finished());
        assert!(!permits.pull(0, true));
        waiting.join().unwrap();
    });
    assert!(permits.pull(1, true));
    assert_eq!([0, 1, 2].map(|id| limiter.lock().instances[&id].executions), [4, 1, 5]);
    permits.give_back(1);
    permits.acquire(0);
    // Each acquisition allows at least one request.
    assert!(permits.pull(0, true));
}
