//! Log lines in the reference's forms, on standard error or in a file: `I1121 05:17:31.424305 19339 run.rs:42] "message"`,
//! or `2026-11-21T05:17:31Z I 19339 run.rs:42] "message"`.

use std::fmt::{self, Write};
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::{io, panic, process, thread};

use nereid_protocol::{LogControl, LogFormat, LogSettings};
use time::OffsetDateTime;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::fmt::{self as subscriber, FmtContext};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry};

/// Errors, warnings and information are switched one by one, as in the reference. Verbose messages are those of this
/// project's own crates; what libraries say of themselves takes level 2.
fn wants(settings: &LogSettings, level: Level, target: &str) -> bool {
    match level {
        Level::ERROR => settings.error,
        Level::WARN => settings.warning,
        Level::INFO => settings.info && target.starts_with("nereid"),
        Level::DEBUG => settings.verbose_level >= if target.starts_with("nereid") { 1 } else { 2 },
        Level::TRACE => settings.verbose_level >= 3,
    }
}

/// Starts logging. Called once.
///
/// # Errors
/// Why the log file cannot be written.
pub(crate) fn start(control: &Arc<LogControl>) -> Result<(), String> {
    let file = control.settings().file.clone();
    let target = match file.as_str() {
        "" => BoxMakeWriter::new(io::stderr),
        path => {
            let file = File::options().create(true).append(true).open(path);
            BoxMakeWriter::new(Mutex::new(file.map_err(|error| format!("cannot log to {path}: {error}"))?))
        }
    };
    let filter = FilterFn::new({
        let control = Arc::clone(control);
        move |metadata| wants(&control.settings(), *metadata.level(), metadata.target())
    });
    let line = Line(Arc::clone(control));
    let lines =
        subscriber::layer().event_format(line).with_ansi(false).with_writer(target).with_filter(filter);
    Registry::default().with(lines).init();
    // A panic is caught where it can be and fails one request or one model. It is worth a line like any other.
    panic::set_hook(Box::new(|info| {
        let thread = thread::current();
        let place = info.location().map_or_else(String::new, ToString::to_string);
        let reason = info.payload_as_str().unwrap_or("no reason given");
        tracing::error!("thread '{}' panicked at {place}: {reason}", thread.name().unwrap_or("unnamed"));
    }));
    Ok(())
}

struct Line(Arc<LogControl>);

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        let now = OffsetDateTime::now_utc();
        let letter = match *metadata.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            Level::INFO => 'I',
            Level::DEBUG | Level::TRACE => 'V',
        };
        let (month, day) = (u8::from(now.month()), now.day());
        let (hour, minute, second) = now.to_hms();
        match self.0.settings().format {
            LogFormat::Default => write!(
                line,
                "{letter}{month:02}{day:02} {hour:02}:{minute:02}:{second:02}.{:06}",
                now.microsecond()
            )?,
            LogFormat::Iso8601 => write!(
                line,
                "{}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z {letter}",
                now.year()
            )?,
        }
        let mut message = Message::default();
        event.record(&mut message);
        let file = message.file.as_deref().or(metadata.file()).unwrap_or("unknown");
        let file = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
        let number = message.line.unwrap_or_else(|| metadata.line().unwrap_or(0).into());
        write!(line, " {} {file}:{number}] ", process::id())?;
        // A table stands on lines of its own; anything else is one line, whatever a client or a file put into it.
        match message.text.strip_prefix('\n') {
            Some(table) => writeln!(line, "\n{table}"),
            None => writeln!(line, "{:?}", message.text),
        }
    }
}

/// The message of an event; its other fields follow as `name=value`.
#[derive(Default)]
struct Message {
    text: String,
    /// Where the message comes from, if that is not the place of the event: a backend that is a library has a place of
    /// its own.
    file: Option<String>,
    line: Option<i64>,
}

impl Visit for Message {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "log.file" => self.file = Some(value.to_owned()),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "log.line" => self.line = Some(value),
            _ => self.record_debug(field, &value),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.text, "{value:?}"),
            name => write!(self.text, " {name}={value:?}"),
        };
    }
}
