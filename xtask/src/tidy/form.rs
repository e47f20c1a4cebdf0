//! Checks the form of Rust files: an opening doc, a limited length, no unfinished code, no name without its client's scope in a face.

use ra_ap_rustc_lexer::{DocStyle, TokenKind};

use super::Problem;
use super::rust::RustFile;

/// A file up to this length may go without an opening doc, unless it is the root of a crate.
const SMALL: usize = 40;

/// No production file is longer. Most should stay well under 400 lines.
const LONGEST: usize = 600;

/// Macros that mark unfinished work.
const UNFINISHED_MACROS: &[&str] = &["todo", "unimplemented", "dbg"];

/// In the root of each library: what remains needs a reason of its own.
const NO_PANICS: &str = "#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]";

/// The constructor of names that mean models of every client.
const EVERYWHERE: &str = "everywhere";

/// Words that mark unfinished work in comments.
const UNFINISHED_WORDS: &[&str] = &["FIXME", "XXX"];

/// Checks one file.
pub fn check(file: &RustFile<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    let length = file.text.lines().count();
    let is_root = matches!(file.name, "lib.rs" | "main.rs");
    if (is_root || length > SMALL) && !opens_with_doc(file) {
        problems.push(Problem::new(file.path, 1, "opens without a `//!` doc that describes its purpose"));
    }
    if !file.is_test() && length > LONGEST {
        problems.push(Problem::new(
            file.path,
            LONGEST + 1,
            format!("is {length} lines long, at most {LONGEST} are allowed; split it by ideas"),
        ));
    }
    if file.name == "mod.rs" {
        problems.push(Problem::new(file.path, 1, "`foo/mod.rs` is written `foo.rs` here"));
    }
    problems.extend(may_panic(file));
    problems.extend(leftovers(file));
    problems.extend(unscoped(file));
    problems
}

/// Reports names in faces that ignore which models the client may find.
fn unscoped<'a>(file: &'a RustFile<'_>) -> impl Iterator<Item = Problem> + use<'a> {
    let is_face = file.path.starts_with("crates/faces/") && !file.is_test();
    let names = file.tokens.iter().filter(move |token| is_face && token.is_word(EVERYWHERE));
    names.map(|token| {
        Problem::new(
            file.path,
            token.line,
            format!("`{EVERYWHERE}` ignores the scope of the client's request"),
        )
    })
}

/// Reports library roots that do not deny panics. The crate of test tools may panic.
fn may_panic(file: &RustFile<'_>) -> Option<Problem> {
    let parts: Vec<_> = file.path.split('/').collect();
    let ["crates", _, krate, "src", "lib.rs"] = parts.as_slice() else { return None };
    let denies = file.text.lines().any(|line| line == NO_PANICS);
    (!denies && *krate != "testkit").then(|| Problem::new(file.path, 1, format!("lacks `{NO_PANICS}`")))
}

fn opens_with_doc(file: &RustFile<'_>) -> bool {
    file.tokens.first().is_some_and(|token| {
        matches!(
            token.kind,
            TokenKind::LineComment { doc_style: Some(DocStyle::Inner) }
                | TokenKind::BlockComment { doc_style: Some(DocStyle::Inner), .. }
        )
    })
}

