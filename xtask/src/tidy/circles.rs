//! Circles of modules: top-level modules of a crate that import each other, directly or through others.
//!
//! A circle has to be read and understood as a whole, so its size is limited. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use ra_ap_rustc_lexer::TokenKind;

use super::Problem;
use super::rust::{RustFile, Token};

/// The most modules of a circle.
const LIMIT: usize = 5;

/// The modules that each module of a crate imports, by the crate's folder.
#[derive(Default)]
pub struct Imports(BTreeMap<String, BTreeMap<String, BTreeSet<String>>>);

impl Imports {
    /// Notes the imports of a file.
    pub fn add(&mut self, file: &RustFile<'_>) {
        let parts: Vec<_> = file.path.split('/').collect();
        let ["crates", floor, krate, "src", top, ..] = parts.as_slice() else { return };
        let module = top.trim_end_matches(".rs");
        if file.is_test() || matches!(module, "lib" | "main" | "testing") || file.name == "testing.rs" {
            return;
        }
        let modules = self.0.entry(format!("crates/{floor}/{krate}")).or_default();
        modules.entry(module.to_owned()).or_default().extend(imported(&file.tokens));
    }

    /// Reports circles that are too large.
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for (folder, modules) in &self.0 {
            let path = format!("{folder}/src/lib.rs");
            let largest = circles(modules).into_iter().max_by_key(BTreeSet::len).unwrap_or_default();
            let size = largest.len();
            if size > LIMIT {
                let names = largest.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                problems.push(Problem::new(&path, 1, format!("{size} modules import each other: {names}")));
            }
        }
        problems
    }
}

/// The names behind `crate::` in a file, up to its inline tests.
fn imported(tokens: &[Token<'_>]) -> BTreeSet<String> {
    let code: Vec<_> = tokens.iter().filter(|token| !token.is_comment()).collect();
    let is_tests = |window: &[&Token<'_>]| matches!(window, [word, name, open] if word.is_word("mod") && name.text.starts_with("test") && open.text == "{");
    let end = code.windows(3).position(is_tests).unwrap_or(code.len());
    let mut names = BTreeSet::new();
    for (index, _) in code[..end].iter().enumerate().filter(|(_, token)| token.is_word("crate")) {
        let mut rest = code[index + 1..end].iter();
        if !(rest.next().is_some_and(|it| it.text == ":") && rest.next().is_some_and(|it| it.text == ":")) {
            continue;
        }
        match rest.next() {
            Some(name) if name.kind == TokenKind::Ident => names.extend([name.text.to_owned()]),
            Some(open) if open.text == "{" => names.extend(listed(rest)),
            _ => {}
        }
    }
    names
}

/// The first names of the paths in a list of imports, whose opening brace was read.
fn listed<'a>(tokens: impl Iterator<Item = &'a &'a Token<'a>>) -> Vec<String> {
    let (mut names, mut depth, mut is_first) = (Vec::new(), 1, true);
    for token in tokens {
        match token.text {
            "{" => depth += 1,
            "}" => depth -= 1,
            "," => is_first |= depth == 1,
            name if is_first && token.kind == TokenKind::Ident => {
                names.push(name.to_owned());
                is_first = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    names
}

/// The circles of two modules and more: modules that reach each other.
fn circles(modules: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reached = |start: &String| {
        let (mut found, mut open) = (BTreeSet::new(), vec![start]);
        while let Some(module) = open.pop() {
            for next in modules.get(module).into_iter().flatten().filter(|next| modules.contains_key(*next)) {
                if found.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        found
    };
    let reached: BTreeMap<_, _> = modules.keys().map(|module| (module, reached(module))).collect();
    let mut circles = BTreeSet::new();
    for (module, others) in &reached {
        let circle = others.iter().filter(|other| reached[other].contains(*module)).cloned();
        let circle: BTreeSet<_> = circle.chain([(*module).clone()]).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::TextFile;
    use super::*;

    fn imports(files: &[(&str, &str)]) -> Imports {
        let mut imports = Imports::default();
        for (path, text) in files {
            let file = TextFile { path: format!("crates/{path}"), text: (*text).to_owned() };
            imports.add(&RustFile::of(&file).unwrap());
        }
        imports
    }

    #[test]
    fn imports_are_read_from_paths_and_lists_and_not_from_tests() {
        let text = "use crate::a::X; use crate::{b::{c, Y}, d, self as e}; fn f() { crate::g::h() }\n\
                    // use crate::comment;\nmod tests { use crate::z; }";
        let imports = imports(&[("f/k/src/m.rs", text), ("f/k/src/m/tests.rs", "use crate::y;")]);
        let found: Vec<_> = imports.0["crates/f/k"]["m"].iter().map(String::as_str).collect();
        assert_eq!(found, ["a", "b", "d", "g", "self"]);
    }

    #[test]
    fn circle_of_more_modules_than_the_limit_is_reported() {
        let ring = |count: usize| -> Vec<(String, String)> {
            let file =
                |at: usize| (format!("f/k/src/m{at}.rs"), format!("use crate::m{};", (at + 1) % count));
            (0..count).map(file).collect()
        };
        for (count, expected) in [(LIMIT, 0), (LIMIT + 1, 1)] {
            let ring = ring(count);
            let files: Vec<_> = ring.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
            let problems = imports(&files).check();
            assert_eq!(problems.len(), expected, "{problems:?}");
        }
    }

    #[test]
    fn modules_in_a_row_are_no_circle() {
        let files =
            [("f/k/src/a.rs", "use crate::b;"), ("f/k/src/b.rs", "use crate::c;"), ("f/k/src/c.rs", "")];
        assert_eq!(circles(&imports(&files).0["crates/f/k"]), Vec::<BTreeSet<String>>::new());
    }
}
