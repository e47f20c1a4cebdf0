//! Grammars in llama.cpp's notation (GBNF), translated into Lark's.
//!
//! Checks only what it has to understand: names, texts and classes of characters. The reader of Lark's notation checks the rest.

use std::collections::HashMap;
use std::fmt::Write as _;

type Parsed<T> = Result<T, String>;

/// The rule that describes the whole output.
const ROOT: &str = "root";

/// Whether a grammar is in this notation: one of its lines begins with a name and `::=`.
pub(super) fn is_gbnf(grammar: &str) -> bool {
    grammar.lines().any(|line| {
        line.split_once("::=").is_some_and(|(name, _)| {
            let name = name.trim();
            !name.is_empty() && name.chars().all(is_name)
        })
    })
}

/// Translates a grammar into Lark's notation.
///
/// # Errors
/// The grammar is invalid.
pub(super) fn to_lark(grammar: &str) -> Parsed<String> {
    let mut translation = Translation { rest: grammar, lark: String::new(), names: HashMap::new() };
    translation.names.insert(ROOT.to_owned(), "start".to_owned());
    let mut has_root = false;
    translation.skip_space();
    while !translation.rest.is_empty() {
        let name = translation.name()?;
        translation.skip_space();
        translation.rest = translation
            .rest
            .strip_prefix("::=")
            .ok_or_else(|| format!("grammar: '::=' is missing after '{name}'"))?;
        has_root |= name == ROOT;
        let rule = translation.rule(name);
        _ = write!(translation.lark, "{rule}:");
        translation.alternatives()?;
        translation.lark.push('\n');
    }
    match has_root {
        true => Ok(translation.lark),
        false => Err(format!("grammar: the rule '{ROOT}' is missing")),
    }
}

fn is_name(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_')
}

struct Translation<'a> {
    rest: &'a str,
    lark: String,
    /// The names of rules in Lark's notation, where their letters mean something.
    names: HashMap<String, String>,
}

