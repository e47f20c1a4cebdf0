//! Paired runs: both servers in turn, one right after the other, under equal conditions.

use anyhow::{Context as _, Result};

use super::load::LoadResults;
use super::server::Server;
use super::summary::{Pair, Run};

/// Warm-up time under load before a measurement.
const WARM_UP_SECONDS: u32 = 1;

/// Puts a load on both servers in turn, `count` times for some seconds, after a run of each that does not count. `load`
/// runs against a server for some seconds.
pub fn measure(
    nereid: &Server,
    yardstick: &Server,
    count: u32,
    seconds: u32,
    load: impl Fn(&Server, u32) -> Result<LoadResults>,
) -> Result<Vec<Pair>> {
    for server in [nereid, yardstick] {
        load(server, WARM_UP_SECONDS).with_context(|| format!("warming up {}", server.name))?;
    }
    let once = |server: &Server| {
        let before = server.cpu()?;
        let results = load(server, seconds).with_context(|| format!("measuring {}", server.name))?;
        anyhow::Ok(Run { results, cpu: server.cpu()?.saturating_sub(before) })
    };
    (0..count).map(|_| Ok(Pair { nereid: once(nereid)?, yardstick: once(yardstick)? })).collect()
}
