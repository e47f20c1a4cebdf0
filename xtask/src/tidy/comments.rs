//! Comments that have to be read twice.
//!
//! A comment names its subject and uses the field's terms. Habits of translated text hide the subject: a pronoun as the first
//! word, and verbs of speech for machines. Single lines may have them, so a crate's share of such lines is limited.

use std::collections::BTreeMap;

use super::Problem;
use super::rust::RustFile;

/// The most lines with a habit, in percent of the lines of a crate's comments.
const LIMIT: usize = 3;

/// Verbs of speech, and words that stand for a subject without a name.
const WORDS: &[&str] = &[
    "anew",
    "ask",
    "asked",
    "asks",
    "beside",
    "gave",
    "give",
    "gives",
    "hear",
    "heard",
    "hears",
    "meanwhile",
    "nobody",
    "said",
    "say",
    "says",
    "somebody",
    "tell",
    "tells",
    "told",
    "whatever",
    "whichever",
    "whoever",
];

/// Words that refer to something which the comment has not named yet, at the beginning of its documentation.
const FIRST_WORDS: &[&str] = &["It", "Its", "Those", "What", "Who"];

/// The lines of comments of each crate.
#[derive(Default)]
pub struct Comments(BTreeMap<String, Crate>);

#[derive(Default)]
struct Crate {
    lines: usize,
    /// The places of lines with a habit: path and line.
    found: Vec<(String, usize)>,
}

impl Comments {
    /// Counts the lines of a file.
    pub fn add(&mut self, file: &RustFile<'_>) {
        let Some(folder) = crate_of(file.path) else { return };
        let counts = self.0.entry(folder).or_default();
        for comment in file.tokens.iter().filter(|token| token.is_comment()) {
            for (offset, text) in comment.text.lines().enumerate() {
                counts.lines += 1;
                if has_habit(text) {
                    counts.found.push((file.path.to_owned(), comment.line + offset));
                }
            }
        }
    }

    /// Reports the lines of crates that have too many.
    pub fn check(&self) -> Vec<Problem> {
        // A small crate may have one.
        let too_many = |it: &&Crate| it.found.len() > (it.lines * LIMIT / 100).max(1);
        let found = self.0.values().filter(too_many).flat_map(|it| &it.found);
        let message =
            || format!("over {LIMIT} % of the crate's comment lines hide their subject, like this one");
        found.map(|(path, line)| Problem::new(path, *line, message())).collect()
    }
}

/// The folder of a file's crate.
fn crate_of(path: &str) -> Option<String> {
    let mut parts = path.split('/');
    match (parts.next()?, parts.next()?, parts.next()?) {
        ("crates", floor, name) => Some(format!("crates/{floor}/{name}")),
        ("xtask", ..) => Some("xtask".to_owned()),
        _ => None,
    }
}

fn has_habit(line: &str) -> bool {
    let is_documentation = line.starts_with("///") || line.starts_with("//!");
    let mut words =
        line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).peekable();
    let begins_with_pronoun = is_documentation && words.peek().is_some_and(|word| FIRST_WORDS.contains(word));
    begins_with_pronoun || words.any(|word| WORDS.contains(&word.to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::super::tree::TextFile;
    use super::*;

    /// The problems of a crate whose file has these lines and as many others as bring it to 100.
    fn problems(lines: &[&str]) -> Vec<String> {
        let filler = "// The queue is full.\n".repeat(100 - lines.len());
        let file = TextFile {
            path: "crates/server/core/src/a.rs".to_owned(),
            text: format!("{}\n{filler}", lines.join("\n")),
        };
        let mut comments = Comments::default();
        comments.add(&RustFile::of(&file).unwrap());
        comments.check().iter().map(Problem::to_string).collect()
    }

    #[test]
    fn crate_may_have_three_percent() {
        let habits =
            ["// The timer tells it.", "/// What is left.", "//! Nobody reads it.", "// An instance asks."];
        assert_eq!(problems(&habits[..3]), Vec::<String>::new());
        let found = problems(&habits);
        assert_eq!(found.len(), 4);
        assert!(found[3].starts_with("crates/server/core/src/a.rs:4: over 3 %"), "{found:?}");
    }

    #[test]
    fn habits_are_words_and_not_parts_of_them() {
        for fine in [
            "// The task is given to a thread.",
            "// Its own line, in a comment that is no documentation.",
            "/// The request, as it arrived.",
            "// besides, teller, essays",
            "// `tell_all` is a name.",
        ] {
            assert!(!has_habit(fine), "{fine}");
        }
        for habit in ["/// It waits.", "//! Its name.", "// (says the log)", "// GIVES", "/* whoever */"] {
            assert!(has_habit(habit), "{habit}");
        }
    }
}
