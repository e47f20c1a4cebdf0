//! Guides: which tokens keep an output within the form that its request demands.
//!
//! The crate `llguidance` compiles forms, on a separate thread, so that other requests continue to generate. Limits bound the time of
//! compilation and of each token for every possible request.

mod gbnf;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use nereid_backend_api::{Error, Result};
use serde_json::Value;

use crate::engine::{Token, Vocabulary};
use crate::structure::{Form, Structure, Whitespace};

/// White space in JSON unless the request has another: enough to indent by, but no model fills its context with it.
const WHITESPACE: &str = r"[ \t\r\n]{1,64}";

/// The longest that a request waits until its form is compiled.
const LONGEST: Duration = Duration::from_secs(15);

/// The stack of the thread that compiles. Rules and groups within others take some kilobytes each.
const STACK: usize = 128 << 20;

/// The most rules of a grammar, and the deepest group: the compiler descends into each.
const MAX_RULES: usize = 2000;
const MAX_DEPTH: usize = 500;

/// The most properties of an object in a schema. The time to compile them grows with their square.
const MAX_PROPERTIES: usize = 1000;

/// The longest regular expression of a request, in bytes. Thousands of optional parts take minutes.
const MAX_EXPRESSION: usize = 4096;

/// How many compiled forms are kept for further requests.
const KEPT: usize = 8;

/// Follows an output from token to token.
pub(crate) struct Guide {
    matcher: Matcher,
    mask: SimpleVob,
}

impl Guide {
    /// Finds the tokens that may follow.
    ///
    /// # Errors
    /// `InvalidArg` if the form is too complex for one step.
    pub(crate) fn prepare(&mut self) -> Result<()> {
        self.mask = self.matcher.compute_mask_or_eos().map_err(|error| too_complex(&error))?;
        Ok(())
    }

    /// Whether a token may follow, after [`prepare`](Self::prepare).
    pub(crate) fn allows(&self, token: Token) -> bool {
        usize::try_from(token).is_ok_and(|token| token < self.mask.len() && self.mask.get(token))
    }

    /// Adds a token to the output. Returns whether the output is complete, so that no token may follow.
    ///
    /// # Errors
    /// `InvalidArg` if the form is too complex.
    pub(crate) fn accept(&mut self, token: Token) -> Result<bool> {
        let token = u32::try_from(token).map_err(|_| Error::internal("the token has no number"))?;
        self.matcher.consume_token(token).map_err(|error| too_complex(&error))?;
        Ok(self.matcher.is_stopped())
    }
}

fn too_complex(error: &impl std::fmt::Display) -> Error {
    Error::invalid_arg(format!("structured output: the form is too complex: {}", one_line(error)))
}

/// The beginning of the first line of an error of the library, which may continue with its state or repeat the form.
fn one_line(error: &impl std::fmt::Display) -> String {
    error.to_string().lines().next().unwrap_or_default().trim().chars().take(200).collect()
}

/// A guide that is being compiled.
pub(crate) struct Pending {
    guide: mpsc::Receiver<Result<Guide>>,
    deadline: Instant,
}

impl Pending {
    /// The guide, if it is compiled within this time; `None` while it is not. Fails if it takes too long altogether.
    pub(crate) fn poll(&self, patience: Duration) -> Option<Result<Guide>> {
        match self.guide.recv_timeout(patience) {
            Ok(guide) => Some(guide),
            Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() < self.deadline => None,
            Err(mpsc::RecvTimeoutError::Timeout) => Some(Err(Error::invalid_arg(format!(
                "structured output: compiling the form, and those before it, took more than {} seconds",
                LONGEST.as_secs()
            )))),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Some(Err(Error::internal("structured output: the compilation was interrupted")))
            }
        }
    }
}

/// Compiles forms for a vocabulary.
pub(crate) struct Compiler {
    vocabulary: Arc<dyn Vocabulary>,
    /// The thread that compiles, once there was something to compile.
    jobs: Option<mpsc::Sender<Job>>,
}