fn leftovers(file: &RustFile<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for three in file.tokens.windows(3) {
        // The bracket distinguishes a macro from a comparison by `!=`.
        let is_macro = three[1].kind == TokenKind::Bang
            && matches!(three[2].kind, TokenKind::OpenParen | TokenKind::OpenBrace | TokenKind::OpenBracket);
        if is_macro && UNFINISHED_MACROS.iter().any(|name| three[0].is_word(name)) {
            problems.push(Problem::new(
                file.path,
                three[0].line,
                format!("`{}!` is left over", three[0].text),
            ));
        }
    }
    for comment in file.tokens.iter().filter(|token| token.is_comment()) {
        for (offset, line) in comment.text.lines().enumerate() {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            for word in words.filter(|word| UNFINISHED_WORDS.contains(word)) {
                problems.push(Problem::new(
                    file.path,
                    comment.line + offset,
                    format!("`{word}` is left over"),
                ));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::TextFile;

    #[track_caller]
    fn check_at(path: &str, text: &str, expected: &[&str]) {
        let file = TextFile { path: path.to_owned(), text: text.to_owned() };
        let found: Vec<_> = check(&RustFile::of(&file).unwrap()).iter().map(Problem::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_crate_root_and_a_long_file_need_a_doc() {
        let complaint = "opens without a `//!` doc that describes its purpose";
        check_at("src/lib.rs", "fn a() {}\n", &[&format!("src/lib.rs:1: {complaint}")]);
        check_at("src/main.rs", "// plain\n//! too late\n", &[&format!("src/main.rs:1: {complaint}")]);
        check_at("src/a.rs", &"fn a() {}\n".repeat(41), &[&format!("src/a.rs:1: {complaint}")]);
        check_at("src/a/tests.rs", &"fn a() {}\n".repeat(41), &[&format!("src/a/tests.rs:1: {complaint}")]);
        check_at("src/a.rs", &"fn a() {}\n".repeat(40), &[]);
        check_at("src/lib.rs", "//! What it is for.\nfn a() {}\n", &[]);
        check_at("src/lib.rs", "\n/*! What it is for. */\n", &[]);
    }

    #[test]
    fn a_production_file_has_a_longest_length() {
        let long = format!("//! Long.\n{}", "fn a() {}\n".repeat(600));
        check_at(
            "src/a.rs",
            &long,
            &["src/a.rs:601: is 601 lines long, at most 600 are allowed; split it by ideas"],
        );
        check_at("src/a/tests.rs", &long, &[]);
        check_at("tests/a.rs", &long, &[]);
        check_at("src/a.rs", &format!("//! Long.\n{}", "fn a() {}\n".repeat(599)), &[]);
    }

    #[test]
    fn modules_are_files_beside_their_folder() {
        check_at("src/a/mod.rs", "", &["src/a/mod.rs:1: `foo/mod.rs` is written `foo.rs` here"]);
    }

    #[test]
    fn names_in_faces_have_the_scope_of_a_client() {
        let text = "fn a() {\n    server.find(ScopedName::everywhere(name), None);\n}\n";
        let complaint = "`everywhere` ignores the scope of the client's request";
        check_at("crates/faces/a/src/b.rs", text, &[&format!("crates/faces/a/src/b.rs:2: {complaint}")]);
        for path in ["crates/faces/a/src/b/tests.rs", "crates/server/a/src/b.rs", "crates/triton/a/src/b.rs"]
        {
            check_at(path, text, &[]);
        }
        check_at("crates/faces/a/src/b.rs", "// everywhere\nfn a() { find(\"everywhere\") }\n", &[]);
    }

    #[test]
    fn unfinished_code_is_found_in_code_alone() {
        check_at(
            "a.rs",
            "fn a() {\n    todo!()\n}\nfn b() { unimplemented!(\"b\") }\nfn c() { dbg!(1); }\n",
            &[
                "a.rs:2: `todo!` is left over",
                "a.rs:4: `unimplemented!` is left over",
                "a.rs:5: `dbg!` is left over",
            ],
        );
        check_at("a.rs", "// todo!() in words\nlet todo = \"todo!() dbg!(x)\"; let a = todo != 1;\n", &[]);
    }

    #[test]
    fn unfinished_words_are_found_in_comments_alone() {
        check_at(
            "a.rs",
            "// FIXME: later\n/* fine\n * XXX not */\n",
            &["a.rs:1: `FIXME` is left over", "a.rs:3: `XXX` is left over"],
        );
        check_at("a.rs", "let a = \"FIXME\"; // mktemp nereid.XXXXXX\n", &[]);
    }

    #[test]
    fn library_root_denies_panics() {
        let root = |path: &str, text: &str| {
            let file = TextFile { path: path.to_owned(), text: text.to_owned() };
            check(&RustFile::of(&file).unwrap()).len()
        };
        assert_eq!(root("crates/server/core/src/lib.rs", "//! Core.\n"), 1);
        assert_eq!(root("crates/server/core/src/lib.rs", &format!("//! Core.\n{NO_PANICS}\n")), 0);
        assert_eq!(root("crates/api/testkit/src/lib.rs", "//! Tests.\n"), 0);
        assert_eq!(root("xtask/src/main.rs", "//! Tasks.\n"), 0);
    }
}
