//! Random schedules on a simulated clock, which runs, jumps and goes back.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use proptest::prelude::*;

use super::*;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn schedule(text: &str, stay_minutes: u64) -> Schedule {
    Schedule::parse(text, Some(Duration::from_secs(60 * stay_minutes))).unwrap()
}

#[test]
fn missed_times_count_while_the_model_would_still_stay() {
    let daily = schedule("0 8 * * *", 60);
    let mut table = Timetable::default();
    assert!(table.set("m", Some(daily.clone()), at("2026-01-01T07:00:00Z")));
    assert!(!table.set("m", Some(daily.clone()), at("2026-01-01T07:00:00Z")));
    for (now, is_due) in [
        ("2026-01-01T07:59:59Z", false),
        ("2026-01-01T08:00:00Z", true),
        ("2026-01-01T08:00:01Z", false),
        // The machine slept until the time was nearly over, and until it was.
        ("2026-01-02T08:59:59Z", true),
        ("2026-01-03T09:00:00Z", false),
        // Three times passed at once.
        ("2026-01-06T08:30:00Z", true),
        ("2026-01-06T08:30:01Z", false),
        // The clock was put back: the time comes again.
        ("2026-01-06T07:00:00Z", false),
        ("2026-01-06T08:00:00Z", true),
        ("2026-01-01T08:10:00Z", false),
        ("2026-01-02T08:10:00Z", true),
    ] {
        let due = table.due(at(now));
        assert_eq!(due, if is_due { vec!["m"] } else { vec![] }, "{now}");
    }
    // A server that starts late loads what should be there, and so does a changed schedule.
    let mut table = Timetable::default();
    table.set("m", Some(daily), at("2026-01-01T08:30:00Z"));
    assert_eq!(table.due(at("2026-01-01T08:30:00Z")), ["m"]);
    table.set("m", Some(schedule("30 8 * * *", 60)), at("2026-01-01T08:30:00Z"));
    assert_eq!(table.due(at("2026-01-01T08:30:01Z")), ["m"]);
    assert!(table.set("m", None, at("2026-01-01T09:00:00Z")));
    assert_eq!(
        (table.due(at("2026-01-02T08:30:00Z")).len(), table.next("m", at("2026-01-01T09:00:00Z"))),
        (0, None)
    );
}

#[test]
fn a_failed_load_is_tried_again_while_the_model_would_stay() {
    let mut table = Timetable::default();
    table.set("m", Some(schedule("0 8 * * *", 12)), at("2026-01-01T07:00:00Z"));
    let mut now = at("2026-01-01T08:00:00Z");
    let mut attempts = 0;
    while now < at("2026-01-01T09:00:00Z") {
        for name in table.due(now) {
            attempts += 1;
            table.retry(&name, now, Duration::from_secs(60));
        }
        now += SignedDuration::from_secs(1);
    }
    assert_eq!(attempts, 12);
    assert_eq!(table.due(at("2026-01-02T08:00:00Z")), ["m"]);
}

fn schedules() -> impl Strategy<Value = Schedule> {
    let times = prop_oneof![
        (0..60_u8).prop_map(|minute| format!("{minute} * * * *")),
        (0..60_u8, 0..24_u8).prop_map(|(minute, hour)| format!("{minute} {hour} * * * Europe/Berlin")),
        (1..30_u8).prop_map(|step| format!("*/{step} 6-9 * * 1-5")),
    ];
    (times, 1..600_u64).prop_map(|(times, stay)| schedule(&times, stay))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_clock_that_runs_loads_each_model_at_each_of_its_times(
        all in prop::collection::vec(schedules(), 1..4),
        start in 1_790_000_000..1_793_000_000_i64,
    ) {
        let start = Timestamp::from_second(start).unwrap();
        let mut table = Timetable::default();
        let names: Vec<_> = (0..all.len()).map(|number| format!("m{number}")).collect();
        let mut expected = BTreeMap::<&str, u32>::new();
        let end = start + SignedDuration::from_hours(48);
        for (name, schedule) in names.iter().zip(&all) {
            table.set(name, Some(schedule.clone()), start);
            let mut count = u32::from(schedule.is_on(start));
            let mut time = schedule.next(start).unwrap();
            while time <= end {
                count += 1;
                time = schedule.next(time).unwrap();
            }
            expected.insert(name, count);
        }
        let mut found: BTreeMap<_, u32> = names.iter().map(|name| (name.as_str(), 0)).collect();
        let mut now = start;
        while now <= end {
            for name in table.due(now) {
                *found.get_mut(name.as_str()).unwrap() += 1;
                prop_assert!(table.keeps(&name, now));
            }
            now += SignedDuration::from_secs(20);
        }
        // The last step may end before the last time.
        for (name, count) in table.due(end).iter().map(|name| (name.as_str(), 1)) {
            *found.get_mut(name).unwrap() += count;
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn a_clock_that_jumps_loads_what_should_be_there_and_nothing_else(
        schedule in schedules(),
        start in 1_790_000_000..1_793_000_000_i64,
        jumps in prop::collection::vec(-200_000..400_000_i64, 1..40),
    ) {
        let mut now = Timestamp::from_second(start).unwrap();
        let mut table = Timetable::default();
        table.set("m", Some(schedule.clone()), now);
        table.due(now);
        for jump in jumps {
            let before = now;
            now += SignedDuration::from_secs(jump);
            let due = !table.due(now).is_empty();
            prop_assert!(!due || schedule.is_on(now));
            let has_come = schedule.next(before).is_some_and(|next| next <= now);
            if jump > 0 {
                prop_assert_eq!(due, has_come && schedule.is_on(now));
            }
            prop_assert!(table.due(now).is_empty(), "once");
            prop_assert!(table.models["m"].next.is_some_and(|next| next > now));
        }
    }
}