impl<'a> Translation<'a> {
    fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let mut characters = self.rest.chars();
        let next = characters.next();
        self.rest = characters.as_str();
        next
    }

    /// Skips white space and comments.
    fn skip_space(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            let Some(comment) = self.rest.strip_prefix('#') else { return };
            self.rest = comment.split_once('\n').map_or("", |(_, rest)| rest);
        }
    }

    fn name(&mut self) -> Parsed<&'a str> {
        let end = self.rest.find(|character| !is_name(character)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        match name {
            "" => Err(format!("grammar: unexpected '{}'", self.peek().unwrap_or(' '))),
            name => Ok(name),
        }
    }

    fn rule(&mut self, name: &str) -> String {
        let number = self.names.len();
        self.names.entry(name.to_owned()).or_insert_with(|| format!("rule_{number}")).clone()
    }

    /// Whether a name with `::=` follows: the next rule.
    fn begins_rule(&self) -> bool {
        let after = self.rest.trim_start_matches(is_name);
        after.len() < self.rest.len() && after.trim_start().starts_with("::=")
    }

    /// The alternatives of a rule, up to the next rule.
    fn alternatives(&mut self) -> Parsed<()> {
        let mut depth = 0_usize;
        // An alternative without parts is an empty text.
        let mut is_empty = true;
        loop {
            self.skip_space();
            let Some(next) = self.peek() else { break };
            if depth == 0 && self.begins_rule() {
                break;
            }
            match next {
                '|' => {
                    self.next();
                    self.end_alternative(is_empty);
                    self.lark.push_str(" |");
                    is_empty = true;
                    continue;
                }
                '(' => {
                    self.next();
                    self.lark.push_str(" (");
                    depth += 1;
                    is_empty = true;
                    continue;
                }
                ')' => {
                    self.next();
                    depth = depth.checked_sub(1).ok_or("grammar: ')' has no '('")?;
                    self.end_alternative(is_empty);
                    self.lark.push(')');
                }
                '"' => self.text()?,
                '[' => self.class()?,
                '.' => {
                    self.next();
                    self.lark.push_str(" /(?s:.)/");
                }
                '*' | '+' | '?' if !is_empty => {
                    self.next();
                    self.lark.push(next);
                }
                '{' if !is_empty => {
                    let (count, rest) = self.rest.split_once('}').ok_or("grammar: '}' is missing")?;
                    self.rest = rest;
                    _ = write!(self.lark, "{count}}}");
                }
                _ => {
                    let name = self.name()?;
                    let rule = self.rule(name);
                    _ = write!(self.lark, " {rule}");
                }
            }
            is_empty = false;
        }
        self.end_alternative(is_empty);
        match depth {
            0 => Ok(()),
            _ => Err("grammar: ')' is missing".to_owned()),
        }
    }

    fn end_alternative(&mut self, is_empty: bool) {
        if is_empty {
            self.lark.push_str(" \"\"");
        }
    }

    /// A text in quotation marks.
    fn text(&mut self) -> Parsed<()> {
        let mut text = String::new();
        self.next();
        loop {
            match self.next() {
                Some('"') => break,
                Some('\\') => text.push(self.escaped()?),
                Some(character) => text.push(character),
                None => return Err("grammar: '\"' is missing".to_owned()),
            }
        }
        _ = write!(self.lark, " {}", serde_json::Value::from(text));
        Ok(())
    }

    /// A class of characters in brackets.
    fn class(&mut self) -> Parsed<()> {
        self.next();
        self.lark.push_str(" /[");
        if self.peek() == Some('^') {
            self.next();
            self.lark.push('^');
        }
        loop {
            let character = match self.next() {
                Some(']') => break,
                // At the end, it stands for itself.
                Some('-') if self.peek() != Some(']') => {
                    self.lark.push('-');
                    continue;
                }
                Some('\\') => self.escaped()?,
                Some(character) => character,
                None => return Err("grammar: ']' is missing".to_owned()),
            };
            _ = write!(self.lark, "\\u{{{:x}}}", u32::from(character));
        }
        self.lark.push_str("]/");
        Ok(())
    }

    /// The character of an escape, after its backslash.
    fn escaped(&mut self) -> Parsed<char> {
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(character) if !character.is_alphanumeric() => return Ok(character),
            _ => return Err("grammar: unknown escape".to_owned()),
        };
        let number = self.rest.get(..digits).and_then(|number| u32::from_str_radix(number, 16).ok());
        let character = number.and_then(char::from_u32).ok_or("grammar: invalid escape")?;
        self.rest = self.rest.get(digits..).unwrap_or_default();
        Ok(character)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_become_rules() {
        for (grammar, expected) in [
            ("root ::= \"yes\" | \"no\"", "start: \"yes\" | \"no\"\n"),
            ("root ::= a-b\na-b ::= [0-9]+ # digits\n", "start: rule_1\nrule_1: /[\\u{30}-\\u{39}]+/\n"),
            (
                "# first\nroot ::=\n  ( x | ) x*\nx ::= .",
                "start: ( rule_1 | \"\") rule_1*\nrule_1: /(?s:.)/\n",
            ),
            (
                "root ::= \"\\\"\\n\\x41\\u00e9\" ws\nws ::= | \" \" ws",
                "start: \"\\\"\\nAé\" rule_1\nrule_1: \"\" | \" \" rule_1\n",
            ),
            ("root ::= [^\\]a\\-z-]{1,3}", "start: /[^\\u{5d}\\u{61}\\u{2d}\\u{7a}\\u{2d}]/{1,3}\n"),
        ] {
            // Repetitions follow classes outside of their regular expressions.
            let expected = expected.replace("]+/", "]/+");
            assert_eq!(to_lark(grammar).unwrap(), expected, "{grammar}");
            assert!(is_gbnf(grammar));
        }
    }

    #[test]
    fn invalid_grammars_are_refused() {
        for (grammar, expected) in [
            ("a ::= \"b\"", "the rule 'root' is missing"),
            ("root = \"b\"\nroot ::= a", "'::=' is missing after 'root'"),
            ("root ::= \"a", "'\"' is missing"),
            ("root ::= [a", "']' is missing"),
            ("root ::= (a", "')' is missing"),
            ("root ::= a)", "')' has no '('"),
            ("root ::= \"\\q\"", "unknown escape"),
            ("root ::= \"\\u00\"", "invalid escape"),
            ("root ::= *", "unexpected '*'"),
            ("root ::= a{2", "'}' is missing"),
            ("root ::= %", "unexpected '%'"),
        ] {
            let error = to_lark(grammar).unwrap_err();
            assert!(error.contains(expected), "{grammar}: {error}");
        }
    }

    #[test]
    fn grammars_of_lark_are_left_alone() {
        for grammar in ["start: \"::=\"", "start: /a/\n", "%llguidance {}\nstart: \"a ::= b\"", ""] {
            assert!(!is_gbnf(grammar), "{grammar}");
        }
    }
}
