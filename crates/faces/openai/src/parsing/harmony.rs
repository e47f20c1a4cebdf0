//! OpenAI's harmony format, which gpt-oss writes: messages with a header, in channels.
//!
//! `<|channel|>analysis<|message|>..<|end|>` is reasoning, `<|channel|>final<|message|>..<|return|>` the answer, and
//! `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{..}<|call|>` a tool call. The recipient may also precede
//! the channel, and calls occur in `analysis`, too. The prompt ends within the header of the first message.

use std::sync::Arc;

use super::Part;
use crate::search::{Search, search};
use crate::tools::Tool;

/// The mark in front of a channel, by which templates of this format are recognised.
pub(crate) const CHANNEL: &str = "<|channel|>";
const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
const CONSTRAIN: &str = "<|constrain|>";
/// The ends of a message.
const ENDS: [&str; 3] = ["<|end|>", "<|return|>", "<|call|>"];
/// The ends of a message's content. The start of the next message is one if the end is missing.
const CONTENT_ENDS: [&str; 4] = ["<|end|>", "<|return|>", "<|call|>", START];
/// The ends of a header.
const HEADER_ENDS: [&str; 4] = [MESSAGE, "<|end|>", "<|return|>", "<|call|>"];

const ASSISTANT: &str = "assistant";
/// The mark of a message's recipient.
const RECIPIENT: &str = "to=";
/// The namespace of a request's tools.
const FUNCTIONS: &str = "functions.";

/// The longest header, in bytes. A longer one is text of a model that writes no messages.
const LONGEST_HEADER: usize = 1024;

/// The header of an answer.
pub(crate) const FINAL_HEADER: &str = "<|channel|>final<|message|>";

/// The header of a message that calls this function.
pub(crate) fn call_header(function: &str) -> String {
    format!("{CHANNEL}commentary to={FUNCTIONS}{function} {CONSTRAIN}json{MESSAGE}")
}

/// Reads the messages of an output.
#[derive(Debug)]
pub(super) struct Harmony {
    /// The tools that may be called; `None` if none may.
    tools: Option<Arc<[Tool]>>,
    held: String,
    place: Place,
    /// The kind of the last message with text.
    last: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Header,
    /// In a message whose text is passed on if `is_begun`.
    Content {
        kind: Kind,
        is_begun: bool,
    },
    /// In text without messages.
    Plain,
}

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Answer,
    Reasoning,
    /// The arguments of a call.
    Arguments,
    /// A message that is not the assistant's.
    Foreign,
}

impl Harmony {
    /// A reader of an output, of which the prompt holds this beginning of a message.
    pub(super) fn new(tools: Option<Arc<[Tool]>>, beginning: &str) -> Self {
        let mut harmony = Self { tools, held: String::new(), place: Place::Header, last: None };
        harmony.push(beginning.strip_prefix(ASSISTANT).unwrap_or(beginning), &mut Vec::new());
        harmony.last = None;
        harmony
    }

    pub(super) fn push(&mut self, piece: &str, parts: &mut Vec<Part>) {
        self.held.push_str(piece);
        while self.advance(parts) {}
    }