struct Job {
    structure: Structure,
    reply: mpsc::Sender<Result<Guide>>,
}

impl Compiler {
    pub(crate) fn new(vocabulary: Arc<dyn Vocabulary>) -> Self {
        Self { vocabulary, jobs: None }
    }

    /// Begins to compile a form.
    ///
    /// # Errors
    /// `Unavailable` if the system has no thread for it.
    pub(crate) fn begin(&mut self, structure: Structure) -> Result<Pending> {
        let unavailable =
            |error| Error::unavailable(format!("structured output: no thread to compile it: {error}"));
        if self.jobs.is_none() {
            let (jobs, received) = mpsc::channel();
            let vocabulary = Arc::clone(&self.vocabulary);
            let thread = thread::Builder::new().name("guides".to_owned()).stack_size(STACK);
            thread.spawn(move || compile_all(&*vocabulary, &received)).map_err(unavailable)?;
            self.jobs = Some(jobs);
        }
        let (reply, guide) = mpsc::channel();
        if let Some(jobs) = &self.jobs {
            // The thread ends with the sender only.
            _ = jobs.send(Job { structure, reply });
        }
        Ok(Pending { guide, deadline: Instant::now() + LONGEST })
    }
}

/// Compiles forms until the sender is dropped.
fn compile_all(vocabulary: &dyn Vocabulary, jobs: &mpsc::Receiver<Job>) {
    let factory = factory(vocabulary);
    let mut kept: Vec<(Structure, Matcher)> = Vec::new();
    for Job { structure, reply } in jobs {
        let known = kept.iter().position(|(known, _)| *known == structure);
        let matcher = match (known, &factory) {
            (Some(place), _) => {
                let entry = kept.remove(place);
                let matcher = entry.1.deep_clone();
                kept.push(entry);
                Ok(matcher)
            }
            (None, Ok(factory)) => compile(factory, &structure).inspect(|matcher| {
                if kept.len() == KEPT {
                    kept.remove(0);
                }
                kept.push((structure, matcher.deep_clone()));
            }),
            (None, Err(error)) => Err(error.clone()),
        };
        // A client that left needs no guide.
        _ = reply.send(matcher.map(|matcher| Guide { matcher, mask: SimpleVob::new() }));
    }
}

/// A parser factory for a vocabulary.
fn factory(vocabulary: &dyn Vocabulary) -> Result<ParserFactory> {
    let size = vocabulary.size();
    let mut ends = Vec::new();
    let mut pieces = Vec::with_capacity(size);
    for number in 0..size {
        let Ok(token) = Token::try_from(number) else { break };
        let mut piece = Vec::new();
        vocabulary.piece(token, false, &mut piece);
        if piece.is_empty() || vocabulary.is_end(token) {
            // Special tokens are no text. A byte that no text has sets them apart.
            piece = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            vocabulary.piece(token, true, &mut piece);
        }
        if vocabulary.is_end(token) {
            ends.extend(u32::try_from(token));
        }
        pieces.push(piece);
    }
    let failed = |error: String| {
        Error::unsupported(format!("structured output: the vocabulary cannot be used: {error}"))
    };
    let [first, ..] = ends.as_slice() else { return Err(failed("no token ends a text".to_owned())) };
    let size = u32::try_from(pieces.len()).map_err(|error| failed(error.to_string()))?;
    let trie = TokTrie::from(&TokRxInfo::new(size, *first), &pieces).with_eos_tokens(&ends);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = llguidance::earley::SlicedBiasComputer::general_slices();
    let factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices);
    let mut factory = factory.map_err(|error| failed(one_line(&error)))?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok(factory)
}

