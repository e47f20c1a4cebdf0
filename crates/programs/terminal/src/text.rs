//! Texts of servers, for terminals: these obey what is in a text, so nothing in it may be a command.

/// The text with control characters and marks of direction as their numbers; line breaks and tabs stay.
pub(crate) fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' => shown.push(character),
            character if is_command(character) => {
                shown.push_str(&format!("<U+{:04X}>", u32::from(character)))
            }
            character => shown.push(character),
        }
    }
    shown
}

/// The text as one line.
pub fn single_line(text: &str) -> String {
    harmless(&text.replace(['\n', '\t', '\r'], " "))
}

/// Whether a terminal would obey the character: a control character, or one that changes the direction of text.
fn is_command(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Cuts a text to at most `limit` characters, with a mark at the cut.
pub(crate) fn shortened(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        None => text.to_owned(),
        Some(_) => text.chars().take(limit.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// Columns of texts, aligned; each one is to the right where `numeric` has it.
pub(crate) fn columns(rows: &[Vec<String>], numeric: &[bool]) -> String {
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..numeric.len()).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).zip(numeric).map(|((cell, &width), &numeric)| match numeric {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_become_numbers() {
        for (text, all, line) in [
            ("plain ü\n\tx", "plain ü\n\tx", "plain ü  x"),
            ("\x1b[2J", "<U+001B>[2J", "<U+001B>[2J"),
            ("a\u{202e}b\u{9b}", "a<U+202E>b<U+009B>", "a<U+202E>b<U+009B>"),
            ("a\r\nb", "a<U+000D>\nb", "a  b"),
        ] {
            assert_eq!((harmless(text).as_str(), single_line(text).as_str()), (all, line));
        }
    }

    proptest! {
        #[test]
        fn no_text_has_commands(text in any::<String>()) {
            prop_assert!(!harmless(&text).contains(|character| character != '\n' && character != '\t' && is_command(character)));
            prop_assert!(!single_line(&text).contains(is_command));
        }

        #[test]
        fn shortened_texts_fit(text in "[a-zü…]{0,20}", limit in 1_usize..20) {
            let short = shortened(&text, limit);
            prop_assert!(short.chars().count() <= limit);
            prop_assert_eq!(short == text, text.chars().count() <= limit);
        }
    }

    #[test]
    fn columns_are_aligned() {
        let rows = [["a", "1"], ["bcd", "10"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(columns(&rows, &[false, true]), "a     1\nbcd  10\n");
        assert_eq!(columns(&rows, &[true, false]), "  a  1\nbcd  10\n");
    }
}
