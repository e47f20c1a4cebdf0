//! Restricts `unsafe` to listed crates and requires a justification of each use.

use std::path::Path;

use cargo_metadata::{Metadata, TargetKind};
use ra_ap_rustc_lexer::TokenKind;

use super::Problem;
use super::rust::{RustFile, Token};
use super::tree::TextFile;

/// The crates that may hold unsafe code, by folder. Every other forbids it.
pub const UNSAFE_CRATES: &[&str] = &[
    "crates/engines/llamacpp",
    "crates/engines/onnxruntime",
    "crates/engines/openvino",
    "crates/engines/python-module",
    "crates/engines/pytorch",
    "crates/engines/tensorflow",
    "crates/platform/cuda",
    "crates/platform/cuda-driver",
    "crates/platform/dylib",
    "crates/platform/allocator",
    "crates/platform/affinity",
    "crates/platform/sandbox",
    "crates/triton/plugin",
    "crates/engines/python-arrays",
    "crates/programs/wheel",
    "crates/platform/shared-memory",
    "crates/triton/triton-host",
    "crates/programs/libtritonserver",
    "crates/engines/worker-protocol",
    "crates/triton/triton-backend",
    "crates/triton/triton-repoagent",
    "crates/triton/triton-sys",
];

const FORBID: &str = "#![forbid(unsafe_code)]";

