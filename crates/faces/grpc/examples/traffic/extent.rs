//! How long a load lasts.

use std::num::ParseIntError;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::rest::wait_for_rest;

/// When a load ends: after some seconds (`5`), or after a number of requests (`1000x`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Time(Duration),
    Requests(usize),
}

impl FromStr for Extent {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        Ok(match text.strip_suffix('x') {
            Some(count) => Self::Requests(count.parse()?),
            None => Self::Time(Duration::from_secs(text.parse()?)),
        })
    }
}

/// Permits requests until the load is over. Clones share the number of requests.
#[derive(Clone)]
pub struct Permits {
    left: Left,
    /// The server's process, if each request waits until it sleeps.
    server: Option<u32>,
}

#[derive(Clone)]
enum Left {
    Until(Instant),
    Requests(Arc<AtomicUsize>),
}

impl Permits {
    /// The permits of a load that starts now.
    pub fn new(extent: Extent, server: Option<u32>) -> Self {
        let left = match extent {
            Extent::Time(duration) => Left::Until(Instant::now() + duration),
            Extent::Requests(count) => Left::Requests(Arc::new(AtomicUsize::new(count))),
        };
        Self { left, server }
    }

    /// Whether one more request may be sent. Returns when it may be.
    pub async fn take(&self) -> std::io::Result<bool> {
        let permitted = match &self.left {
            Left::Until(end) => Instant::now() < *end,
            Left::Requests(count) => {
                let one_less = |left: usize| left.checked_sub(1);
                count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
            }
        };
        if let (true, Some(server)) = (permitted, self.server) {
            wait_for_rest(server).await?;
        }
        Ok(permitted)
    }
}
