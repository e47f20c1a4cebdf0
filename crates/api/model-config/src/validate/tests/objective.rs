//! The latency objective: its values, and what it goes together with.

use std::time::Duration;

use super::{Stage, fails, parse_text, passes};
use crate::latency_objective;

fn objective(value: &str) -> String {
    format!("parameters {{ key: 'latency_objective_microseconds' value {{ string_value: '{value}' }} }} ")
}

#[test]
fn objectives_are_read() {
    for (value, micros) in [("1", 1), (" 20000 ", 20_000), ("3600000000", 3_600_000_000)] {
        let more = objective(value) + "dynamic_batching { }";
        passes(&more);
        let config = parse_text(&more).unwrap();
        assert_eq!(latency_objective(&config), Some(Duration::from_micros(micros)), "{value}");
    }
    assert_eq!(latency_objective(&parse_text("").unwrap()), None);
}

#[test]
fn invalid_values_are_refused() {
    for value in
        ["0", "-5", "", "fast", "1.5", "3600000001", "18446744073709551615", "18446744073709551616", "1e3"]
    {
        let expected = format!(
            "model 'm', field 'parameters[\"latency_objective_microseconds\"]': is '{value}', but must be a whole number of \
             microseconds from 1 to 3600000000 (an hour)"
        );
        fails(&(objective(value) + "dynamic_batching { }"), &expected);
        assert_eq!(latency_objective(&parse_text(&objective(value)).unwrap()), None, "{value}");
    }
}

#[test]
fn other_schedulers_and_preferred_sizes_are_refused() {
    let field = "model 'm', field 'parameters[\"latency_objective_microseconds\"]': ";
    for (more, expected) in [
        ("", format!("{field}needs dynamic_batching")),
        (
            "sequence_batching { }",
            format!("{field}is not supported with sequence_batching, only with dynamic_batching"),
        ),
        (
            "sequence_batching { oldest { max_candidate_sequences: 4 } }",
            format!("{field}is not supported with sequence_batching, only with dynamic_batching"),
        ),
        (
            "dynamic_batching { preferred_batch_size: [ 4, 8 ] }",
            "model 'm', field 'dynamic_batching.preferred_batch_size': must be omitted beside the parameter \
             'latency_objective_microseconds', by which the batcher chooses sizes up to max_batch_size"
                .to_owned(),
        ),
    ] {
        fails(&(objective("20000") + more), &expected);
    }
    passes(
        &(objective("20000")
            + "dynamic_batching { preferred_batch_size: 8 max_queue_delay_microseconds: 500 }"),
    );
}

#[test]
fn parts_that_a_backend_may_complete_are_required_of_the_final_configuration_only() {
    for (more, expected) in [
        ("max_batch_size: 8", "needs dynamic_batching"),
        ("max_batch_size: 1 dynamic_batching { }", "is 1, but must be at least 2"),
        ("dynamic_batching { }", "is 0, but must be at least 2"),
    ] {
        let config = parse_text(&format!("name: 'm' backend: 'b' {more} {}", objective("5"))).unwrap();
        assert_eq!(super::super::validate(&config, Stage::BeforeCompletion), Ok(()), "{more}");
        let error = super::super::validate(&config, Stage::Final).unwrap_err().to_string();
        assert!(error.contains(expected), "{more}: {error}");
    }
}