/// Requires a soundness note for every unsafe block, function, implementation, trait and foreign block.
///
/// The note is a comment with `SAFETY:`, or the doc section `# Safety`, between the end of the previous statement and
/// the keyword; so it may stand above the whole statement or right above the block.
pub fn check_notes(file: &RustFile<'_>) -> Vec<Problem> {
    let code: Vec<(usize, &Token<'_>)> =
        file.tokens.iter().enumerate().filter(|(_, token)| !token.is_comment()).collect();
    let mut problems = Vec::new();
    for (position, (index, token)) in code.iter().enumerate() {
        if !token.is_word("unsafe") {
            continue;
        }
        let Some(what) = introduced(&code[position + 1..]) else { continue };
        if !is_noted(&file.tokens[..*index]) {
            problems.push(Problem::new(
                file.path,
                token.line,
                format!("unsafe {what} without a `SAFETY:` note"),
            ));
        }
    }
    problems
}

/// The kind of item that the word `unsafe` before these tokens introduces; `None` for a function pointer's type or an
/// attribute.
fn introduced(after: &[(usize, &Token<'_>)]) -> Option<&'static str> {
    let mut rest = after.iter().map(|(_, token)| *token).peekable();
    if rest.next_if(|token| token.is_word("extern")).is_some() {
        rest.next_if(|token| matches!(token.kind, TokenKind::Literal { .. }));
        if rest.peek()?.kind == TokenKind::OpenBrace {
            return Some("extern block");
        }
    }
    let first = rest.next()?;
    match first.text {
        "{" => Some("block"),
        "impl" => Some("impl"),
        "trait" => Some("trait"),
        "fn" if rest.next()?.kind == TokenKind::Ident => Some("fn"),
        _ => None,
    }
}

/// Whether these tokens, read backwards up to the end of the previous statement, contain a note.
fn is_noted(before: &[Token<'_>]) -> bool {
    before
        .iter()
        .rev()
        .take_while(|token| {
            !matches!(token.kind, TokenKind::Semi | TokenKind::OpenBrace | TokenKind::CloseBrace)
        })
        .any(|token| {
            token.is_comment() && (token.text.contains("SAFETY:") || token.text.contains("# Safety"))
        })
}

/// Checks that every crate outside the list forbids unsafe code in each of its roots.
pub fn check_crates(metadata: &Metadata, files: &[TextFile]) -> Vec<Problem> {
    let mut roots = Vec::new();
    for package in metadata.workspace_packages() {
        for target in &package.targets {
            if target.kind.iter().any(|kind| {
                matches!(kind, TargetKind::Lib | TargetKind::Bin | TargetKind::ProcMacro | TargetKind::CDyLib)
            }) {
                roots.push(target.src_path.as_std_path());
            }
        }
    }
    let root = metadata.workspace_root.as_std_path();
    files
        .iter()
        .filter(|file| roots.contains(&root.join(&file.path).as_path()))
        .filter_map(check_root)
        .collect()
}

/// Checks one crate root.
fn check_root(file: &TextFile) -> Option<Problem> {
    if UNSAFE_CRATES.iter().any(|member| Path::new(&file.path).starts_with(member)) {
        return None;
    }
    let forbids = file.text.lines().any(|line| line.trim() == FORBID);
    (!forbids).then(|| Problem::new(&file.path, 1, format!("lacks `{FORBID}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let file = TextFile { path: "a.rs".to_owned(), text: text.to_owned() };
        let found: Vec<_> =
            check_notes(&RustFile::of(&file).unwrap()).iter().map(Problem::to_string).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn unsafe_without_a_note_is_reported() {
        check("fn a() {\n    unsafe { b() }\n}", &["a.rs:2: unsafe block without a `SAFETY:` note"]);
        check("pub unsafe fn a() {}", &["a.rs:1: unsafe fn without a `SAFETY:` note"]);
        check("unsafe extern \"C\" fn a() {}", &["a.rs:1: unsafe fn without a `SAFETY:` note"]);
        check("unsafe impl Send for A {}", &["a.rs:1: unsafe impl without a `SAFETY:` note"]);
        check("unsafe trait A {}", &["a.rs:1: unsafe trait without a `SAFETY:` note"]);
        check("unsafe extern \"C\" {}", &["a.rs:1: unsafe extern block without a `SAFETY:` note"]);
    }

    #[test]
    fn a_note_above_the_statement_or_the_block_counts() {
        check("fn a() {\n    // SAFETY: b has no rules.\n    let c = unsafe { b() };\n}", &[]);
        check("fn a() {\n    let c =\n        // SAFETY: b has no rules.\n        unsafe { b() };\n}", &[]);
        check("/// Does.\n///\n/// # Safety\n/// Call it once.\n#[inline]\npub unsafe fn a() {}", &[]);
        check("// SAFETY: no shared state.\nunsafe impl Send for A {}", &[]);
        check("match a {\n    // SAFETY: fine.\n    B => unsafe { c() },\n    _ => d,\n}", &[]);
    }

    #[test]
    fn a_note_of_another_statement_does_not_count() {
        check(
            "fn a() {\n    // SAFETY: b has no rules.\n    unsafe { b() };\n    unsafe { c() }\n}",
            &["a.rs:4: unsafe block without a `SAFETY:` note"],
        );
        check("// safe enough\nunsafe impl Send for A {}", &["a.rs:2: unsafe impl without a `SAFETY:` note"]);
    }

    #[test]
    fn types_attributes_and_words_need_no_note() {
        check("type F = unsafe extern \"C\" fn(u8) -> u8;", &[]);
        check("struct A { f: unsafe fn(u8) }", &[]);
        check("#[unsafe(no_mangle)]\npub extern \"C\" fn a() {}", &[]);
        check("let a = \"unsafe { }\"; // unsafe { }", &[]);
    }

    #[test]
    fn a_crate_outside_the_list_forbids_unsafe_code() {
        let root = |path: &str, text: &str| {
            check_root(&TextFile { path: path.to_owned(), text: text.to_owned() })
                .map(|problem| problem.to_string())
        };
        assert_eq!(
            root("crates/server/core/src/lib.rs", "//! Core.\n"),
            Some("crates/server/core/src/lib.rs:1: lacks `#![forbid(unsafe_code)]`".to_owned())
        );
        assert_eq!(root("crates/server/core/src/lib.rs", "//! Core.\n#![forbid(unsafe_code)]\n"), None);
        assert!(root("crates/server/core/src/lib.rs", "// #![forbid(unsafe_code)]\n").is_some());
        assert_eq!(root("crates/triton/triton-host/src/lib.rs", "//! The C world.\n"), None);
        assert!(root("crates/triton-host-user/src/lib.rs", "//! Not it.\n").is_some());
    }
}
