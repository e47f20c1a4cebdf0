//! Connections are spread over the lanes, stay in theirs, and are woken there, by other threads as well.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread::{self, ThreadId};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::io_runtime::start;
use crate::listener::{Address, Host, LocalAddress};

const LANES: usize = 8;

/// Spawns a connection that does nothing until it is told to end, and returns the thread it runs on.
async fn connection(connections: &TaskTracker) -> (ThreadId, oneshot::Sender<()>) {
    let (end, ended) = oneshot::channel::<()>();
    let (sender, mut receiver) = mpsc::channel(1);
    let open = async move {
        sender.send(thread::current().id()).await.unwrap();
        let _ = ended.await;
    };
    spawn_connection(connections, open, ());
    (receiver.recv().await.unwrap(), end)
}

/// How many connections each thread has.
fn by_thread(open: &[(ThreadId, oneshot::Sender<()>)]) -> Vec<usize> {
    let mut threads = BTreeMap::<String, usize>::new();
    for (thread, _) in open {
        *threads.entry(format!("{thread:?}")).or_default() += 1;
    }
    threads.into_values().collect()
}

#[test]
fn connections_are_spread_over_the_lanes_and_those_that_end_make_room() {
    let runtime = start(LANES).unwrap();
    let opened = runtime.spawn(async {
        let connections = TaskTracker::new();
        let mut open = Vec::new();
        for _ in 0..3 * LANES {
            open.push(connection(&connections).await);
        }
        assert_eq!(by_thread(&open), [3; LANES]);
        // All connections of one thread end; the next ones take their places.
        let thread = open[0].0;
        let (ending, mut staying): (Vec<_>, Vec<_>) = open.into_iter().partition(|it| it.0 == thread);
        let left = connections.len() - ending.len();
        drop(ending);
        while connections.len() > left {
            tokio::task::yield_now().await;
        }
        for _ in 0..3 {
            staying.push(connection(&connections).await);
        }
        assert_eq!(by_thread(&staying), [3; LANES]);
    });
    runtime.block_on(opened).unwrap();
}

#[test]
fn few_threads_share_all_connections() {
    for threads in 1..LANES {
        let runtime = start(threads).unwrap();
        let is_in_lane = runtime.spawn(async {
            let connections = TaskTracker::new();
            let (sender, receiver) = oneshot::channel();
            spawn_connection(&connections, async move { sender.send(is_in_lane()).unwrap() }, ());
            receiver.await.unwrap()
        });
        assert!(!runtime.block_on(is_in_lane).unwrap());
    }
}

/// Serves connections that send back twice what they receive, at any address.
fn echo(runtime: &Runtime, address: Address) -> LocalAddress {
    let _context = runtime.enter();
    let listener = address.bind().unwrap().listen(None).unwrap();
    let local = listener.local_addr().unwrap();
    runtime.spawn(async move {
        let connections = TaskTracker::new();
        loop {
            let arrival = listener.accept().await;
            let served = async move {
                let mut connection = arrival.open().await.unwrap();
                let here = thread::current().id();
                let mut byte = [0];
                while connection.read_exact(&mut byte).await.is_ok() {
                    // Another thread wakes the task in between, as an instance of a model does.
                    let (sender, receiver) = oneshot::channel();
                    thread::spawn(move || sender.send(byte[0]).unwrap());
                    let answer = receiver.await.unwrap();
                    assert_eq!(thread::current().id(), here);
                    connection.write_all(&[answer, answer]).await.unwrap();
                }
            };
            spawn_connection(&connections, served, ());
        }
    });
    local
}

fn exchange(mut stream: impl Read + Write) {
    for byte in 0..100 {
        stream.write_all(&[byte]).unwrap();
        let mut answer = [0; 2];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [byte; 2]);
    }
}

#[test]
fn sockets_of_both_kinds_are_served_by_the_thread_of_their_lane() {
    let runtime = start(LANES).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let LocalAddress::Tcp(port) = echo(&runtime, Address::tcp("127.0.0.1", 0)) else { unreachable!() };
    let file = folder.path().join("socket");
    let host: Host = format!("unix:{}", file.display()).parse().unwrap();
    echo(&runtime, host.at(0, false));
    thread::scope(|scope| {
        for _ in 0..3 * LANES {
            scope.spawn(|| exchange(TcpStream::connect(port).unwrap()));
            scope.spawn(|| exchange(UnixStream::connect(&file).unwrap()));
        }
    });
    runtime.shutdown_background();
}
