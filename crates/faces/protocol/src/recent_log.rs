//! The last lines of the log, kept in memory for clients that show them.
//!
//! The log subscriber adds lines; requests that log nothing pay nothing.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The number of lines kept.
const MAX_LINES: usize = 1000;
/// Bytes of a line's message. The rest of a longer one is cut off.
const MAX_MESSAGE: usize = 2000;

/// The severity of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    /// An error.
    Error,
    /// A warning.
    Warning,
    /// Information.
    Info,
    /// Verbose.
    Verbose,
}

impl LogLevel {
    /// The level's name, as in log lines in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Verbose => "verbose",
        }
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The number, from 1 on.
    pub number: u64,
    /// Milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The severity.
    pub level: LogLevel,
    /// File and line in the source.
    pub place: String,
    /// The message.
    pub message: String,
}

/// The last lines of the log: at most 1,000, with messages of 2,000 bytes each.
#[derive(Default)]
pub struct RecentLog(Mutex<Lines>);

#[derive(Default)]
struct Lines {
    count: u64,
    lines: VecDeque<LogLine>,
}

impl RecentLog {
    /// Adds a line.
    pub fn add(&self, time_ms: u64, level: LogLevel, place: String, mut message: String) {
        if message.len() > MAX_MESSAGE {
            let end = (0..=MAX_MESSAGE).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
            message.truncate(end);
            message.push('…');
            message.shrink_to_fit();
        }
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.count += 1;
        if lines.lines.len() == MAX_LINES {
            lines.lines.pop_front();
        }
        let number = lines.count;
        lines.lines.push_back(LogLine { number, time_ms, level, place, message });
    }

    /// The lines with greater numbers, oldest first. All lines if the number is none of this log's.
    pub fn after(&self, number: u64) -> Vec<LogLine> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = if number > lines.count { 0 } else { number };
        lines.lines.iter().filter(|line| line.number > number).cloned().collect()
    }
}

impl fmt::Debug for RecentLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecentLog").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(count: u64) -> RecentLog {
        let log = RecentLog::default();
        (1..=count).for_each(|line| log.add(line, LogLevel::Info, "a.rs:1".into(), line.to_string()));
        log
    }

    #[test]
    fn last_lines_are_kept_and_found_by_number() {
        for (count, after, first, found) in [
            (0, 0, None, 0),
            (3, 0, Some(1), 3),
            (3, 2, Some(3), 1),
            (3, 3, None, 0),
            (1000, 0, Some(1), 1000),
            (1500, 0, Some(501), 1000),
            (1500, 1400, Some(1401), 100),
            // The number of a log before a restart.
            (3, 1400, Some(1), 3),
        ] {
            let lines = log(count).after(after);
            assert_eq!(
                (lines.first().map(|line| line.number), lines.len()),
                (first, found),
                "{count} {after}"
            );
            assert!(lines.iter().all(|line| line.message == line.number.to_string()));
        }
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        for (text, kept) in [
            ("a".repeat(2000), 2000),
            ("a".repeat(2001), 2000),
            ("é".repeat(1001), 2000),
            ("€".repeat(700), 1998),
        ] {
            let log = RecentLog::default();
            log.add(0, LogLevel::Error, String::new(), text.clone());
            let message = &log.after(0)[0].message;
            assert_eq!(message.trim_end_matches('…').len(), kept, "{}", text.len());
            assert_eq!(message.ends_with('…'), text.len() > MAX_MESSAGE);
        }
    }
}
