//! Hostile texts: nothing may panic, overflow the stack or take long.

use prost_reflect::DynamicMessage;

use super::{SAMPLES, with_colons};
use crate::proto::descriptor;
use crate::text::parser;
use crate::text::printer::print;
use crate::{TextProblem, parse_text, read_text, to_text};

#[test]
fn depth_does_not_overflow_the_stack() {
    const DEPTH: usize = 100_000;
    for unit in
        ["{", "<", "[", "input {", "input [", "input [ {", "optimization { cuda {", "'", "-", "[a", "a{"]
    {
        for text in [unit.repeat(DEPTH), format!("input {}", unit.repeat(DEPTH))] {
            assert!(parse_text(&text).is_err(), "{unit}");
            assert!(!read_text(&text).problems.is_empty(), "{unit}");
        }
    }
    for field in ["optimization", "unknown"] {
        let nested = format!("{}{}", format!("{field} {{").repeat(DEPTH), "}".repeat(DEPTH));
        assert!(parse_text(&nested).is_err());
        // Unknown fields are skipped entirely, at any depth.
        let reading = read_text(&nested);
        assert!(reading.complete && reading.problems.len() == 1, "{field}");
    }
}

/// Fifty megabytes each: one string, one comment, many fields, many numbers, and garbage.
#[test]
fn fifty_megabytes_are_read_or_refused() {
    const SIZE: usize = 50 << 20;
    let name = parse_text(&format!("name: '{}'", "x".repeat(SIZE))).unwrap().name;
    assert_eq!(name.len(), SIZE);
    assert_eq!(parse_text(&format!("#{}\nname: 'm'", "x".repeat(SIZE))).unwrap().name, "m");
    let unit = format!("metric_tags {{ key: 'a' value: '{}' }}\n", "v".repeat(1 << 10));
    assert_eq!(parse_text(&unit.repeat(SIZE / unit.len())).unwrap().metric_tags.len(), 1);
    let dims = parse_text(&format!("input {{ dims: [ 1{} ] }}", format!(", {:100}1", "").repeat(SIZE / 103)));
    assert_eq!(dims.unwrap().input[0].dims.len(), SIZE / 103 + 1);
    let nonsense = "x".repeat(SIZE);
    assert!(parse_text(&nonsense).unwrap_err().message().len() < 100);
    assert!(read_text(&format!("name: '{nonsense}' input {{")).problems.len() == 1);
}

#[test]
fn long_texts_are_read() {
    let text = "input { name: 'I' dims: [ 1, 2 ] } # and so on\n".repeat(20_000);
    assert_eq!(parse_text(&text).unwrap().input.len(), 20_000);
    let parts = format!("name: {}", "'ab' ".repeat(50_000));
    assert_eq!(parse_text(&parts).unwrap().name.len(), 100_000);
}

#[test]
fn every_prefix_of_a_sample_is_read_or_refused() {
    for sample in SAMPLES {
        for end in (0..=sample.len()).filter(|&end| sample.is_char_boundary(end)) {
            let text = &sample[..end];
            let problems = read_text(text).problems;
            match parse_text(text) {
                Ok(_) => assert_eq!(problems, []),
                Err(error) => {
                    assert!(error.line() >= 1 && error.column() >= 1 && !error.message().is_empty());
                    assert_eq!(problems.first().map(TextProblem::error), Some(&error));
                }
            }
        }
    }
}

/// A small generator of numbers, identical in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        // Knuth's linear congruential generator; its upper bits are the good ones.
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % limit
    }
}

/// Mutates a sample in a few places: removes or doubles pieces, or inserts troublesome ones.
fn mutate(sample: &str, numbers: &mut Numbers) -> String {
    const PIECES: [&str; 40] = [
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        ":",
        ",",
        ";",
        "-",
        "#",
        "'",
        "\"",
        "\\",
        "\\x",
        "\\u",
        "\\777",
        "\n",
        "0x",
        "08",
        "1e",
        ".",
        "..",
        "inf",
        "nan",
        "é",
        "\u{feff}",
        "\0",
        "99999999999999999999",
        "-1",
        "true",
        "key",
        "value",
        "name: 'x'",
        "dims: [",
        "TYPE_FP32",
        "input [",
        "\\ud83d\\ude00",
        "/",
        "_",
    ];
    let mut letters: Vec<char> = sample.chars().collect();
    for _ in 0..=numbers.below(4) {
        let start = numbers.below(letters.len().max(1));
        let end = (start + numbers.below(12)).min(letters.len());
        let start = start.min(end);
        match numbers.below(3) {
            0 => drop(letters.drain(start..end)),
            1 => {
                let copy = letters[start..end].to_vec();
                letters.splice(end..end, copy);
            }
            _ => {
                letters.splice(start..start, PIECES[numbers.below(PIECES.len())].chars());
            }
        }
    }
    letters.into_iter().collect()
}

#[test]
fn mutated_samples_are_read_or_refused() {
    let mut numbers = Numbers(1);
    let mut read = 0;
    for round in 0..6_000 {
        let text = mutate(SAMPLES[round % SAMPLES.len()], &mut numbers);
        let parsed = parse_text(&text);
        let reading = read_text(&text);
        let first = reading.problems.first().map(TextProblem::error);
        assert_eq!(first, parsed.as_ref().err(), "{text}");
        if let Ok(config) = parsed {
            assert_eq!(to_text(&reading.config), to_text(&config), "{text}");
            read += 1;
            let printed = to_text(&config);
            let again = parse_text(&printed).unwrap_or_else(|error| panic!("{error}\n{printed}"));
            assert_eq!(to_text(&again), printed);
        }
    }
    // The mutations are mild enough to reach the accepting paths, too.
    assert!(read > 300, "only {read} mutated texts were read");
}

/// If both readers accept a text, their results must be equal.
#[test]
fn general_reader_agrees_on_mutated_samples() {
    let mut numbers = Numbers(2);
    let mut compared = 0;
    for round in 0..3_000 {
        let sample = with_colons(SAMPLES[round % SAMPLES.len()]);
        let text = mutate(&sample, &mut numbers);
        let Ok(general) = DynamicMessage::parse_text_format(descriptor(), &text) else { continue };
        if let Ok(ours) = parser::parse(descriptor(), &text) {
            compared += 1;
            // Compared as text, since NaN does not equal itself.
            assert_eq!(print(&ours), print(&general), "{text}");
        }
    }
    assert!(compared > 100, "only {compared} texts were compared");
}
