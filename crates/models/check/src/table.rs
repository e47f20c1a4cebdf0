//! Tables for the log, drawn as the reference draws them.

/// Formats a table with a heading and rows of equal length. The text begins with a line break, so that in a log message
/// the table starts on a new line.
pub fn draw<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let mut widths = heading.map(|cell| cell.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |cells: [&str; N]| {
        let cells = cells.iter().zip(widths).map(|(cell, width)| format!(" {cell:<width$} |"));
        format!("|{}\n", cells.collect::<String>())
    };
    let rule = format!("+{}\n", widths.map(|width| "-".repeat(width + 2) + "+").concat());
    let rows: String = rows.iter().map(|row| line(row.each_ref().map(String::as_str))).collect();
    format!("\n{rule}{}{rule}{rows}{rule}", line(heading))
}

#[cfg(test)]
mod tests {
    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["digits".to_owned(), "1".to_owned()]];
        assert_eq!(
            super::draw(["Model", "Version"], &rows),
            "
+--------+---------+
| Model  | Version |
+--------+---------+
| digits | 1       |
+--------+---------+
"
        );
    }
}
