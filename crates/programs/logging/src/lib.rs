//! Log lines in the reference's forms, on standard error or in a file: `I1121 05:17:31.424305 19339 run.rs:42] "message"`,
//! or `2026-11-21T05:17:31Z I 19339 run.rs:42] "message"`; or else as JSON objects, one on each line.
//!
//! A process has one log: of the program, or of the library for applications. This crate installs it, and knows neither
//! options nor servers.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

use std::fmt::{self, Write};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, io, panic, process, thread};

use nereid_protocol::{LogControl, LogFormat, LogLevel, LogSettings, REQUEST_LOG};
use nereid_triton_host::{ApplicationLog, LogRecord};
use serde_json::{Map, Value};
use time::OffsetDateTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::{FilterFn, dynamic_filter_fn};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{self as subscriber, FmtContext};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// Whether to log an event. Errors, warnings and information are switched separately, as in the reference. Verbose
/// messages are limited to this project's crates; messages of libraries need level 2.
fn wants(settings: &LogSettings, level: Level, target: &str) -> bool {
    if target == REQUEST_LOG {
        return settings.requests || settings.verbose_level >= 1;
    }
    match level {
        Level::ERROR => settings.error,
        Level::WARN => settings.warning,
        Level::INFO => settings.info && target.starts_with("nereid"),
        Level::DEBUG => settings.verbose_level >= if target.starts_with("nereid") { 1 } else { 2 },
        Level::TRACE => settings.verbose_level >= 3,
    }
}

/// Starts logging, to the configured file, or else to `terminal` or to standard error. Called once.
///
/// # Errors
/// The log file cannot be written.
pub fn start(control: &Arc<LogControl>, terminal: Option<BoxMakeWriter>) -> Result<(), String> {
    let file = control.settings().file.clone();
    let target = match (file.as_str(), terminal) {
        ("", Some(terminal)) => terminal,
        ("", None) => BoxMakeWriter::new(io::stderr),
        (path, _) => {
            let file = File::options().create(true).append(true).open(path);
            BoxMakeWriter::new(Mutex::new(file.map_err(|error| format!("cannot log to {path}: {error}"))?))
        }
    };
    let line = Line { control: Arc::clone(control), escapes: escapes(env::var(UNESCAPED).ok().as_deref()) };
    let lines = subscriber::layer()
        .event_format(line)
        .with_ansi(false)
        .with_writer(target)
        .with_filter(filter(control));
    let recent = Recent(Arc::clone(control)).with_filter(filter(control));
    Registry::default().with(lines).with(recent).init();
    // A panic is caught where it can be and fails one request or one model. It is worth a line like any other.
    panic::set_hook(Box::new(|info| {
        let thread = thread::current();
        let place = info.location().map_or_else(String::new, ToString::to_string);
        let reason = info.payload_as_str().unwrap_or("no reason given");
        tracing::error!("thread '{}' panicked at {place}: {reason}", thread.name().unwrap_or("unnamed"));
    }));
    Ok(())
}

/// Starts the log of a library with servers of an application: it writes lines, or calls the application's callback if
/// one is set, as configured in the process's [`ApplicationLog`]. Nothing else in the process changes. Only the first call counts.
pub fn start_for_applications() {
    let log = ApplicationLog::get();
    let line =
        Line { control: Arc::clone(log.control()), escapes: escapes(env::var(UNESCAPED).ok().as_deref()) };
    let lines = subscriber::layer()
        .event_format(line)
        .with_ansi(false)
        .with_writer(move || log)
        .with_filter(dynamic_filter_fn(|_, _| !log.has_callback()))
        .with_filter(filter(log.control()));
    let calls = Calls(log).with_filter(filter(log.control()));
    // There may be a subscriber where this is linked into a program that has its own.
    let _ = tracing::subscriber::set_global_default(Registry::default().with(lines).with(calls));
}

/// Passes messages on to the application's function.
struct Calls(&'static ApplicationLog);

impl<S: Subscriber> Layer<S> for Calls {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if !self.0.has_callback() {
            return;
        }
        let metadata = event.metadata();
        let mut message = Message::default();
        event.record(&mut message);
        let (file, line) = message.place(metadata);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.0.report(&LogRecord {
            level: *metadata.level(),
            file: &file,
            line,
            micros: u64::try_from(now.as_micros()).unwrap_or(u64::MAX),
            message: &message.text(),
        });
    }
}

/// Keeps the last lines in memory.
struct Recent(Arc<LogControl>);

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message::default();
        event.record(&mut message);
        let (file, line) = message.place(event.metadata());
        let level = match *event.metadata().level() {
            Level::ERROR => LogLevel::Error,
            Level::WARN => LogLevel::Warning,
            Level::INFO => LogLevel::Info,
            Level::DEBUG | Level::TRACE => LogLevel::Verbose,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        self.0.recent().add(time_ms, level, format!("{file}:{line}"), message.text());
    }
}

/// Passes the events selected by the current settings.
fn filter(control: &Arc<LogControl>) -> FilterFn<impl Fn(&Metadata<'_>) -> bool + use<>> {
    let control = Arc::clone(control);
    FilterFn::new(move |metadata: &Metadata<'_>| {
        wants(&control.settings(), *metadata.level(), metadata.target())
    })
}

