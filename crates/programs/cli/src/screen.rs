//! A terminal with progress bars at the bottom. Log lines scroll above them.

use std::env;
use std::io::{self, IsTerminal, Stderr, Write, stderr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Without these, terminals wrap long lines, and rows could not be counted.
const CUT_LONG_LINES: &str = "\x1b[?7l";
const WRAP_LONG_LINES: &str = "\x1b[?7h";

/// A terminal. Only whole lines are written to it, above the bars.
pub(crate) struct Screen<W = Stderr> {
    state: Mutex<State<W>>,
}

struct State<W> {
    terminal: W,
    /// The bars at the bottom, with the cursor in the last one.
    bars: Vec<String>,
}

impl Screen {
    /// The terminal of standard error, if it is one that can move its cursor.
    pub(crate) fn of_errors() -> Option<Self> {
        let is_simple = env::var_os("TERM").is_some_and(|kind| kind == "dumb");
        (stderr().is_terminal() && !is_simple).then(|| Self::new(stderr()))
    }
}

impl<W: Write> Screen<W> {
    fn new(terminal: W) -> Self {
        Self { state: Mutex::new(State { terminal, bars: Vec::new() }) }
    }

    /// Replaces the bars, one per row.
    pub(crate) fn show(&self, bars: Vec<String>) {
        let mut state = self.state();
        if state.bars == bars {
            return;
        }
        let mut text = state.erasure();
        state.bars = bars;
        text.push_str(&state.drawing());
        // A closed terminal is not a failure.
        let _ = state.terminal.write_all(text.as_bytes());
        let _ = state.terminal.flush();
    }

    fn state(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<W> State<W> {
    /// Removes the bars, and leaves the cursor where the first one was.
    fn erasure(&self) -> String {
        match self.bars.len() {
            0 => String::new(),
            1 => "\r\x1b[J".to_owned(),
            rows => format!("\r\x1b[{}A\x1b[J", rows - 1),
        }
    }

    fn drawing(&self) -> String {
        match self.bars.as_slice() {
            [] => String::new(),
            bars => format!("{CUT_LONG_LINES}{}{WRAP_LONG_LINES}", bars.join("\r\n")),
        }
    }
}

impl<W: Write> Write for &Screen<W> {
    fn write(&mut self, lines: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        if state.bars.is_empty() {
            return state.terminal.write(lines);
        }
        let text = [state.erasure().as_bytes(), lines, state.drawing().as_bytes()].concat();
        state.terminal.write_all(&text)?;
        Ok(lines.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.state().terminal.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A terminal of some width: the rows shown, from the first.
    struct Shown {
        width: usize,
        rows: Vec<Vec<char>>,
        at: (usize, usize),
        wraps: bool,
    }

    impl Shown {
        fn after(width: usize, text: &[u8]) -> Self {
            let mut shown = Self { width, rows: vec![Vec::new()], at: (0, 0), wraps: true };
            let text = String::from_utf8(text.to_vec()).unwrap();
            let mut rest = text.chars();
            while let Some(next) = rest.next() {
                match next {
                    '\r' => shown.at.1 = 0,
                    // In a terminal's default mode, a newline also returns to the first column.
                    '\n' => shown.begin_row(),
                    '\x1b' => {
                        assert_eq!(rest.next(), Some('['));
                        let mut command = String::new();
                        while !command.ends_with(|last: char| last.is_ascii_alphabetic()) {
                            command.extend(rest.next());
                        }
                        shown.obey(&command);
                    }
                    next => shown.put(next),
                }
            }
            shown
        }

        fn begin_row(&mut self) {
            self.at = (self.at.0 + 1, 0);
            if self.at.0 == self.rows.len() {
                self.rows.push(Vec::new());
            }
        }

        fn put(&mut self, next: char) {
            if self.at.1 == self.width {
                match self.wraps {
                    true => self.begin_row(),
                    false => self.at.1 -= 1,
                }
            }
            let row = &mut self.rows[self.at.0];
            match row.get_mut(self.at.1) {
                Some(place) => *place = next,
                None => row.push(next),
            }
            self.at.1 += 1;
        }

        fn obey(&mut self, command: &str) {
            match command {
                "J" => {
                    self.rows.truncate(self.at.0 + 1);
                    self.rows[self.at.0].truncate(self.at.1);
                }
                "?7l" => self.wraps = false,
                "?7h" => self.wraps = true,
                up => self.at.0 -= up.strip_suffix('A').unwrap().parse::<usize>().unwrap(),
            }
        }

        fn lines(&self) -> Vec<String> {
            self.rows.iter().map(|row| row.iter().collect()).collect()
        }
    }

    /// The rows of whole lines on a terminal that wraps them.
    fn wrapped(line: &str, width: usize) -> Vec<String> {
        let letters: Vec<char> = line.chars().collect();
        match letters.is_empty() {
            true => vec![String::new()],
            false => letters.chunks(width).map(|row| row.iter().collect()).collect(),
        }
    }

    proptest! {
        /// Log lines and bars, in any order.
        #[test]
        fn log_lines_stay_whole_above_the_bars(
            acts in vec(prop_oneof![
                vec("[a-f]{1,30}", 1..3).prop_map(Ok),
                vec("[#=%]{1,30}", 0..5).prop_map(Err),
            ], 0..12),
            width in 1_usize..40,
        ) {
            let mut text = Vec::new();
            let screen = Screen::new(&mut text);
            let (mut expected, mut last) = (Vec::new(), Vec::new());
            for act in acts {
                match act {
                    Ok(lines) => {
                        let whole: String = lines.iter().map(|line| format!("{line}\n")).collect();
                        (&screen).write_all(whole.as_bytes()).unwrap();
                        expected.extend(lines.iter().flat_map(|line| wrapped(line, width)));
                    }
                    Err(bars) => {
                        screen.show(bars.clone());
                        last = bars;
                    }
                }
            }
            drop(screen);
            // Whatever does not fit is written over the last column.
            let cut = |bar: &String| bar.chars().take(width - 1).chain(bar.chars().skip(width - 1).last()).collect::<String>();
            expected.extend(last.iter().map(cut));
            if last.is_empty() {
                // The cursor's row.
                expected.push(String::new());
            }
            let shown = Shown::after(width, &text);
            prop_assert_eq!(shown.lines(), expected);
            prop_assert!(shown.wraps);
        }
    }

    #[test]
    fn unchanged_bars_are_not_redrawn() {
        let mut text = Vec::new();
        let screen = Screen::new(&mut text);
        screen.show(Vec::new());
        screen.show(vec!["a bar".to_owned()]);
        screen.show(vec!["a bar".to_owned()]);
        screen.show(Vec::new());
        drop(screen);
        assert_eq!(String::from_utf8(text).unwrap(), "\x1b[?7la bar\x1b[?7h\r\x1b[J");
    }
}
