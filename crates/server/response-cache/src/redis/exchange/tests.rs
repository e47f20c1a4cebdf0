//! The exchange over a pipe, on a paused clock, with the other side played by the test.

use std::time::Duration;

use nereid_core::backend_api::{DataType, Response, Tensor};
use tokio::io::{DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::advance;

use super::*;
use crate::conformance::{entry, key};
use crate::settings::CacheSettings;

const LIMIT: Duration = Duration::from_millis(100);

struct World {
    commands: mpsc::Sender<Command>,
    redis: DuplexStream,
    running: JoinHandle<ExchangeEnd>,
}

fn settings(more: &[(&str, &str)]) -> RedisSettings {
    let given = [("host", "h"), ("port", "1")];
    let all = given.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    RedisSettings::read(&mut all.collect::<CacheSettings>()).unwrap()
}

fn world(more: &[(&str, &str)]) -> World {
    let (commands, mut received) = mpsc::channel(16);
    let (ours, redis) = duplex(1 << 20);
    let settings = settings(more);
    let running = tokio::spawn(async move { exchange(ours, &mut received, &settings).await });
    World { commands, redis, running }
}

impl World {
    async fn get(&self, number: u64) -> oneshot::Receiver<Option<CacheEntry>> {
        let (reply, found) = oneshot::channel();
        let command = Command::Get { key: key(1, number), reply, deadline: Instant::now() + LIMIT };
        self.commands.send(command).await.ok().unwrap();
        found
    }

    async fn read(&mut self, text: &str) {
        let mut found = vec![0; text.len()];
        self.redis.read_exact(&mut found).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&found), text);
    }

    async fn write(&mut self, bytes: &[u8]) {
        self.redis.write_all(bytes).await.unwrap();
    }

    async fn failure(self) -> String {
        match self.running.await.unwrap() {
            ExchangeEnd::Failed(why) => why,
            ExchangeEnd::Unwanted => panic!("it ended as nobody sends"),
        }
    }
}

fn get(number: u64) -> String {
    format!("*2\r\n$3\r\nGET\r\n$80\r\n{}\r\n", name(&key(1, number)))
}

fn value(number: u64, entry: &CacheEntry) -> Vec<u8> {
    let value = encode_entry(&key(1, number), entry);
    [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat()
}

#[tokio::test(start_paused = true)]
async fn replies_go_to_their_commands_in_order() {
    let mut world = world(&[]);
    let (first, second, third) = (world.get(1).await, world.get(2).await, world.get(3).await);
    world.read(&[get(1), get(2), get(3)].concat()).await;
    world.write(b"$-1\r\n").await;
    world.write(&value(2, &entry(7, 3))).await;
    // A value of another type is a miss, and not a reason to close the connection.
    world.write(b"-WRONGTYPE Operation against a key\r\n").await;
    assert!(first.await.unwrap().is_none());
    assert_eq!(second.await.unwrap().unwrap().response().outputs[0].byte_size(), 3);
    assert!(third.await.unwrap().is_none());
    drop(world.commands);
    assert!(matches!(world.running.await.unwrap(), ExchangeEnd::Unwanted));
}

#[tokio::test(start_paused = true)]
async fn values_that_are_not_ours_are_misses() {
    let mut cut = value(1, &entry(7, 30));
    cut.truncate(cut.len() - 9);
    let cut = [format!("${}\r\n", cut.len() - 6).as_bytes(), &cut[6..], b"\r\n"].concat();
    let mut foreign = Vec::new();
    let text = Tensor::new("Y", DataType::Bytes, [1], vec![1, 0, 0, 0, 65]);
    let other = CacheEntry::of(&Response::new(vec![text])).unwrap();
    foreign.extend_from_slice(b"$5\r\nhello\r\n");
    for poison in [foreign, value(2, &other), cut, b"$0\r\n\r\n".to_vec()] {
        let mut world = world(&[]);
        let found = world.get(1).await;
        world.read(&get(1)).await;
        world.write(&poison).await;
        assert!(found.await.unwrap().is_none(), "{}", String::from_utf8_lossy(&poison));
        // The connection stays usable.
        let found = world.get(1).await;
        world.read(&get(1)).await;
        world.write(&value(1, &entry(7, 3))).await;
        assert!(found.await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn silent_server_is_given_up_at_the_timeout() {
    let mut world = world(&[]);
    let begin = Instant::now();
    let (first, second) = (world.get(1).await, world.get(2).await);
    world.read(&[get(1), get(2)].concat()).await;
    let why = world.failure().await;
    assert_eq!(begin.elapsed().as_millis() / 10 * 10, 100);
    assert!(why.contains("no answer within 100 ms"), "{why}");
    assert!(first.await.is_err() && second.await.is_err());
}

#[tokio::test(start_paused = true)]
async fn slow_server_is_given_up_after_repeated_timeouts() {
    let mut world = world(&[]);
    for late in 1..=MAX_LATE as u64 {
        let found = world.get(late).await;
        world.read(&get(late)).await;
        // Bytes keep arriving from a busy server.
        advance(Duration::from_millis(60)).await;
        world.write(if late == 1 { b"$5\r" } else { b"\r\n$5\r" }).await;
        tokio::task::yield_now().await;
        advance(Duration::from_millis(41)).await;
        assert!(found.await.is_err(), "{late}");
        if late < MAX_LATE as u64 {
            world.write(b"\nhello").await;
            tokio::task::yield_now().await;
        }
    }
    assert!(world.failure().await.contains("no answer"));
}

#[tokio::test(start_paused = true)]
async fn other_protocols_are_given_up() {
    for foreign in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b"+OK\r\n+OK\r\n", b"*1\r\n"] {
        let mut world = world(&[]);
        let found = world.get(1).await;
        world.read(&get(1)).await;
        world.write(foreign).await;
        world.failure().await;
        assert!(!matches!(found.await, Ok(Some(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn unsent_bytes_are_counted_until_stored() {
    for (more, tail) in [(&[][..], ""), (&[("ttl", "7")][..], "$2\r\nPX\r\n$4\r\n7000\r\n")] {
        let mut world = world(more);
        let unsent = Arc::<AtomicUsize>::default();
        let share = Share::take(&unsent, 1000, 1500).unwrap();
        assert!(
            Share::take(&unsent, 501, 1500).is_none() && Share::take(&unsent, usize::MAX, 1500).is_none()
        );
        world.commands.send(Command::Set { key: key(1, 1), entry: entry(5, 10), share }).await.ok().unwrap();
        let stored = encode_entry(&key(1, 1), &entry(5, 10));
        let count = if tail.is_empty() { 3 } else { 5 };
        world
            .read(&format!("*{count}\r\n$3\r\nSET\r\n$80\r\n{}\r\n${}\r\n", name(&key(1, 1)), stored.len()))
            .await;
        let mut found = vec![0; stored.len() + 2];
        world.redis.read_exact(&mut found).await.unwrap();
        assert_eq!(found[..stored.len()], stored);
        world.read(tail).await;
        assert_eq!(unsent.load(Relaxed), 1000);
        world.write(b"+OK\r\n").await;
        // The reply to the next lookup shows that the entry has been read.
        let next = world.get(2).await;
        world.read(&get(2)).await;
        world.write(b"$-1\r\n").await;
        assert!(next.await.unwrap().is_none());
        assert_eq!(unsent.load(Relaxed), 0);
    }
}
