//! When a model is in use by the clock: cron's five fields, a time zone, and how long it stays.

use std::time::Duration;

use cronexpr::{Crontab, FallbackTimezoneOption, MakeTimestamp, ParseOptions, parse_crontab_with};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

/// How long a model stays without a setting.
const DEFAULT_STAY: Duration = Duration::from_secs(3600);
/// The shortest and the longest stay.
const STAYS: std::ops::RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(7 * 86_400);
/// Clocks are put forward by no more than this at a time.
const LONGEST_GAP: SignedDuration = SignedDuration::from_hours(3);

/// The times of a model, and how long it stays from each of them on.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    /// As configured, to compare schedules by.
    text: String,
    /// Applied to what clocks in the zone show, as if that was UTC.
    times: Crontab,
    zone: TimeZone,
    stay: Duration,
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.stay) == (&other.text, other.stay)
    }
}

impl Eq for Schedule {}

impl Schedule {
    /// Parses five fields of cron and an optional time zone, such as `0 8 * * MON-FRI Europe/Berlin`, and the length of a stay.
    ///
    /// # Errors
    /// A description of valid values.
    pub(crate) fn parse(text: &str, stay: Option<Duration>) -> Result<Self, String> {
        let fields: Vec<_> = text.split_whitespace().collect();
        let (times, zone) = match *fields.as_slice() {
            [_, _, _, _, _] => (fields.join(" "), TimeZone::UTC),
            [ref times @ .., zone] if times.len() == 5 => {
                let zone = TimeZone::get(zone).map_err(|error| {
                    format!(
                        "a schedule in a time zone that this machine knows, such as Europe/Berlin: {error}"
                    )
                })?;
                (times.join(" "), zone)
            }
            _ => {
                return Err(
                    "five fields as in cron and an optional time zone, such as '0 8 * * MON-FRI Europe/Berlin'"
                        .into(),
                );
            }
        };
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::UTC;
        let times = parse_crontab_with(&times, options).map_err(|error| {
            // The library draws an arrow below the place.
            let error = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            format!("five fields as in cron: {error}")
        })?;
        let schedule = Self { text: fields.join(" "), times, zone, stay: stay.unwrap_or(DEFAULT_STAY) };
        match schedule.next(Timestamp::UNIX_EPOCH) {
            Some(_) => Ok(schedule),
            None => Err("a schedule with a time that comes, unlike the 30th of February".into()),
        }
    }

    /// The first time after `after`. A time that clocks skip comes as much later as they are put forward, one that they show twice
    /// comes once. `None` if no time within four years fits.
    pub(crate) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let mut shown = self.zone.to_datetime(after.checked_sub(LONGEST_GAP).ok()?);
        let mut first: Option<Timestamp> = None;
        loop {
            let at = TimeZone::UTC.to_timestamp(shown).ok()?;
            shown = self.times.find_next(MakeTimestamp(at)).ok()?.datetime();
            if first.is_some_and(|first| shown > self.zone.to_datetime(first)) {
                return first;
            }
            let at = self.instant(shown)?;
            if at > after {
                first = Some(first.map_or(at, |first| first.min(at)));
            }
        }
    }

    fn instant(&self, shown: DateTime) -> Option<Timestamp> {
        Some(self.zone.to_ambiguous_zoned(shown).compatible().ok()?.timestamp())
    }

    /// Whether the model stays at this time.
    pub(crate) fn is_on(&self, now: Timestamp) -> bool {
        let began = now.checked_sub(self.stay).ok().and_then(|before| self.next(before));
        began.is_some_and(|began| began <= now)
    }

    /// A time for people, in the schedule's zone.
    pub(crate) fn describe(&self, at: Timestamp) -> String {
        at.to_zoned(self.zone.clone()).strftime("%Y-%m-%d %H:%M %Q").to_string()
    }
}

/// Parses how long a model stays.
///
/// # Errors
/// A description of valid values.
pub(crate) fn parse_stay(text: &str) -> Result<Duration, String> {
    let stay = text.parse::<SignedDuration>().ok().and_then(|stay| Duration::try_from(stay).ok());
    stay.filter(|stay| STAYS.contains(stay))
        .ok_or_else(|| "a duration from 1m to 168h, such as '9h' or '90m'".into())
}

#[cfg(test)]
mod tests;
