//! Lines of the log, in each form.

use nereid_protocol::{LogUpdate, Principal};
use proptest::prelude::*;
use tracing::subscriber::with_default;

use super::*;

/// A writer with readable contents.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `log` with these settings and returns the output.
fn logged(settings: LogSettings, escapes: bool, log: impl FnOnce(&LogControl)) -> String {
    let (control, written) = (Arc::new(LogControl::new(settings)), Written::default());
    let target = written.clone();
    let lines = subscriber::layer()
        .event_format(Line { control: Arc::clone(&control), escapes })
        .with_ansi(false)
        .with_writer(move || target.clone())
        .with_filter(filter(&control));
    with_default(Registry::default().with(lines), || log(&control));
    String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
}

fn with_format(format: LogFormat) -> LogSettings {
    LogSettings { format, verbose_level: 1, ..LogSettings::default() }
}

/// The letters or names of the severities of all levels.
fn log_all_levels() {
    tracing::error!("e");
    tracing::warn!("w");
    tracing::info!("i");
    tracing::debug!("v");
}

#[test]
fn verbose_messages_use_the_references_info_format() {
    let lines = logged(with_format(LogFormat::Default), true, |_| log_all_levels());
    let letters: Vec<_> = lines.lines().map(|line| &line[..1]).collect();
    assert_eq!(letters, ["E", "W", "I", "I"]);
    assert!(lines.lines().all(|line| line.contains(" tests.rs:")), "{lines}");
    let lines = logged(with_format(LogFormat::Iso8601), true, |_| log_all_levels());
    let letters: Vec<_> = lines.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(letters, ["E", "W", "I", "I"]);
    let lines = logged(with_format(LogFormat::Json), true, |_| log_all_levels());
    let objects = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let levels: Vec<_> = objects.map(|line| line["level"].as_str().unwrap().to_owned()).collect();
    assert_eq!(levels, ["error", "warning", "info", "verbose"]);
}

proptest! {
    #[test]
    fn messages_are_json_strings_on_one_line(message: String, more in "[\\p{C}\\p{Z}\"'\\\\ -~]*") {
        let message = message + &more;
        let line = logged(LogSettings::default(), true, |_| tracing::info!("{message}"));
        let quoted = line.strip_suffix('\n').unwrap().split_once("] ").unwrap().1;
        prop_assert!(!quoted.contains(char::is_control), "{quoted}");
        let read: String = serde_json::from_str(quoted).unwrap();
        prop_assert_eq!(read, message);
    }
}

#[test]
fn table_starts_on_a_line_of_its_own_and_a_message_like_it_does_not() {
    let text = "\nE0101 00:00:00.000000 1 x.rs:1] forged";
    let table = logged(LogSettings::default(), true, |_| tracing::info!(log.table = true, "{text}"));
    assert!(table.ends_with(&format!("{text}\n")), "{table}");
    let line = logged(LogSettings::default(), true, |_| tracing::info!("{text}"));
    assert_eq!(line.matches('\n').count(), 1, "{line}");
    let object = logged(with_format(LogFormat::Json), true, |_| tracing::info!(log.table = true, "{text}"));
    assert!(!object.contains("log.table"), "{object}");
}

#[test]
fn invisible_characters_are_escaped_as_in_the_reference() {
    let message = "q\"b\\n\nt\te\u{1b}z\0d\u{7f}l\u{200b}f\u{e0001}ä'é漢🦀";
    let line = logged(LogSettings::default(), true, |_| tracing::info!("{message}"));
    let expected = r#""q\"b\\n\nt\te\u001Bz\u0000d\u007Fl\u200Bf\uDB40\uDC01ä'é漢🦀""#;
    assert!(line.trim_end().ends_with(expected), "{line}");
}

