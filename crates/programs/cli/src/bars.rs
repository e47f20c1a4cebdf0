//! Progress of fetches and loads.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write;
use std::time::{Duration, Instant};

use nereid_assembly::{PullProgress, RunningServer};
use nereid_core::{Server, VersionState};
use nereid_protocol::{LogControl, LogFormat};
use tokio::time::{MissedTickBehavior, interval};

use crate::screen::Screen;

/// The characters of a bar.
const WIDTH: usize = 30;

/// The most bars at a time.
const MOST: usize = 4;

/// Interval between two updates of the bars.
const INTERVAL: Duration = Duration::from_millis(200);

/// Shows the progress of a server's fetches and loads at the bottom of a terminal, until it is dropped. Machine-readable log formats
/// and logs without level info show no bars.
pub(crate) async fn show_progress(running: &RunningServer, screen: &Screen, log: &LogControl) -> Infallible {
    let _cleared = Cleared(screen);
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut began = BTreeMap::new();
    let mut loads = Loads::default();
    loop {
        ticks.tick().await;
        let settings = log.settings();
        let is_wanted = settings.info && settings.format != LogFormat::Json;
        let mut shown = || {
            let mut shown = bars(running, &mut began);
            shown.extend(loads.lines(running.server()));
            shown
        };
        screen.show(if is_wanted { shown() } else { Vec::new() });
    }
}

/// The versions that are being loaded, and since when.
#[derive(Default)]
struct Loads {
    /// The state of the model table when `began` was updated.
    generation: Option<u64>,
    began: BTreeMap<String, Instant>,
}

impl Loads {
    /// A line for each load, the longest first. Loads that ended at once have none.
    fn lines(&mut self, server: &Server) -> Vec<String> {
        let generation = Some(server.changes().generation());
        if self.generation != generation {
            self.generation = generation;
            let models = server.models();
            let loading = models.index().filter(|model| matches!(model.state, VersionState::Loading { .. }));
            let names = loading.map(|model| match model.version {
                Some(version) => format!("'{}' version {version}", model.id),
                None => format!("'{}'", model.id),
            });
            let mut before = std::mem::take(&mut self.began);
            self.began = names
                .map(|name| (before.remove(&name).unwrap_or_else(Instant::now), name))
                .map(|(at, name)| (name, at))
                .collect();
        }
        let loads = self.began.iter().map(|(name, began)| (name.as_str(), began.elapsed()));
        load_lines(loads.collect())
    }
}

/// The lines of loads that last for at least a second.
fn load_lines(mut loads: Vec<(&str, Duration)>) -> Vec<String> {
    loads.retain(|(_, elapsed)| *elapsed >= Duration::from_secs(1));
    loads.sort_by_key(|(_, elapsed)| std::cmp::Reverse(*elapsed));
    let line = |(name, elapsed): &(&str, Duration)| {
        let name = name.replace(char::is_control, "?");
        format!("loading {name}: {} s", elapsed.as_secs())
    };
    let shown = if loads.len() > MOST { MOST - 1 } else { loads.len() };
    let mut lines: Vec<_> = loads.iter().take(shown).map(line).collect();
    if loads.len() > shown {
        lines.push(format!("and {} other loads", loads.len() - shown));
    }
    lines
}

/// Removes the bars at the end.
struct Cleared<'a, W: Write>(&'a Screen<W>);

impl<W: Write> Drop for Cleared<'_, W> {
    fn drop(&mut self) {
        self.0.show(Vec::new());
    }
}

/// The bars of a server's models, or else of the archives whose models are not known yet. `began` has when the fetches of
/// archives did.
fn bars(running: &RunningServer, began: &mut BTreeMap<String, Instant>) -> Vec<String> {
    let archives = running.remote_repositories().into_iter();
    let archives = archives.filter_map(|repository| Some((repository.location, repository.fetching?)));
    let archives: Vec<_> = archives.collect();
    began.retain(|location, _| archives.iter().any(|(archive, _)| archive == location));
    let archives: Vec<_> = archives
        .into_iter()
        .map(|(location, (fetched, total))| {
            let elapsed = began.entry(location.clone()).or_insert_with(Instant::now).elapsed();
            (location, fetched, total, elapsed)
        })
        .collect();
    let models = running.server().fetches().into_iter();
    let models: Vec<_> =
        models.map(|status| (status.id.to_string(), status.fetched, status.total, status.elapsed)).collect();
    // While a model waits for its archive, it is as far as that.
    let fetches = if models.iter().any(|(_, _, total, _)| *total > 0) { models } else { archives };
    lines(fetches.iter().map(|(name, fetched, total, elapsed)| PullProgress {
        model: name,
        fetched: *fetched,
        total: *total,
        elapsed: *elapsed,
    }))
}

