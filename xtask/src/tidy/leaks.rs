//! Paths that exist on one machine only.

use super::Problem;
use super::tree::TextFile;

/// Folders that exist only on their author's machine. Put together from parts, as this file is checked too.
const FOREIGN: &[&str] = &[concat!("/", "work", "/"), concat!("/", "root", "/")];

/// Checks one file.
pub fn check(file: &TextFile) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for path in FOREIGN.iter().filter(|path| line.contains(*path)) {
            problems.push(Problem::new(
                &file.path,
                index + 1,
                format!("names `{path}`, a path of one machine"),
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_one_machine_is_found_with_its_line() {
        let file = TextFile { path: "a.md".to_owned(), text: format!("fine\nsee {}b\n", FOREIGN[1]) };
        let found: Vec<_> = check(&file).iter().map(Problem::to_string).collect();
        assert_eq!(found, [format!("a.md:2: names `{}`, a path of one machine", FOREIGN[1])]);
    }

    #[test]
    fn ordinary_paths_are_fine() {
        let file = TextFile { path: "a.md".to_owned(), text: "framework/x, /models, roots/a\n".to_owned() };
        assert_eq!(check(&file), []);
    }
}
