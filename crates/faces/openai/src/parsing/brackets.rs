//! Where values of JSON end: brackets and strings of a text that arrives in pieces. What is between them is not checked.

/// The open brackets and strings at a place of a text.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Brackets {
    depth: usize,
    is_string: bool,
    is_escaped: bool,
}

impl Brackets {
    /// Moves behind the next character.
    pub(super) fn push(&mut self, character: char) {
        if self.is_string {
            match character {
                _ if self.is_escaped => self.is_escaped = false,
                '\\' => self.is_escaped = true,
                '"' => self.is_string = false,
                _ => {}
            }
            return;
        }
        match character {
            '"' => self.is_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
    }

    /// The number of open brackets.
    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    /// Whether the place is within a string, behind its first quote.
    pub(super) fn is_string(&self) -> bool {
        self.is_string
    }
}