/// The limits of a form.
fn limits() -> ParserLimits {
    ParserLimits {
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

fn compile(factory: &ParserFactory, structure: &Structure) -> Result<Matcher> {
    let refused = |error: String| Error::invalid_arg(format!("structured output: {error}"));
    let grammar = grammar(structure).map_err(refused)?;
    let matcher = Matcher::new(factory.create_parser(grammar));
    match matcher.get_error() {
        Some(error) => Err(refused(one_line(&error))),
        None => Ok(matcher),
    }
}

fn grammar(structure: &Structure) -> std::result::Result<TopLevelGrammar, String> {
    Ok(match &structure.form {
        Form::Json(schema) => {
            check_schema(schema)?;
            TopLevelGrammar::from_json_schema(json_schema(schema, &structure.whitespace))
        }
        Form::Regex(regex) => {
            check_expression(regex)?;
            TopLevelGrammar::from_regex(regex)
        }
        // One expression, because a grammar has room for 2,000 alternatives.
        Form::Choice(texts) => {
            let texts: Vec<_> = texts.iter().map(|text| escaped(text)).collect();
            TopLevelGrammar::from_regex(&texts.join("|"))
        }
        Form::Grammar(grammar) => {
            let lark = if gbnf::is_gbnf(grammar) { gbnf::to_lark(grammar)? } else { grammar.clone() };
            check_grammar(&lark)?;
            TopLevelGrammar::from_lark(lark)
        }
    })
}

/// A regular expression for exactly this text.
fn escaped(text: &str) -> String {
    let escape = |character: char| match character.is_ascii_alphanumeric() {
        true => character.to_string(),
        false => format!("\\u{{{:x}}}", u32::from(character)),
    };
    text.chars().map(escape).collect()
}

fn check_expression(regex: &str) -> std::result::Result<(), String> {
    match regex.len() {
        0..=MAX_EXPRESSION => Ok(()),
        length => Err(format!(
            "a regular expression has {length} bytes, but at most {MAX_EXPRESSION} are supported"
        )),
    }
}

/// Refuses grammars that are too deep for the compiler's stack.
fn check_grammar(grammar: &str) -> std::result::Result<(), String> {
    if grammar.lines().count() > MAX_RULES {
        return Err(format!("the grammar has more than {MAX_RULES} lines"));
    }
    let mut depth = 0_usize;
    for byte in grammar.bytes() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("the grammar has more than {MAX_DEPTH} groups within each other"));
        }
    }
    Ok(())
}

/// Refuses schemas that take too long to compile.
fn check_schema(schema: &Value) -> std::result::Result<(), String> {
    match schema {
        Value::Object(fields) => {
            let properties = fields.get("properties").and_then(Value::as_object);
            if properties.is_some_and(|properties| properties.len() > MAX_PROPERTIES) {
                return Err(format!("the schema has an object with more than {MAX_PROPERTIES} properties"));
            }
            if let Some(pattern) = fields.get("pattern").and_then(Value::as_str) {
                check_expression(pattern)?;
            }
            let patterns = fields.get("patternProperties").and_then(Value::as_object);
            patterns.into_iter().flatten().try_for_each(|(pattern, _)| check_expression(pattern))?;
            fields.values().try_for_each(check_schema)
        }
        Value::Array(items) => items.iter().try_for_each(check_schema),
        _ => Ok(()),
    }
}

/// A schema with the compiler's own settings, which a request's schema cannot replace.
fn json_schema(schema: &Value, whitespace: &Whitespace) -> Value {
    let settings = match whitespace {
        Whitespace::Any => serde_json::json!({"whitespace_pattern": WHITESPACE}),
        Whitespace::None => serde_json::json!({"whitespace_flexible": false}),
        Whitespace::Pattern(pattern) => serde_json::json!({"whitespace_pattern": pattern}),
    };
    let mut schema = match schema {
        Value::Object(fields) => fields.clone(),
        // `false` matches nothing, anything else everything.
        other => {
            let mut fields = serde_json::Map::new();
            if *other == Value::Bool(false) {
                fields.insert("not".to_owned(), Value::Object(serde_json::Map::new()));
            }
            fields
        }
    };
    schema.insert("x-guidance".to_owned(), settings);
    Value::Object(schema)
}

#[cfg(test)]
mod tests;
