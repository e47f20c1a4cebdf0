//! Ending connections that their clients do not close, because they have vanished or stopped in the middle of a
//! message.

use tokio::time::sleep;

use crate::slow_clients::LEAVING;

/// Completes once the server has waited for the same input of the client for one to two times [`LEAVING`]. `awaited`
/// returns that input if the server waits for nothing else.
pub async fn client_stalled<T: PartialEq>(awaited: impl Fn() -> Option<T>) {
    let mut before = awaited();
    loop {
        sleep(LEAVING).await;
        let now = awaited();
        if now.is_some() && now == before {
            return;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::runtime::Builder;
    use tokio::time::Instant;

    use super::*;

    proptest! {
        #[test]
        fn client_has_stalled_once_the_same_input_is_awaited_for_long(
            changes in prop::collection::vec((100..9000_u64, prop::option::of(0..3_u8)), 0..20)
        ) {
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let start = Instant::now();
                // The awaited input by start time, in milliseconds. The last one never changes.
                let mut times = vec![(0, None)];
                for (pause, awaited) in changes {
                    times.push((times.last().unwrap().0 + pause, awaited));
                }
                times.push((times.last().unwrap().0 + 1, Some(9)));
                let now = || start.elapsed().as_millis() as u64;
                let at = |time: u64| times.iter().rfind(|(from, _)| *from <= time).unwrap().1;
                client_stalled(|| at(now())).await;
                let end = now();
                let limit = LEAVING.as_millis() as u64;
                prop_assert!(at(end).is_some() && at(end) == at(end - limit));
                // The first time that what is awaited stayed the same for twice the limit.
                let whole = times.windows(2).find(|it| it[0].1.is_some() && it[1].0 - it[0].0 >= 2 * limit);
                let latest = whole.unwrap_or(&times[times.len() - 1..])[0].0 + 2 * limit;
                prop_assert!(end <= latest, "{end} > {latest}");
                Ok(())
            })?;
        }
    }
}
