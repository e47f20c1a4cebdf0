//! Wake-ups from other threads: none is lost, none waits for a busy thread, and each wakes one thread. Tasks that wake
//! themselves wake none.

use std::future::poll_fn;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::mpsc;
use std::thread;

use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::*;

/// A runtime with its relay.
fn runtime(threads: usize) -> (Runtime, Arc<Relay>) {
    crate::io_runtime::start_with_relay(threads, Role::Shared).unwrap()
}

/// Waits until all I/O threads are parked.
fn settle(relay: &Relay) {
    while relay.parked.load(SeqCst) < relay.threads {
        thread::yield_now();
    }
}

#[test]
fn concurrent_wake_ups_are_all_delivered() {
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
fn answer_is_not_delayed_by_a_busy_thread() {
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
fn wake_up_after_runtime_shutdown_is_harmless() {
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

/// Wakes itself `times` times before it is ready.
fn wakes_itself(mut times: usize) -> impl Future<Output = ()> {
    poll_fn(move |context| {
        if times == 0 {
            return Poll::Ready(());
        }
        times -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

#[test]
fn self_waking_task_completes() {
    let (runtime, _) = runtime(2);
    for times in 0..40 {
        runtime.block_on(runtime.spawn(relayed(wakes_itself(times)))).unwrap();
        // Of two that are polled as one task, both wake that one.
        runtime.block_on(runtime.spawn(relayed(relayed(wakes_itself(times))))).unwrap();
        // Also without a relay.
        runtime.block_on(relayed(wakes_itself(times)));
    }
}

#[test]
fn answer_to_a_self_waking_task_unparks_one_thread() {
    const ROUNDS: usize = 200;
    for times in 0..POLLS {
        let (runtime, relay) = runtime(4);
        let (question, mut questions) = tokio::sync::mpsc::channel(1);
        let (answer, answers) = mpsc::channel();
        runtime.spawn(relayed(async move {
            while questions.recv().await.is_some() {
                wakes_itself(times).await;
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
}

#[test]
fn endlessly_self_waking_task_does_not_starve_others() {
    let (runtime, _) = runtime(1);
    let ended = Arc::new(AtomicUsize::new(0));
    let sees = Arc::clone(&ended);
    let first = runtime.spawn(relayed(poll_fn(move |context| {
        context.waker().wake_by_ref();
        if sees.load(SeqCst) == 0 { Poll::Pending } else { Poll::Ready(()) }
    })));
    let second = runtime.spawn(relayed(async move { ended.store(1, SeqCst) }));
    runtime.block_on(second).unwrap();
    runtime.block_on(first).unwrap();
}

#[test]
fn one_task_wakes_another_while_it_is_polled() {
    let (runtime, _) = runtime(2);
    for round in 0..200 {
        let (sender, receiver) = oneshot::channel();
        let woken = runtime.spawn(relayed(receiver));
        runtime.spawn(relayed(async move {
            wakes_itself(round % 10).await;
            sender.send(round).unwrap();
        }));
        assert_eq!(runtime.block_on(woken).unwrap(), Ok(round));
    }
}

/// Reads the request's body, and answers with its length.
async fn measure(mut request: Request<Incoming>) -> Result<Response<String>, hyper::Error> {
    let mut length = 0;
    while let Some(frame) = poll_fn(|context| Pin::new(request.body_mut()).poll_frame(context)).await {
        length += frame?.data_ref().map_or(0, |data| data.len());
    }
    Ok(Response::new(format!("<{length}>")))
}

/// hyper's connection wakes itself with each body that it reads.
#[test]
fn a_request_with_a_body_wakes_one_thread() {
    const ROUNDS: usize = 200;
    for length in [0, 1, 64, 4000] {
        let (runtime, relay) = runtime(4);
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        runtime.spawn(relayed(async move {
            let (stream, _) = listener.accept().await.unwrap();
            http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(measure)).await
        }));
        let body = "x".repeat(length);
        let request = format!("POST / HTTP/1.1\r\nHost: here\r\nContent-Length: {length}\r\n\r\n{body}");
        let mut exchange = || {
            client.write_all(request.as_bytes()).unwrap();
            let (mut answer, mut buffer) = (String::new(), [0; 1024]);
            while !answer.ends_with('>') {
                let count = client.read(&mut buffer).unwrap();
                assert_ne!(count, 0, "the connection has ended: {answer:?}");
                answer += std::str::from_utf8(&buffer[..count]).unwrap();
            }
            assert!(answer.ends_with(&format!("<{length}>")), "{answer}");
            settle(&relay);
        };
        exchange();
        let before = relay.unparks.load(SeqCst);
        (0..ROUNDS).for_each(|_| exchange());
        let unparks = relay.unparks.load(SeqCst) - before;
        let expected = ROUNDS..ROUNDS + ROUNDS / 4;
        assert!(expected.contains(&unparks), "{unparks} for {ROUNDS} requests of {length} bytes");
    }
}
