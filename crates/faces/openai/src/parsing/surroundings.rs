//! The text around tool calls. Marks and whitespace in front of a call are no content; in front of anything else they are.

use super::Part;

/// Passes on the text around calls.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// Text that is content unless a call follows.
    gap: String,
    has_called: bool,
}

impl Surroundings {
    /// Passes on text. Whitespace at its end waits for what follows.
    pub(super) fn text(&mut self, text: &str, parts: &mut Vec<Part>) {
        let end = text.trim_end().len();
        let (text, whitespace) = text.split_at_checked(end).unwrap_or((text, ""));
        if !text.is_empty() {
            self.gap.push_str(text);
            parts.push(Part::Content(std::mem::take(&mut self.gap)));
        }
        self.gap.push_str(whitespace);
    }

    /// Adds a mark, which is content unless a call follows.
    pub(super) fn mark(&mut self, mark: &str) {
        self.gap.push_str(mark);
    }

    /// Whether a call was found.
    pub(super) fn has_called(&self) -> bool {
        self.has_called
    }

    /// Drops what is between calls.
    pub(super) fn clear(&mut self) {
        self.gap.clear();
    }

    /// Looks for a call among the parts from this one on. Returns whether there is one.
    pub(super) fn note_calls(&mut self, parts: &[Part], from: usize) -> bool {
        let new = parts.get(from..).unwrap_or_default();
        let is_call = new.iter().any(|part| matches!(part, Part::Call(_)));
        if is_call {
            self.gap.clear();
            self.has_called = true;
        }
        is_call
    }

    /// Passes on the rest of a text that has ended.
    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) {
        let rest = std::mem::take(&mut self.gap);
        let is_dropped = rest.is_empty() || (self.has_called && rest.trim().is_empty());
        if !is_dropped {
            parts.push(Part::Content(rest));
        }
    }
}