    /// Reads up to the next mark. Returns false if that takes more of the output.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.place {
            Place::Plain => {
                let text = std::mem::take(&mut self.held);
                self.text(Kind::Answer, true, text, parts);
                false
            }
            Place::Header => match search(&self.held, &HEADER_ENDS) {
                Search::Found { start, end, which } if start <= LONGEST_HEADER => {
                    let rest = self.held.split_off(end);
                    let text = std::mem::replace(&mut self.held, rest);
                    self.header(text.get(..start).unwrap_or_default(), which == 0, parts);
                    true
                }
                _ => {
                    let is_plain = self.held.len() > LONGEST_HEADER + MESSAGE.len();
                    if is_plain {
                        self.place = Place::Plain;
                    }
                    is_plain
                }
            },
            Place::Content { kind, is_begun } => {
                let (end, mark) = match search(&self.held, &CONTENT_ENDS) {
                    Search::Found { start, end, which } => (start, Some((end, which))),
                    Search::Missing { safe } => (safe, None),
                };
                let text: String = self.held.drain(..end).collect();
                self.text(kind, is_begun, text, parts);
                let Some((after, which)) = mark else { return false };
                if which < ENDS.len() {
                    self.held.drain(..after - end);
                }
                self.end(parts);
                true
            }
        }
    }

    /// Reads a header. Without the mark behind it, its text is the message.
    fn header(&mut self, text: &str, has_message: bool, parts: &mut Vec<Part>) {
        let header = Header::read(text);
        if !header.outside.is_empty() {
            self.text(Kind::Answer, false, header.outside.to_owned(), parts);
        }
        let kind = self.kind(&header);
        if has_message {
            if kind == Kind::Arguments {
                parts.push(Part::Call(header.function().to_owned()));
            }
            self.place = Place::Content { kind, is_begun: false };
        } else if header.recipient.is_none() {
            self.text(kind, false, header.behind.to_owned(), parts);
        }
    }

    fn kind(&self, header: &Header<'_>) -> Kind {
        if header.role.is_some_and(|role| role != ASSISTANT) {
            return Kind::Foreign;
        }
        if let (Some(recipient), Some(tools)) = (header.recipient, &self.tools)
            && (recipient.starts_with(FUNCTIONS) || tools.iter().any(|tool| tool.name == recipient))
        {
            return Kind::Arguments;
        }
        match (header.channel, header.recipient) {
            // Other recipients are tools that the model was trained with, which it uses within its reasoning.
            (Some("analysis"), _) | (_, Some(_)) => Kind::Reasoning,
            _ => Kind::Answer,
        }
    }

    /// Passes on text of a message.
    fn text(&mut self, kind: Kind, is_begun: bool, text: String, parts: &mut Vec<Part>) {
        let text = if is_begun || kind != Kind::Arguments { text } else { text.trim_start().to_owned() };
        if text.is_empty() {
            return;
        }
        // Messages of the same kind are paragraphs.
        let text = if !is_begun && self.last == Some(kind) { format!("\n{text}") } else { text };
        match kind {
            Kind::Answer => parts.push(Part::Content(text)),
            Kind::Reasoning => parts.push(Part::Reasoning(text)),
            Kind::Arguments => parts.push(Part::Arguments(text)),
            Kind::Foreign => {}
        }
        if matches!(kind, Kind::Answer | Kind::Reasoning) {
            self.last = Some(kind);
        }
        if let Place::Content { is_begun, .. } = &mut self.place {
            *is_begun = true;
        }
    }

    /// Ends a message.
    fn end(&mut self, parts: &mut Vec<Part>) {
        if self.place == (Place::Content { kind: Kind::Arguments, is_begun: false }) {
            parts.push(Part::Arguments("{}".to_owned()));
        }
        self.place = Place::Header;
    }

    /// Passes on the rest of an output that has ended.
    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) {
        let rest = std::mem::take(&mut self.held);
        match self.place {
            Place::Content { kind, is_begun } => {
                self.text(kind, is_begun, rest, parts);
                self.end(parts);
            }
            Place::Plain => self.text(Kind::Answer, true, rest, parts),
            Place::Header if rest.contains(START) || rest.contains(CHANNEL) => {
                self.header(&rest, false, parts)
            }
            Place::Header => {
                let text = rest.strip_prefix(ASSISTANT).unwrap_or(&rest).to_owned();
                if !text.trim().is_empty() {
                    self.text(Kind::Answer, false, text, parts);
                }
            }
        }
    }
}

/// The header of a message.
#[derive(Debug, Default, PartialEq, Eq)]
struct Header<'a> {
    /// Text in front of the header.
    outside: &'a str,
    /// `None` if the prompt has it.
    role: Option<&'a str>,
    channel: Option<&'a str>,
    recipient: Option<&'a str>,
    /// The text behind the channel.
    behind: &'a str,
}

impl<'a> Header<'a> {
    fn read(text: &'a str) -> Self {
        let mut header = Self::default();
        let text = match text.rsplit_once(START) {
            Some((outside, text)) => {
                header.outside = outside.trim();
                let (role, text) = first_word(text);
                header.role = Some(role);
                text
            }
            None => {
                let begin = [CHANNEL, RECIPIENT].iter().filter_map(|mark| text.find(mark)).min();
                let (outside, text) =
                    text.split_at_checked(begin.unwrap_or(text.len())).unwrap_or((text, ""));
                let outside = outside.trim();
                header.outside = outside.strip_suffix(ASSISTANT).map_or(outside, str::trim_end);
                text
            }
        };
        let mut sections = text.split(CHANNEL);
        header.words(sections.next().unwrap_or_default());
        for section in sections {
            let (channel, behind) = first_word(section);
            header.channel = Some(channel);
            header.behind = behind.trim();
            header.words(behind);
        }
        header
    }

    /// Looks for a recipient. Other words name the type of the content.
    fn words(&mut self, text: &'a str) {
        for word in text.split_whitespace().flat_map(|word| word.split(CONSTRAIN)) {
            let named = word.strip_prefix(RECIPIENT).or(word.starts_with(FUNCTIONS).then_some(word));
            // These names are not tools.
            let named = named.filter(|recipient| !matches!(*recipient, "all" | "user" | ASSISTANT));
            self.recipient = named.or(self.recipient);
        }
    }

    /// The name of the function that is called.
    fn function(&self) -> &'a str {
        let recipient = self.recipient.unwrap_or_default();
        recipient.strip_prefix(FUNCTIONS).unwrap_or(recipient)
    }
}

/// The first word of a text, up to whitespace or a mark, and what follows.
fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    let is_end = |character: char| character.is_whitespace() || character == '<';
    text.split_at_checked(text.find(is_end).unwrap_or(text.len())).unwrap_or((text, ""))
}
