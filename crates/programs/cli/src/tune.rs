//! `nereid tune`: finds settings of a model, and shows how far it is.

use std::cell::Cell;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use nereid_options::TuneOptions;
use nereid_terminal::single_line;
use nereid_tune::report;
use nereid_tune::search::Progress;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::hosting;
use crate::screen::Screen;

/// The characters of the bar.
const WIDTH: usize = 30;
/// The interval of the countdown.
const SECOND: Duration = Duration::from_secs(1);

/// Prints the best settings. Fails if no request to the model is answered.
pub(crate) fn run(options: &TuneOptions) -> ExitCode {
    match tune(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("nereid tune: {}", single_line(&reason));
            ExitCode::FAILURE
        }
    }
}

fn tune(options: &TuneOptions) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let tune = options.tune(hosting::PROGRAM.into());
    let screen = Screen::of_errors();
    let show = |lines| {
        if let Some(screen) = &screen {
            screen.show(lines);
        }
    };
    let started = |count: usize, inputs: &str| {
        eprintln!(
            "{}: {count} candidates, {} clients, within {} s; inputs: {inputs}",
            single_line(&tune.model.name),
            tune.clients,
            tune.budget.as_secs()
        );
    };
    let last = Cell::new(None);
    let progress = |progress: Progress| {
        last.set(Some((progress, Instant::now())));
        show(vec![line(&progress)]);
    };
    // Measurements may take many seconds.
    let count_down = async {
        loop {
            sleep(SECOND).await;
            if let Some((progress, at)) = last.get() {
                show(vec![line(&Progress { left: progress.left.saturating_sub(at.elapsed()), ..progress })]);
            }
        }
    };
    let outcome = runtime.block_on(async {
        // The servers end with the search.
        tokio::select! {
            outcome = tune.run(started, progress) => outcome,
            never = count_down => match never {},
            reason = interrupted() => Err(reason),
        }
    });
    show(Vec::new());
    let outcome = outcome?;
    let (path, page) = (options.report(), report::page(&tune, &outcome));
    fs::write(&path, page).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    println!("\n{}\n{}\n\nPictures: {}", report::table(&outcome), report::gain(&outcome), path.display());
    if let Some(text) = report::untried(&outcome) {
        println!("{text}");
    }
    if options.is_written() {
        let written = tune.model.write(&outcome.config)?;
        println!("Written: {}", written.display());
    } else {
        println!("\n{}", outcome.config.trim_end());
    }
    for option in outcome.advised.needed_options() {
        println!("\nThe server needs the option {option}");
    }
    Ok(())
}

/// Waits for a signal to end.
async fn interrupted() -> String {
    let signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = signals else {
        return "cannot listen to signals".into();
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    "interrupted".into()
}

/// How far the search is, on one line.
fn line(progress: &Progress) -> String {
    let filled = (progress.done * WIDTH).checked_div(progress.all).unwrap_or(WIDTH).min(WIDTH);
    let best =
        progress.best.map(|best| format!(", best {:.0} requests/s, p99 {:.2} ms", best.rate, best.p99));
    format!(
        "[{}{}] {} of {}, {} s left{}",
        "#".repeat(filled),
        " ".repeat(WIDTH - filled),
        progress.done,
        progress.all,
        progress.left.as_secs(),
        best.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nereid_tune::search::Measurement;

    use super::*;

    #[test]
    fn a_line_shows_how_far_the_search_is() {
        let best = Measurement { rate: 1234.5, median: 1.0, p99: 2.5, cpu: 0.1, memory: 1 };
        for (done, all, best, filled, rest) in [
            (0, 0, None, 30, "0 of 0, 7 s left"),
            (1, 3, None, 10, "1 of 3, 7 s left"),
            (3, 3, Some(best), 30, "3 of 3, 7 s left, best 1234 requests/s, p99 2.50 ms"),
        ] {
            let found = line(&Progress { done, all, left: Duration::from_secs(7), best });
            assert_eq!(found, format!("[{}{}] {rest}", "#".repeat(filled), " ".repeat(30 - filled)));
        }
    }
}
