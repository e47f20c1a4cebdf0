//! `nereid pull`: downloads models into a folder, with a progress bar on a terminal.

use std::io::{IsTerminal, Write, stderr};
use std::process::ExitCode;

use nereid_assembly::{CloudOptions, PullProgress, pull};

use crate::options::PullOptions;

/// The characters of a bar.
const WIDTH: usize = 30;

/// Prints the downloaded models.
pub(crate) fn run(options: &PullOptions) -> ExitCode {
    let is_terminal = stderr().is_terminal();
    let report = |progress: PullProgress<'_>| {
        // Nothing is known yet, or the model came with its archive.
        if is_terminal && progress.total > 0 {
            // A closed terminal is not a failure.
            let _ = write!(stderr(), "\r\x1b[K{}", line(progress));
        }
    };
    let outcome = pull(&options.address, &options.folder, CloudOptions::default(), &report);
    if is_terminal {
        let _ = writeln!(stderr());
    }
    match outcome {
        Ok(models) => {
            for model in models {
                // The reader may close the pipe early, as `head` does.
                let _ = writeln!(std::io::stdout(), "{}", options.folder.join(model).display());
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nereid pull: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The progress of a model, on one line.
fn line(progress: PullProgress<'_>) -> String {
    let PullProgress { model, fetched, total, elapsed } = progress;
    let share = u128::from(fetched) * WIDTH as u128 / u128::from(total.max(1));
    let filled = usize::try_from(share).unwrap_or(WIDTH).min(WIDTH);
    let rate = u128::from(fetched) * 1000 / elapsed.as_millis().max(1);
    let left = u128::from(total.saturating_sub(fetched)).checked_div(rate);
    let left = left.map_or_else(String::new, |seconds| format!(", {seconds} s left"));
    format!(
        "{model} [{}{}] {} of {} MB, {} MB/s{left}",
        "#".repeat(filled),
        " ".repeat(WIDTH - filled),
        fetched / 1_000_000,
        total / 1_000_000,
        rate / 1_000_000
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_bar_shows_how_far_a_model_is() {
        let bar = |filled: usize| format!("[{}{}]", "#".repeat(filled), " ".repeat(30 - filled));
        for (fetched, total, seconds, filled, rest) in [
            (0, 0, 0, 0, "0 of 0 MB, 0 MB/s"),
            (0, 9_000_000, 1, 0, "0 of 9 MB, 0 MB/s"),
            (3_000_000, 9_000_000, 1, 10, "3 of 9 MB, 3 MB/s, 2 s left"),
            (9_000_000, 9_000_000, 3, 30, "9 of 9 MB, 3 MB/s, 0 s left"),
            // More than the expected total.
            (9_000_000, 3_000_000, 3, 30, "9 of 3 MB, 3 MB/s, 0 s left"),
        ] {
            let progress = PullProgress { model: "m", fetched, total, elapsed: Duration::from_secs(seconds) };
            assert_eq!(line(progress), format!("m {} {rest}", bar(filled)));
        }
    }
}
