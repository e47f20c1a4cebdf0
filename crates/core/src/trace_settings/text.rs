//! Trace settings as protocols give them: names and texts.

use std::str::FromStr;

use nereid_backend_api::{Error, Result};

use super::{Change, TraceUpdate};

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