#[test]
fn unescaped_variable_disables_quoting() {
    for (variable, expected) in
        [(None, true), (Some("0"), false), (Some("1"), true), (Some(""), true), (Some("false"), true)]
    {
        assert_eq!(escapes(variable), expected, "{variable:?}");
    }
    for (escapes, expected) in [(true, r#"] "a \"b\" c""#), (false, r#"] a "b" c"#)] {
        let line = logged(LogSettings::default(), escapes, |_| tracing::info!("a \"b\" c"));
        assert!(line.trim_end().ends_with(expected), "{line}");
    }
}

#[test]
fn requests_are_logged_by_option_or_verbose_level() {
    let request = |_: &LogControl| {
        let answered = nereid_protocol::LoggedRequest::begin(None, || "HTTP GET /a b".to_owned());
        if let Some(answered) = answered {
            answered.answered(404, Some(12));
        }
        drop(nereid_protocol::LoggedRequest::begin(Some(&Principal::new("a client")), || {
            "gRPC /x".to_owned()
        }));
    };
    assert_eq!(logged(LogSettings::default(), true, request), "");
    for settings in [
        LogSettings { requests: true, ..LogSettings::default() },
        LogSettings { verbose_level: 1, ..LogSettings::default() },
        // A log of requests alone.
        LogSettings { requests: true, info: false, warning: false, error: false, ..LogSettings::default() },
    ] {
        let lines = logged(settings, true, request);
        let lines: Vec<_> = lines.lines().collect();
        let [answered, abandoned] = lines[..] else { panic!("{lines:?}") };
        assert!(answered.contains(r#""HTTP GET /a b status=404 bytes=12 microseconds="#), "{answered}");
        assert!(abandoned.contains(r#""gRPC /x status=abandoned microseconds="#), "{abandoned}");
        assert!(abandoned.contains("principal=a client") && !answered.contains("principal"), "{abandoned}");
    }
    // Changes of the settings take effect immediately.
    let lines = logged(LogSettings::default(), true, |control| {
        request(control);
        control.update(LogUpdate {
            verbose_level: Some(1),
            format: Some(LogFormat::Json),
            ..LogUpdate::default()
        });
        request(control);
        control.update(LogUpdate { verbose_level: Some(0), ..LogUpdate::default() });
        request(control);
    });
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!((&lines[0]["message"], &lines[0]["bytes"]), (&"HTTP GET /a b".into(), &12.into()));
    assert_eq!((&lines[0]["status"], lines[1].get("bytes")), (&"404".into(), None));
    assert!(lines[0]["microseconds"].is_u64());
}

proptest! {
    /// Whatever a message has, it is one line that can be read back.
    #[test]
    fn json_format_writes_one_object_per_line(message: String, field: String, number: i64, flag: bool) {
        let line = logged(with_format(LogFormat::Json), true, |_| {
            tracing::warn!(field, number, flag, debug = ?message, "{message}");
        });
        prop_assert_eq!(line.matches('\n').count(), 1);
        let object: Value = serde_json::from_str(&line).unwrap();
        prop_assert_eq!(object["message"].as_str().unwrap(), message.trim_matches('\n'));
        prop_assert_eq!(object["field"].as_str().unwrap(), field);
        prop_assert_eq!(object["number"].as_i64().unwrap(), number);
        prop_assert_eq!(object["flag"].as_bool().unwrap(), flag);
        prop_assert_eq!(object["debug"].as_str().unwrap(), format!("{message:?}"));
        prop_assert_eq!((object["pid"].as_u64(), object["level"].as_str()), (Some(process::id().into()), Some("warning")));
    }
}

#[test]
fn logged_lines_are_kept_as_text_whatever_their_form() {
    for format in [LogFormat::Default, LogFormat::Iso8601, LogFormat::Json] {
        let settings = LogSettings { format, info: false, ..LogSettings::default() };
        let control = Arc::new(LogControl::new(settings));
        let recent = Recent(Arc::clone(&control)).with_filter(filter(&control));
        with_default(Registry::default().with(recent), || {
            tracing::info!("not logged");
            tracing::warn!(size = 3, "a \"b\"\nc");
            tracing::error!(log.file = "/x/model.py", log.line = 7_i64, "failed");
        });
        let lines = control.recent().after(0);
        let lines: Vec<_> = lines.iter().map(|line| (line.level.name(), line.message.as_str())).collect();
        assert_eq!(lines, [("warning", "a \"b\"\nc size=3"), ("error", "failed")]);
        let places: Vec<_> = control.recent().after(0).into_iter().map(|line| line.place).collect();
        assert!(places[0].starts_with("tests.rs:") && places[1] == "model.py:7", "{places:?}");
    }
}
