//! The overview as lines, and the keys that change it.

use super::activity::{Activity, Row};
use super::poll::Machine;
use super::screen::Key;
use crate::text::{columns, shortened, single_line};

/// The most characters of a model's name and of a reason.
const NAME: usize = 40;
const REASON: usize = 200;

/// Lines above and below the models: the server, requests, the machine, the head of the table, and the keys.
const AROUND: usize = 6;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const SPARKS: usize = 40;

const KEYS: &str = "q quit   / filter   ← → sort by   r reverse   ↑ ↓ scroll";

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const REVERSE: &str = "\x1b[7m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";

/// Whether a key ends the overview.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Stay,
    Leave,
}

/// A column of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Model,
    Version,
    State,
    Requests,
    Latency,
    Queue,
    Batch,
    Pending,
    Failures,
    Cached,
}

impl Column {
    const ALL: [Self; 10] = [
        Self::Model,
        Self::Version,
        Self::State,
        Self::Requests,
        Self::Latency,
        Self::Queue,
        Self::Batch,
        Self::Pending,
        Self::Failures,
        Self::Cached,
    ];

    fn head(self) -> &'static str {
        match self {
            Self::Model => "MODEL",
            Self::Version => "VERSION",
            Self::State => "STATE",
            Self::Requests => "REQ/S",
            Self::Latency => "LATENCY",
            Self::Queue => "QUEUE",
            Self::Batch => "BATCH",
            Self::Pending => "WAITING",
            Self::Failures => "FAIL/S",
            Self::Cached => "CACHED",
        }
    }

    fn is_text(self) -> bool {
        matches!(self, Self::Model | Self::Version | Self::State)
    }

    fn number(self, row: &Row) -> Option<f64> {
        match self {
            Self::Model | Self::State => None,
            Self::Version => row.version.parse().ok(),
            Self::Requests => row.requests,
            Self::Latency => row.latency,
            Self::Queue => row.queue,
            Self::Batch => row.batch,
            Self::Pending => row.pending,
            Self::Failures => row.failures,
            Self::Cached => row.cached,
        }
    }

    fn cell(self, row: &Row) -> String {
        let number = self.number(row);
        let shown = |show: fn(f64) -> String| number.map_or_else(|| "-".to_owned(), show);
        match self {
            Self::Model => shortened(&single_line(&row.name), NAME),
            Self::Version => single_line(&row.version),
            Self::State => single_line(&row.state).to_lowercase(),
            Self::Requests | Self::Failures => shown(rate),
            Self::Latency | Self::Queue => shown(time),
            Self::Batch => shown(|batch| format!("{batch:.1}")),
            Self::Pending => shown(|pending| format!("{pending:.0}")),
            Self::Cached => shown(percent),
        }
    }
}

fn rate(rate: f64) -> String {
    if rate == 0.0 {
        "0".to_owned()
    } else if rate < 10.0 {
        format!("{rate:.1}")
    } else {
        format!("{rate:.0}")
    }
}

