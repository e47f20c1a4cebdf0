//! Trace settings as protocols give them: names and texts.

use std::str::FromStr;

use nereid_backend_api::{Error, Result};

use super::{Change, TraceLevel, TraceUpdate};

impl TraceLevel {
    /// The names of what is traced; `OFF` if nothing is.
    pub fn names(self) -> Vec<&'static str> {
        let level = [(self.timestamps, "TIMESTAMPS"), (self.tensors, "TENSORS")];
        let names: Vec<_> = level.into_iter().filter(|(on, _)| *on).map(|(_, name)| name).collect();
        if names.is_empty() { vec!["OFF"] } else { names }
    }

    /// The level that these names make; a name that is not known is passed over. `None` if none is known.
    ///
    /// # Errors
    /// `InvalidArg` for `OFF` beside others.
    pub fn named(names: &[&str]) -> Result<Option<Self>> {
        let mut level = Self::default();
        let mut known = false;
        for name in names {
            match *name {
                "OFF" if names.len() > 1 => {
                    return Err(Error::invalid_arg("trace_level 'OFF' does not go together with others"));
                }
                "OFF" => known = true,
                "TIMESTAMPS" => (level.timestamps, known) = (true, true),
                "TENSORS" => (level.tensors, known) = (true, true),
                _ => {}
            }
        }
        Ok(known.then_some(level))
    }
}

impl TraceUpdate {
    /// Takes over the value of a setting that is a number, or clears it if there is none. Other settings are passed over.
    ///
    /// # Errors
    /// `InvalidArg` for a text that is no such number, `Unsupported` for the file, which stays as it is.
    pub fn set_number(&mut self, setting: &str, text: Option<&str>) -> Result<()> {
        match setting {
            "trace_rate" => self.rate = change(setting, text, "a whole number from 0 on")?,
            "log_frequency" => self.log_frequency = change(setting, text, "a whole number from 0 on")?,
            "trace_count" => {
                const WANTED: &str = "a whole number from -1 on";
                self.count = change(setting, text, WANTED)?;
                if let Change::Set(count) = self.count
                    && count < -1
                {
                    return Err(Error::invalid_arg(format!("{setting} is {count}, but takes {WANTED}")));
                }
            }
            "trace_file" => {
                return Err(Error::unsupported(
                    "the trace file is given when the server starts and stays as it is",
                ));
            }
            _ => {}
        }
        Ok(())
    }
}

fn change<T: FromStr>(setting: &str, text: Option<&str>, wanted: &str) -> Result<Change<T>> {
    let Some(text) = text else { return Ok(Change::Clear) };
    text.trim()
        .parse()
        .map(Change::Set)
        .map_err(|_| Error::invalid_arg(format!("{setting} is '{text}', but takes {wanted} within 32 bits")))
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::ErrorCode;

    use super::*;

    #[test]
    fn levels_have_names() {
        let level = |timestamps, tensors| TraceLevel { timestamps, tensors };
        for (names, expected) in [
            (&["OFF"][..], Some(level(false, false))),
            (&["TIMESTAMPS"], Some(level(true, false))),
            (&["TENSORS", "other"], Some(level(false, true))),
            (&["TIMESTAMPS", "TENSORS"], Some(level(true, true))),
            (&["other"], None),
            (&[], None),
        ] {
            assert_eq!(TraceLevel::named(names).unwrap(), expected, "{names:?}");
        }
        assert!(TraceLevel::named(&["OFF", "TENSORS"]).is_err());
        assert_eq!(level(false, false).names(), ["OFF"]);
        assert_eq!(level(true, true).names(), ["TIMESTAMPS", "TENSORS"]);
    }

    #[test]
    fn numbers_are_set_and_cleared_and_what_is_none_is_refused() {
        let mut update = TraceUpdate::default();
        update.set_number("trace_rate", Some("4294967295")).unwrap();
        update.set_number("trace_count", Some(" -1 ")).unwrap();
        update.set_number("log_frequency", None).unwrap();
        update.set_number("another", Some("x")).unwrap();
        assert_eq!(update.rate, Change::Set(u32::MAX));
        assert_eq!(update.count, Change::Set(-1));
        assert_eq!(update.log_frequency, Change::Clear);
        for (setting, text) in [
            ("trace_rate", "-1"),
            ("trace_rate", "4294967296"),
            ("trace_rate", "12abc"),
            ("trace_rate", ""),
            ("trace_count", "-2"),
            ("log_frequency", "1.0"),
        ] {
            let error = update.set_number(setting, Some(text)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArg, "{setting} {text}");
        }
        assert_eq!(update.set_number("trace_file", None).unwrap_err().code(), ErrorCode::Unsupported);
    }
}
