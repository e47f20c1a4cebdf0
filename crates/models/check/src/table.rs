//! Tables for the log, drawn as the reference draws them.

/// The most lines of a wrapped cell.
const MAX_LINES: usize = 12;

/// Formats a table with a heading and rows of equal length. A line break in a cell continues the cell on the next line.
/// The text begins with a line break, so that in a log message the table starts on a new line.
pub fn draw<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heading.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.split('\n').map(|line| line.chars().count()).max().unwrap_or_default().max(*width);
        }
    }
    let line = |cells: [&str; N]| {
        let cells = cells.iter().zip(widths).map(|(cell, width)| format!(" {cell:<width$} |"));
        format!("|{}\n", cells.collect::<String>())
    };
    let lines = |row: &[String; N]| {
        let height = row.iter().map(|cell| cell.split('\n').count()).max().unwrap_or_default();
        let at = |number: usize| row.each_ref().map(|cell| cell.split('\n').nth(number).unwrap_or_default());
        (0..height).map(|number| line(at(number))).collect::<String>()
    };
    let rule = format!("+{}\n", widths.map(|width| "-".repeat(width + 2) + "+").concat());
    let rows: String = rows.iter().map(lines).collect();
    format!("\n{rule}{}{rule}{rows}{rule}", line(heading))
}

/// Breaks a text into lines of at most `width` characters, between words where possible, for a cell of a table. Control
/// characters and line breaks become spaces. A text with too many lines ends in `...`.
pub fn wrap(text: &str, width: usize) -> String {
    let words = text.split(|letter: char| letter.is_whitespace() || letter.is_control());
    let mut lines: Vec<String> = Vec::new();
    for word in words.filter(|word| !word.is_empty()) {
        let mut letters: Vec<char> = word.chars().collect();
        if let Some(line) = lines.last_mut()
            && line.chars().count() + 1 + letters.len() <= width
        {
            line.push(' ');
            line.extend(&letters);
            continue;
        }
        while letters.len() > width {
            lines.push(letters.drain(..width.max(1)).collect());
        }
        lines.push(letters.into_iter().collect());
    }
    if lines.len() > MAX_LINES {
        lines.truncate(MAX_LINES - 1);
        lines.push("...".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["digits".to_owned(), "1".to_owned()]];
        assert_eq!(
            draw(["Model", "Version"], &rows),
            "
+--------+---------+
| Model  | Version |
+--------+---------+
| digits | 1       |
+--------+---------+
"
        );
    }

    #[test]
    fn cells_may_have_several_lines() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned);
        let rows = [row(["a", "one\nlonger\n3"]), row(["b\nlong name", "x"]), row(["c", ""])];
        assert_eq!(
            draw(["Model", "State"], &rows),
            "
+-----------+--------+
| Model     | State  |
+-----------+--------+
| a         | one    |
|           | longer |
|           | 3      |
| b         | x      |
| long name |        |
| c         |        |
+-----------+--------+
"
        );
    }

    #[test]
    fn long_texts_are_wrapped_between_words() {
        for (text, expected) in [
            ("", ""),
            (" \n\t ", ""),
            ("one", "one"),
            ("one two", "one two"),
            ("one two three", "one two\nthree"),
            ("one\n\n two", "one two"),
            ("a\u{1b}[3mred", "a [3mred"),
            ("exactly1", "exactly1"),
            ("longer/than/eight", "longer/t\nhan/eigh\nt"),
            ("to longer/than", "to\nlonger/t\nhan"),
            ("longer/than it", "longer/t\nhan it"),
            ("ähnlich größer", "ähnlich\ngrößer"),
        ] {
            assert_eq!(wrap(text, 8), expected, "{text:?}");
        }
    }

    #[test]
    fn wrapped_text_keeps_every_word_up_to_a_number_of_lines() {
        for words in [1, 11, 12, 13, 500] {
            let text: Vec<_> = (0..words).map(|number| format!("word{number:03}")).collect();
            let wrapped = wrap(&text.join(" "), 8);
            let lines: Vec<_> = wrapped.lines().map(str::to_owned).collect();
            if words <= MAX_LINES {
                assert_eq!(lines, text);
            } else {
                assert_eq!(lines.len(), MAX_LINES);
                assert_eq!((&lines[..11], &*lines[11]), (&text[..11], "..."));
            }
        }
    }
}