fn time(seconds: f64) -> String {
    match seconds {
        1.0.. => format!("{seconds:.2} s"),
        0.001.. => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{:.0} µs", seconds * 1e6),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn gigabytes(bytes: f64) -> String {
    format!("{:.1}", bytes / 1e9)
}

/// The overview as plain lines.
pub(super) fn lines(address: &str, activity: &Activity) -> String {
    let mut lines = vec![server_line(address, activity), requests_line(activity)];
    lines.extend(activity.machine().and_then(machine_line));
    let rows: Vec<_> = activity.rows.iter().collect();
    let table = if rows.is_empty() {
        NO_MODELS.to_owned()
    } else {
        table(&rows, |column| column.head().to_owned()).join("\n")
    };
    format!("{}\n\n{table}\n", lines.join("\n"))
}

/// Shown in place of a table.
const NO_MODELS: &str = "no models: the server has none, or does not list them (--model=NAME)";

fn server_line(address: &str, activity: &Activity) -> String {
    let readiness = match activity.is_ready() {
        None => "connecting",
        Some(true) => "ready",
        Some(false) => "not ready",
    };
    let ready = activity.rows.iter().filter(|row| row.state == "READY").count();
    let failed = activity.rows.iter().filter(|row| is_failed(row)).count();
    let failed = if failed > 0 { format!(", {failed} failed") } else { String::new() };
    let count = match activity.rows.len() {
        1 => "1 model".to_owned(),
        count => format!("{count} models"),
    };
    let server = single_line(activity.server());
    format!(
        "{server}{}{} is {readiness}, {count}, {ready} ready{failed}",
        if server.is_empty() { "" } else { " at " },
        single_line(address)
    )
}

/// Whether a model should be ready and is not.
fn is_failed(row: &Row) -> bool {
    row.state == "UNAVAILABLE" && !row.reason.is_empty() && row.reason != "unloaded"
}

fn requests_line(activity: &Activity) -> String {
    let shown = |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(|| "-".to_owned(), show);
    let line = [
        format!("{} requests/s", shown(activity.total(|row| row.requests), rate)),
        format!("latency {}", shown(activity.latency(), time)),
        format!("{} waiting", shown(activity.total(|row| row.pending), |pending| format!("{pending:.0}"))),
        format!("{} failures/s", shown(activity.total(|row| row.failures), rate)),
    ];
    line.join(", ")
}

fn machine_line(machine: &Machine) -> Option<String> {
    let memory = |(used, total): (f64, f64)| format!("{} of {} GB", gigabytes(used), gigabytes(total));
    let cpu = machine.cpu.map(|cpu| format!("CPU {}", percent(cpu)));
    let own = machine.memory.map(|own| format!("memory {}", memory(own)));
    let gpus = machine.gpus.iter().enumerate();
    let gpus =
        gpus.map(|(number, gpu)| format!("GPU {number} {}, {}", percent(gpu.usage), memory(gpu.memory)));
    let parts: Vec<_> = cpu.into_iter().chain(own).chain(gpus).collect();
    (!parts.is_empty()).then(|| parts.join("   "))
}

/// The table of models, with its head, in lines without line breaks.
fn table(rows: &[&Row], head: impl Fn(Column) -> String) -> Vec<String> {
    let mut cells = vec![Column::ALL.map(head).to_vec()];
    for row in rows {
        let mut line = Column::ALL.map(|column| column.cell(row)).to_vec();
        line.push(shortened(&single_line(&row.reason), REASON));
        cells.push(line);
    }
    let numeric: Vec<_> = Column::ALL.iter().map(|column| !column.is_text()).chain([false]).collect();
    columns(&cells, &numeric).lines().map(str::to_owned).collect()
}

/// How the overview is shown.
#[derive(Debug)]
pub(super) struct View {
    address: String,
    colors: bool,
    sort: Column,
    is_reversed: bool,
    filter: String,
    /// Whether keys go to the filter.
    is_typing: bool,
    first: usize,
    /// Rows that fit into the last frame.
    fitting: usize,
    /// Why the last poll failed.
    pub(super) failure: Option<String>,
}

impl View {
    pub(super) fn new(address: String, colors: bool) -> Self {
        Self {
            address,
            colors,
            sort: Column::Model,
            is_reversed: false,
            filter: String::new(),
            is_typing: false,
            first: 0,
            fitting: 1,
            failure: None,
        }
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: Key) -> Outcome {
        if self.is_typing {
            match key {
                Key::Character(character) => self.filter.push(character),
                Key::Backspace => drop(self.filter.pop()),
                Key::Enter => self.is_typing = false,
                Key::Escape => {
                    self.is_typing = false;
                    self.filter.clear();
                }
                Key::Interrupt => return Outcome::Leave,
                _ => {}
            }
            self.first = 0;
            return Outcome::Stay;
        }
        match key {
            Key::Interrupt | Key::Character('q') => return Outcome::Leave,
            Key::Escape if self.filter.is_empty() => return Outcome::Leave,
            Key::Escape => self.filter.clear(),
            Key::Character('/') => self.is_typing = true,
            Key::Character('r') => self.is_reversed = !self.is_reversed,
            Key::Character('s') | Key::Right => self.sort_by(1),
            Key::Left => self.sort_by(Column::ALL.len() - 1),
            Key::Up | Key::Character('k') => self.first = self.first.saturating_sub(1),
            Key::Down | Key::Character('j') => self.first = self.first.saturating_add(1),
            Key::PageUp => self.first = self.first.saturating_sub(self.fitting),
            Key::PageDown | Key::Character(' ') => self.first = self.first.saturating_add(self.fitting),
            Key::Home => self.first = 0,
            Key::End => self.first = usize::MAX,
            _ => {}
        }
        Outcome::Stay
    }

    fn sort_by(&mut self, step: usize) {
        let at = Column::ALL.iter().position(|column| *column == self.sort).unwrap_or_default();
        self.sort = Column::ALL[(at + step) % Column::ALL.len()];
        self.is_reversed = false;
    }

    /// The rows to show, in order: names from the first letter on, numbers from the highest on.
    fn rows<'a>(&self, activity: &'a Activity) -> Vec<&'a Row> {
        let filter = self.filter.to_lowercase();
        let matches = |row: &&Row| {
            let text = format!("{} {} {}", row.name, row.state, row.reason).to_lowercase();
            filter.split_whitespace().all(|word| text.contains(word))
        };
        let mut rows: Vec<_> = activity.rows.iter().filter(matches).collect();
        match self.sort {
            Column::Model => {}
            Column::State => rows.sort_by(|one, other| one.state.cmp(&other.state)),
            column => {
                let key = |row: &Row| column.number(row).unwrap_or(f64::NEG_INFINITY);
                rows.sort_by(|one, other| key(other).total_cmp(&key(one)));
            }
        }
        if self.is_reversed {
            rows.reverse();
        }
        rows
    }

    /// The lines of a screen of this size.
    pub(super) fn frame(&mut self, activity: &Activity, width: usize, height: usize) -> Vec<String> {
        let rows = self.rows(activity);
        self.fitting = height.saturating_sub(AROUND).max(1);
        self.first = self.first.min(rows.len().saturating_sub(self.fitting));
        let shown: Vec<_> = rows.iter().skip(self.first).take(self.fitting).copied().collect();
        let cut = |line: &str| line.chars().take(width).collect::<String>();
        let mut lines = vec![match &self.failure {
            Some(reason) => self.styled(&[BOLD, RED], &cut(&single_line(reason))),
            None => self.styled(&[BOLD], &cut(&server_line(&self.address, activity))),
        }];
        let sparks = sparks(activity.requests.iter().copied());
        lines.push(cut(&format!("{}  {sparks}", requests_line(activity))));
        lines.push(cut(&activity.machine().and_then(machine_line).unwrap_or_default()));
        let direction = |is_descending: bool| if is_descending { "▼" } else { "▲" };
        let head = |column: Column| match column == self.sort {
            true => {
                let is_text = matches!(column, Column::Model | Column::State);
                format!("{}{}", column.head(), direction(is_text == self.is_reversed))
            }
            false => column.head().to_owned(),
        };
        if shown.is_empty() {
            let reason = if self.filter.is_empty() { NO_MODELS } else { "no model matches the filter" };
            lines.extend([String::new(), cut(if activity.is_ready().is_some() { reason } else { "" })]);
        } else {
            let mut table = table(&shown, head).into_iter();
            let head = table.next().unwrap_or_default();
            lines.push(self.styled(&[REVERSE], &format!("{:<width$}", cut(&head))));
            lines.extend(table.zip(&shown).map(|(line, row)| self.styled(&[self.color(row)], &cut(&line))));
        }
        while lines.len() + 1 < height {
            lines.push(String::new());
        }
        lines.truncate(height.saturating_sub(1).max(1));
        let place = format!(
            "{}-{} of {}",
            self.first + usize::from(!shown.is_empty()),
            self.first + shown.len(),
            rows.len()
        );
        lines.push(match (self.is_typing, self.filter.is_empty()) {
            (true, _) => {
                cut(&format!("filter: {}_   Enter keeps it, Esc clears it", single_line(&self.filter)))
            }
            (false, true) => self.styled(&[DIM], &cut(&format!("{KEYS}   {place}"))),
            (false, false) => {
                self.styled(&[DIM], &cut(&format!("{KEYS}   {place}, filter: {}", single_line(&self.filter))))
            }
        });
        lines
    }

    fn color(&self, row: &Row) -> &'static str {
        match row.state.as_str() {
            _ if row.failures.is_some_and(|failures| failures > 0.0) || is_failed(row) => RED,
            "READY" if row.requests.is_some_and(|requests| requests > 0.0) => GREEN,
            "LOADING" | "UNLOADING" => YELLOW,
            "READY" => "",
            _ => DIM,
        }
    }

    fn styled(&self, styles: &[&str], text: &str) -> String {
        let is_color = |style: &&&str| matches!(**style, RED | GREEN | YELLOW);
        let styles: String = styles.iter().filter(|style| self.colors || !is_color(style)).copied().collect();
        if styles.is_empty() { text.to_owned() } else { format!("{styles}{text}\x1b[0m") }
    }
}