/// The value 0 writes messages unquoted.
const UNESCAPED: &str = "TRITON_SERVER_ESCAPE_LOG_MESSAGES";

fn escapes(variable: Option<&str>) -> bool {
    variable != Some("0")
}

struct Line {
    control: Arc<LogControl>,
    /// Whether to quote messages, so that each stays on one line for any text from clients or files.
    escapes: bool,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let mut message = Message::default();
        event.record(&mut message);
        let (file, number) = message.place(metadata);
        let place =
            Place { level: *metadata.level(), now: OffsetDateTime::now_utc(), file: &file, line: number };
        match self.control.settings().format {
            LogFormat::Default => place.write_default(&mut line)?,
            LogFormat::Iso8601 => place.write_iso8601(&mut line)?,
            LogFormat::Json => return writeln!(line, "{}", place.object(message)),
        }
        // Tables start on a new line. A text that merely looks like one is quoted: models and clients choose texts.
        let is_table = message.is_table;
        let text = message.text();
        match text.strip_prefix('\n').filter(|_| is_table) {
            Some(table) => writeln!(line, "\n{table}"),
            None if self.escapes => writeln!(line, "{}", Quoted(&text)),
            None => writeln!(line, "{text}"),
        }
    }
}

/// A text quoted as a JSON string, on one line.
struct Quoted<'t>(&'t str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                // What does not show, or changes how the rest does.
                _ if character != '\'' && character.escape_debug().len() > 1 => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        write!(f, "\\u{unit:04X}")?;
                    }
                }
                _ => f.write_char(character)?,
            }
        }
        f.write_char('"')
    }
}

/// Time and place of a log message.
struct Place<'a> {
    level: Level,
    now: OffsetDateTime,
    file: &'a str,
    line: i64,
}

impl Place<'_> {
    /// The severity's letter. Verbose messages are information, as in the reference.
    fn letter(&self) -> char {
        match self.level {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            Level::INFO | Level::DEBUG | Level::TRACE => 'I',
        }
    }

    fn write_default(&self, line: &mut impl Write) -> fmt::Result {
        let (month, day) = (u8::from(self.now.month()), self.now.day());
        let (hour, minute, second) = self.now.to_hms();
        let (letter, micros) = (self.letter(), self.now.microsecond());
        write!(line, "{letter}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")?;
        write!(line, " {} {}:{}] ", process::id(), self.file, self.line)
    }

    fn write_iso8601(&self, line: &mut impl Write) -> fmt::Result {
        write!(line, "{}Z {} {} {}:{}] ", self.seconds(), self.letter(), process::id(), self.file, self.line)
    }

    /// The time in ISO 8601, in seconds and without a zone.
    fn seconds(&self) -> String {
        let (year, month, day) = (self.now.year(), u8::from(self.now.month()), self.now.day());
        let (hour, minute, second) = self.now.to_hms();
        format!("{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }

    /// The line as a JSON object. Fields of the message become members.
    fn object(&self, message: Message) -> Value {
        let level = match self.level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG | Level::TRACE => "verbose",
        };
        let mut object = Map::new();
        for (name, value) in message.fields {
            object.insert(name.to_owned(), value);
        }
        let time = format!("{}.{:06}Z", self.seconds(), self.now.microsecond());
        object.insert("time".into(), time.into());
        object.insert("level".into(), level.into());
        object.insert("pid".into(), process::id().into());
        object.insert("file".into(), self.file.into());
        object.insert("line".into(), self.line.into());
        object.insert("message".into(), message.head.trim_matches('\n').into());
        object.into()
    }
}

/// The message and fields of an event.
#[derive(Default)]
struct Message {
    head: String,
    /// Fields other than the message.
    fields: Vec<(&'static str, Value)>,
    /// Source file named by the event itself: a backend in a library reports its own location instead of the call site.
    file: Option<String>,
    line: Option<i64>,
    /// Whether the message is a table of the server's.
    is_table: bool,
}

impl Message {
    /// The name of the source file and the line, which the event may name itself.
    fn place(&self, metadata: &Metadata<'_>) -> (String, i64) {
        let file = self.file.as_deref().or(metadata.file()).unwrap_or("unknown");
        let file = Path::new(file).file_name().unwrap_or_default().to_string_lossy().into_owned();
        (file, self.line.unwrap_or_else(|| metadata.line().unwrap_or(0).into()))
    }

    /// The message, and its other fields as `name=value`.
    fn text(mut self) -> String {
        for (name, value) in self.fields {
            // Writing to a string does not fail.
            let _ = match value.as_str() {
                Some(text) => write!(self.head, " {name}={text}"),
                None => write!(self.head, " {name}={value}"),
            };
        }
        self.head
    }
}

impl Visit for Message {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.file" => self.file = Some(value.to_owned()),
            "message" => self.head.push_str(value),
            name => self.fields.push((name, value.into())),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "log.line" => self.line = Some(value),
            name => self.fields.push((name, value.into())),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.push((field.name(), value.into()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "log.table" => self.is_table = value,
            name => self.fields.push((name, value.into())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => {
                // Writing to a string does not fail.
                let _ = write!(self.head, "{value:?}");
            }
            name => self.fields.push((name, format!("{value:?}").into())),
        }
    }
}

#[cfg(test)]
mod tests;
