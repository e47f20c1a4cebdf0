//! Wake-ups from other threads: none is lost, none waits for a busy thread, and each wakes one thread.

use std::future::poll_fn;
use std::sync::mpsc;
use std::thread;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::*;

/// A runtime with its relay.
fn runtime(threads: usize) -> (Runtime, Arc<Relay>) {
    crate::start_with_relay(threads).unwrap()
}

/// Waits until all I/O threads are parked.
fn settle(relay: &Relay) {
    while relay.parked.load(SeqCst) < relay.threads {
        thread::yield_now();
    }
}

#[test]
fn every_wake_up_of_many_threads_arrives() {
    const TASKS: usize = 64;
    const ROUNDS: usize = 500;
    let (runtime, _) = runtime(3);
    let (woken, mut threads) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    for _ in 0..TASKS {
        let (mut senders, mut receivers) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (sender, receiver) = oneshot::channel::<()>();
            senders.push(sender);
            receivers.push(receiver);
        }
        let woken = Arc::clone(&woken);
        let task = runtime.spawn(relayed(async move {
            for receiver in receivers {
                receiver.await.unwrap();
                woken.fetch_add(1, SeqCst);
            }
        }));
        threads.push((task, thread::spawn(move || senders.into_iter().for_each(|it| it.send(()).unwrap()))));
    }
    for (task, thread) in threads {
        thread.join().unwrap();
        runtime.block_on(task).unwrap();
    }
    assert_eq!(woken.load(SeqCst), TASKS * ROUNDS);
}

#[test]
fn an_answer_wakes_one_thread() {
    const ROUNDS: usize = 200;
    let (runtime, relay) = runtime(4);
    let (question, mut questions) = tokio::sync::mpsc::channel(1);
    let (answer, answers) = mpsc::channel();
    runtime.spawn(relayed(async move {
        while questions.recv().await.is_some() {
            answer.send(()).unwrap();
        }
    }));
    settle(&relay);
    let before = relay.unparks.load(SeqCst);
    for _ in 0..ROUNDS {
        question.blocking_send(()).unwrap();
        answers.recv().unwrap();
        settle(&relay);
    }
    let unparks = relay.unparks.load(SeqCst) - before;
    // A task that is not relayed wakes two. The start may still wake some.
    assert!((ROUNDS..ROUNDS + ROUNDS / 4).contains(&unparks), "{unparks} for {ROUNDS} answers");
}

#[test]
fn an_answer_does_not_wait_for_a_busy_thread() {
    let (runtime, relay) = runtime(2);
    for _ in 0..100 {
        let (answer, receiver) = oneshot::channel();
        let (answered, done) = mpsc::channel();
        runtime.spawn(relayed(async move {
            receiver.await.unwrap();
            answered.send(()).unwrap();
        }));
        settle(&relay);
        let (release, held) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        runtime.spawn(async move {
            begun.send(()).unwrap();
            let _ = held.recv();
        });
        begins.recv().unwrap();
        answer.send(()).unwrap();
        // Hangs if the wake-up waits for the thread that is held.
        done.recv().unwrap();
        drop(release);
    }
}

#[test]
fn tasks_of_a_plain_runtime_are_polled_as_ever() {
    let runtime = Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let (sender, receiver) = oneshot::channel();
    let task = runtime.spawn(relayed(receiver));
    sender.send(7).unwrap();
    assert_eq!(runtime.block_on(task).unwrap(), Ok(7));
}

#[test]
fn a_wake_up_after_the_end_of_the_runtime_does_no_harm() {
    let (runtime, relay) = runtime(1);
    let (tell, waker) = mpsc::channel();
    runtime.spawn(relayed(poll_fn(move |context| {
        tell.send(context.waker().clone()).unwrap();
        Poll::<()>::Pending
    })));
    let waker: Waker = waker.recv().unwrap();
    drop(runtime);
    waker.wake();
    assert_eq!(relay.lock().len(), 0);
}
