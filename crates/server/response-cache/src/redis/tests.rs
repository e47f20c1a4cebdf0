//! The start of the cache, with Redis played by the test on a socket.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;

use super::*;
use crate::settings::CacheSettings;

/// Makes a cache with these settings whose server answers the commands of each connection with `replies`, and closes the
/// connection after the last one.
fn start(replies: &'static [&str], more: &[(&str, &str)]) -> std::result::Result<RedisCache, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for reply in replies {
                // A command of `*N` parts takes a line for N, and two for each part.
                let Some(Ok(head)) = lines.next() else { break };
                let parts: usize = head.trim_start_matches('*').parse().unwrap();
                lines.by_ref().take(2 * parts).for_each(drop);
                // The client may have closed the connection.
                let _ = write!(stream, "{reply}\r\n");
            }
        }
    });
    let given = [("host", "127.0.0.1"), ("port", &*port)];
    let all = given.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    RedisCache::new(RedisSettings::read(&mut all.collect::<CacheSettings>()).unwrap())
}

const PASSWORD: (&str, &str) = ("password", "secret");

#[test]
fn settings_that_redis_refuses_are_refused() {
    type Case = (&'static [&'static str], &'static [(&'static str, &'static str)]);
    let cases: [Case; 10] = [
        (&["-WRONGPASS invalid username-password pair or user is disabled."], &[PASSWORD]),
        (&["-WRONGPASS invalid username-password pair or user is disabled."], &[("user", "u"), PASSWORD]),
        (&["-ERR invalid password"], &[PASSWORD, ("pool_size", "3")]),
        (&["-ERR AUTH <password> called without any password configured for the default user."], &[PASSWORD]),
        (&["-ERR Client sent AUTH, but no password is set"], &[PASSWORD]),
        (&["-ERR wrong number of arguments for 'auth' command"], &[("user", "u"), PASSWORD]),
        (&["-NOAUTH Authentication required."], &[]),
        (&["-NOAUTH Authentication required."], &[("db", "1")]),
        (&["+OK", "-ERR DB index is out of range"], &[PASSWORD, ("db", "99")]),
        (&["+OK", "-NOPERM this user has no permissions to run the 'ping' command"], &[PASSWORD]),
    ];
    for (replies, settings) in cases {
        let error = start(replies, settings).err().expect(replies[0]);
        let refusal = replies.last().unwrap().trim_start_matches('-');
        assert!(error.contains("refuses its settings") && error.contains(refusal), "{replies:?}: {error}");
    }
}

#[test]
fn redis_that_may_recover_does_not_hold_up_the_start() {
    let cases: [&[&str]; 7] = [
        &["+OK", "+OK", "+PONG"],
        &["-LOADING Redis is loading the dataset in memory"],
        &["-ERR max number of clients reached"],
        &["+OK", "-BUSY Redis is busy running a script."],
        &["+OK", "+OK", "-MASTERDOWN Link with MASTER is down"],
        &["HTTP/1.1 400 Bad Request"],
        // Closes each connection at once.
        &[],
    ];
    for replies in cases {
        for more in [&[PASSWORD, ("db", "1")][..], &[PASSWORD, ("db", "2"), ("pool_size", "2")]] {
            assert!(start(replies, more).is_ok(), "{replies:?}, {more:?}");
        }
    }
    // Nobody listens there.
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port().to_string();
    let place =
        [("host", "127.0.0.1"), ("port", &*free)].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let settings = RedisSettings::read(&mut place.into_iter().collect()).unwrap();
    assert_eq!(RedisCache::new(settings).unwrap().is_available(), Some(false));
}