/// Values as a line of bars, of which the highest is the greatest value.
fn sparks(values: impl DoubleEndedIterator<Item = f64>) -> String {
    let mut last: Vec<_> = values.rev().take(SPARKS).collect();
    last.reverse();
    let highest = last.iter().copied().fold(0.0, f64::max);
    let bar = |value: &f64| {
        let level =
            if highest > 0.0 { (value / highest * (BARS.len() - 1) as f64).round() as usize } else { 0 };
        BARS[level.min(BARS.len() - 1)]
    };
    last.iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use proptest::prelude::*;

    use super::super::activity::tests::{counters, snapshot};
    use super::*;

    fn activity() -> Activity {
        let start = Instant::now();
        let mut activity = Activity::default();
        activity.add(snapshot(start, 0, &[("alpha", counters(0)), ("beta", counters(0)), ("gamma", None)]));
        let mut last =
            snapshot(start, 2, &[("alpha", counters(20)), ("beta", counters(200)), ("gamma", None)]);
        let failed = last.models.get_mut(&("gamma".into(), "1".into())).unwrap();
        (failed.state, failed.reason) = ("UNAVAILABLE".into(), "no file\n\x1b[2J".into());
        last.machine = Machine { cpu: Some(0.5), memory: Some((2e9, 8e9)), gpus: Vec::new() };
        activity.add(last);
        activity
    }

    /// The lines of a frame, without styles.
    fn frame(view: &mut View, activity: &Activity, width: usize, height: usize) -> Vec<String> {
        let plain = |line: String| {
            let mut parts = line.split('\x1b');
            let first = parts.next().unwrap_or_default().to_owned();
            first + &parts.map(|part| part.split_once('m').unwrap().1).collect::<String>()
        };
        view.frame(activity, width, height).into_iter().map(plain).collect()
    }

    fn names(lines: &[String]) -> Vec<&str> {
        let known = ["alpha", "beta", "gamma"];
        lines
            .iter()
            .filter_map(|line| line.split_whitespace().next())
            .filter(|name| known.contains(name))
            .collect()
    }

    #[test]
    fn overview_shows_the_server_its_models_and_the_machine() {
        let text = lines("http://h:8000", &activity());
        let expected = "\
triton 2 at http://h:8000 is ready, 3 models, 2 ready, 1 failed
110 requests/s, latency 2.0 ms, 6 waiting, 11 failures/s
CPU 50 %   memory 2.0 of 8.0 GB

MODEL  VERSION  STATE        REQ/S  LATENCY   QUEUE  BATCH  WAITING  FAIL/S  CACHED
alpha  1        ready           10   2.0 ms  500 µs    4.0        2     1.0    25 %
beta   1        ready          100   2.0 ms  500 µs    4.0        2      10    25 %
gamma  1        unavailable      -        -       -      -        2       -       -  no file <U+001B>[2J
";
        assert_eq!(text, expected);
        assert!(
            lines("http://h", &Activity::default())
                .contains("http://h is connecting, 0 models, 0 ready\n- requests/s")
        );
    }

    #[test]
    fn keys_sort_filter_and_scroll() {
        let activity = activity();
        let sorted = |keys: &[Key]| {
            let mut view = View::new("h".into(), true);
            keys.iter().for_each(|key| assert_eq!(view.press(*key), Outcome::Stay));
            frame(&mut view, &activity, 200, 24)
        };
        let typed = |text: &str| {
            [Key::Character('/')].into_iter().chain(text.chars().map(Key::Character)).collect::<Vec<_>>()
        };
        let reverse = Key::Character('r');
        for (keys, expected) in [
            (vec![], &["alpha", "beta", "gamma"][..]),
            (vec![reverse], &["gamma", "beta", "alpha"]),
            (vec![Key::Right, Key::Right, Key::Right], &["beta", "alpha", "gamma"]),
            (vec![Key::Right, Key::Right, Key::Right, reverse], &["gamma", "alpha", "beta"]),
            (vec![Key::Left, Key::Right], &["alpha", "beta", "gamma"]),
            (typed("BET"), &["beta"]),
            (typed("unavail file"), &["gamma"]),
            (typed("nothing"), &[]),
            ([typed("nothing"), vec![Key::Escape]].concat(), &["alpha", "beta", "gamma"]),
            ([typed("betx"), vec![Key::Backspace, Key::Enter, reverse]].concat(), &["beta"]),
            (typed("q"), &[]),
        ] {
            assert_eq!(names(&sorted(&keys)), expected, "{keys:?}");
        }
        assert!(sorted(&[Key::Right, Key::Right, Key::Right])[3].contains("REQ/S▼"));
        assert!(sorted(&[reverse])[3].starts_with("MODEL▼"));
        for key in [Key::Interrupt, Key::Character('q'), Key::Escape] {
            assert_eq!(View::new("h".into(), true).press(key), Outcome::Leave);
        }
        let mut view = View::new("h".into(), true);
        for (key, expected) in [
            (Key::Home, "alpha"),
            (Key::Down, "beta"),
            (Key::Down, "gamma"),
            (Key::Down, "gamma"),
            (Key::Up, "beta"),
            (Key::PageUp, "alpha"),
            (Key::End, "gamma"),
        ] {
            view.press(key);
            assert_eq!(names(&frame(&mut view, &activity, 200, AROUND + 1)), [expected], "{key:?}");
        }
    }

    proptest! {
        /// A frame fits any terminal, and has no command of a server.
        #[test]
        fn frames_fit(width in 1_usize..200, height in 1_usize..40, failure in proptest::option::of(any::<String>()), filter in "[a-z]{0,3}") {
            let mut view = View::new("http://h".into(), false);
            view.failure = failure;
            view.filter = filter;
            let lines = frame(&mut view, &activity(), width, height);
            prop_assert!(lines.len() <= height.max(2));
            for line in lines {
                prop_assert!(line.chars().count() <= width.max(1), "{line}");
                prop_assert!(!line.contains(char::is_control));
            }
        }
    }

    #[test]
    fn colors_can_be_left_out() {
        let mut activity = activity();
        activity.rows[0].failures = Some(0.0);
        for (colors, expected) in [(true, true), (false, false)] {
            let text = View::new("h".into(), colors).frame(&activity, 100, 24).concat();
            assert_eq!([RED, GREEN].iter().all(|color| text.contains(color)), expected);
            assert!(text.contains(BOLD));
        }
    }

    #[test]
    fn units_follow_the_size() {
        for (found, expected) in [
            (time(2.5), "2.50 s"),
            (time(0.0123), "12.3 ms"),
            (time(0.000_45), "450 µs"),
            (rate(0.0), "0"),
            (rate(0.25), "0.2"),
            (rate(1234.5), "1234"),
            (sparks([0.0, 1.0, 2.0].into_iter()), "▁▅█"),
            (sparks([0.0].into_iter()), "▁"),
        ] {
            assert_eq!(found, expected);
        }
    }
}
