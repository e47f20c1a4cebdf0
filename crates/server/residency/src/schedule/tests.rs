//! Schedules by plainly written rules, and days on which clocks are changed.

use proptest::prelude::*;

use super::*;

const ZONES: [&str; 5] =
    ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"];

fn schedule(text: &str) -> Schedule {
    Schedule::parse(text, None).unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The first times after a time.
fn times(text: &str, after: &str, count: usize) -> Vec<String> {
    let schedule = schedule(text);
    let mut time = at(after);
    let next = |_| {
        time = schedule.next(time).unwrap();
        time.to_string()
    };
    (0..count).map(next).collect()
}

#[test]
fn times_follow_the_clocks_of_the_zone() {
    for (text, after, expected) in [
        ("0 8 * * MON-FRI", "2026-11-27T08:00:00Z", ["2026-11-30T08:00:00Z", "2026-12-01T08:00:00Z"]),
        ("0 8 * * 1-5 UTC", "2026-11-27T07:59:59.9Z", ["2026-11-27T08:00:00Z", "2026-11-30T08:00:00Z"]),
        ("0 8 * * * Europe/Berlin", "2026-10-24T06:00:00Z", ["2026-10-25T07:00:00Z", "2026-10-26T07:00:00Z"]),
        ("*/30  9 1 1,7 *", "2026-01-01T09:00:00Z", ["2026-01-01T09:30:00Z", "2026-07-01T09:00:00Z"]),
        // Clocks skip half past two, and show it twice in autumn.
        (
            "30 2 * * * Europe/Berlin",
            "2026-03-28T12:00:00Z",
            ["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"],
        ),
        (
            "30 2 * * * Europe/Berlin",
            "2026-03-29T01:10:00Z",
            ["2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"],
        ),
        (
            "30 2 * * * Europe/Berlin",
            "2026-10-24T12:00:00Z",
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        (
            "30 2 * * * Europe/Berlin",
            "2026-10-25T00:30:00Z",
            ["2026-10-26T01:30:00Z", "2026-10-27T01:30:00Z"],
        ),
        ("0 0 29 2 *", "2026-01-01T00:00:00Z", ["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]),
    ] {
        assert_eq!(times(text, after, 2), expected, "{text} after {after}");
    }
}

#[test]
fn a_model_stays_for_its_time() {
    let daily = Schedule::parse("0 8 * * * Europe/Berlin", Some(parse_stay("1h30m").unwrap())).unwrap();
    for (now, is_on) in [
        ("2026-11-27T06:59:59Z", false),
        ("2026-11-27T07:00:00Z", true),
        ("2026-11-27T08:29:59Z", true),
        ("2026-11-27T08:30:00Z", false),
    ] {
        assert_eq!(daily.is_on(at(now)), is_on, "{now}");
    }
    assert_eq!(daily.describe(at("2026-11-27T07:00:00Z")), "2026-11-27 08:00 Europe/Berlin");
    assert_eq!(schedule("0 8 * * *").describe(at("2026-11-27T08:00:00Z")), "2026-11-27 08:00 UTC");
}

#[test]
fn invalid_schedules_say_what_they_must_be() {
    for (text, expected) in [
        ("", "five fields as in cron and an optional time zone"),
        ("8:00", "five fields as in cron and an optional time zone"),
        ("0 8 * *", "five fields as in cron and an optional time zone"),
        ("0 8 * * * UTC again", "five fields as in cron and an optional time zone"),
        ("0 8 * * * Mars/Olympus", "a time zone that this machine knows"),
        ("60 8 * * *", "five fields as in cron: "),
        ("0 8 * * NOON", "five fields as in cron: "),
        ("0 8 * * 5-1", "five fields as in cron: "),
        ("*/0 * * * *", "five fields as in cron: "),
        ("ä ö ü ß €", "five fields as in cron: "),
        ("0 0 31 4 *", "a time that comes"),
    ] {
        let error = Schedule::parse(text, None).unwrap_err();
        assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
    }
    for text in ["", "0m", "59s", "169h", "-1h", "8", "soon", "99999999999999999999h"] {
        assert_eq!(
            parse_stay(text).unwrap_err(),
            "a duration from 1m to 168h, such as '9h' or '90m'",
            "{text}"
        );
    }
    assert_eq!(parse_stay("1h 30m"), Ok(Duration::from_secs(5400)));
}

/// A field: its text, and whether it has a value.
#[derive(Clone, Debug)]
struct Field(String, Vec<i8>);

fn field(first: i8, last: i8) -> impl Strategy<Value = Field> {
    let all = (first..=last).collect::<Vec<_>>();
    let (some, steps, ranges) = (all.clone(), all.clone(), all.clone());
    prop_oneof![
        Just(Field("*".into(), all)),
        prop::sample::subsequence(some, 1..4).prop_map(|values| {
            let texts: Vec<_> = values.iter().map(i8::to_string).collect();
            Field(texts.join(","), values)
        }),
        (2..8_usize).prop_map(move |step| {
            Field(format!("*/{step}"), steps.iter().copied().step_by(step).collect())
        }),
        (0..ranges.len(), 0..ranges.len()).prop_map(move |(one, other)| {
            let values = ranges[one.min(other)..=one.max(other)].to_vec();
            Field(format!("{}-{}", values[0], values[values.len() - 1]), values)
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every minute of the days around is tried.
    #[test]
    fn the_next_time_is_the_first_that_fits(
        minutes in field(0, 59),
        hours in field(0, 23),
        weekdays in field(0, 6),
        zone in prop::sample::select(&ZONES),
        // Some of them around changes of clocks.
        after in prop_oneof![0..2_000_000_000_i64, 1_774_740_000..1_774_760_000_i64, 1_792_880_000..1_792_900_000_i64],
    ) {
        let text = format!("{} {} * * {} {zone}", minutes.0, hours.0, weekdays.0);
        let schedule = schedule(&text);
        let (after, zone) = (Timestamp::from_second(after).unwrap(), TimeZone::get(zone).unwrap());
        let fits = |shown: &DateTime| {
            minutes.1.contains(&shown.minute())
                && hours.1.contains(&shown.hour())
                && weekdays.1.contains(&shown.weekday().to_sunday_zero_offset())
        };
        let begin = zone.to_datetime(after).with().second(0).subsec_nanosecond(0).build().unwrap();
        let begin = begin - LONGEST_GAP;
        let every = (0..9 * 24 * 60).map(|minute| begin + SignedDuration::from_mins(minute));
        let instants = every.filter(fits).filter_map(|shown| schedule.instant(shown));
        let expected = instants.filter(|at| *at > after).min();
        prop_assert_eq!(schedule.next(after), expected, "{}", text);
        let next = expected.unwrap();
        prop_assert!(schedule.is_on(next) && next > after);
        prop_assert!(schedule.next(next).unwrap() > next);
    }
}