/// The bars of some fetches, except those without any known progress.
fn lines<'a>(fetches: impl Iterator<Item = PullProgress<'a>>) -> Vec<String> {
    let mut lines: Vec<_> = fetches.filter(|fetch| fetch.total > 0).map(line).collect();
    if lines.len() > MOST {
        let others = lines.split_off(MOST - 1).len();
        lines.push(format!("and {others} others"));
    }
    lines
}

/// The progress of a fetch, on one line.
pub(crate) fn line(progress: PullProgress<'_>) -> String {
    let PullProgress { model, fetched, total, elapsed } = progress;
    let share = u128::from(fetched) * WIDTH as u128 / u128::from(total.max(1));
    let filled = usize::try_from(share).unwrap_or(WIDTH).min(WIDTH);
    let rate = u128::from(fetched) * 1000 / elapsed.as_millis().max(1);
    let left = u128::from(total.saturating_sub(fetched)).checked_div(rate);
    let left = left.map_or_else(String::new, |seconds| format!(", {seconds} s left"));
    // Names come from elsewhere, and terminals obey what is in them.
    let name = model.replace(char::is_control, "?");
    format!(
        "{name} [{}{}] {} of {} MB, {} MB/s{left}",
        "#".repeat(filled),
        " ".repeat(WIDTH - filled),
        fetched / 1_000_000,
        total / 1_000_000,
        rate / 1_000_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_the_progress_of_a_model() {
        let bar = |filled: usize| format!("[{}{}]", "#".repeat(filled), " ".repeat(30 - filled));
        for (model, fetched, total, seconds, filled, rest) in [
            ("m", 0, 0, 0, 0, "0 of 0 MB, 0 MB/s"),
            ("m", 0, 9_000_000, 1, 0, "0 of 9 MB, 0 MB/s"),
            ("m", 3_000_000, 9_000_000, 1, 10, "3 of 9 MB, 3 MB/s, 2 s left"),
            ("ä b", 9_000_000, 9_000_000, 3, 30, "9 of 9 MB, 3 MB/s, 0 s left"),
            // More than the expected total.
            ("m?[2J?", 9_000_000, 3_000_000, 3, 30, "9 of 3 MB, 3 MB/s, 0 s left"),
        ] {
            let name = model.replace("?[2J?", "\x1b[2J\n");
            let progress =
                PullProgress { model: &name, fetched, total, elapsed: Duration::from_secs(seconds) };
            assert_eq!(line(progress), format!("{model} {} {rest}", bar(filled)));
        }
    }

    #[test]
    fn long_loads_are_shown_the_longest_first() {
        let seconds = Duration::from_secs;
        for (loads, expected) in [
            (&[][..], &[][..]),
            (&[("'a' version 1", 0)], &[]),
            (&[("'a'", 1), ("'b\x1b[2J'", 3)], &["loading 'b?[2J': 3 s", "loading 'a': 1 s"]),
            (
                &[("'a'", 4), ("'b'", 3), ("'c'", 2), ("'d'", 1)],
                &["loading 'a': 4 s", "loading 'b': 3 s", "loading 'c': 2 s", "loading 'd': 1 s"],
            ),
            (
                &[("'a'", 5), ("'b'", 4), ("'c'", 3), ("'d'", 2), ("'e'", 1), ("'f'", 0)],
                &["loading 'a': 5 s", "loading 'b': 4 s", "loading 'c': 3 s", "and 2 other loads"],
            ),
        ] {
            let loads = loads.iter().map(|(name, elapsed)| (*name, seconds(*elapsed))).collect();
            assert_eq!(load_lines(loads), expected);
        }
    }

    #[test]
    fn long_fetches_with_known_progress_are_shown() {
        let shown = |totals: &[u64]| {
            let fetch =
                |total: &u64| PullProgress { model: "m", fetched: 0, total: *total, elapsed: Duration::ZERO };
            let lines = lines(totals.iter().map(fetch));
            let bars = lines.iter().filter(|line| line.starts_with("m [")).count();
            (bars, lines.last().filter(|line| line.starts_with("and")).cloned())
        };
        for (totals, bars, others) in [
            (&[][..], 0, None),
            (&[0, 0], 0, None),
            (&[5, 0, 7], 2, None),
            (&[1, 1, 1, 0, 1], 4, None),
            (&[1; 5], 3, Some("and 2 others")),
            (&[1; 16], 3, Some("and 13 others")),
        ] {
            assert_eq!(shown(totals), (bars, others.map(str::to_owned)), "{totals:?}");
        }
    }
}
