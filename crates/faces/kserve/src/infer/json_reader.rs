//! A reader of JSON that can leave a part of its text to others.

use std::ops::{Deref, DerefMut};

use jiter::Jiter;

/// A [`Jiter`], and its text.
pub(super) struct JsonReader<'j> {
    text: &'j [u8],
    /// Where the reader's text starts in `text`.
    start: usize,
    reader: Jiter<'j>,
    is_exact: bool,
}

impl<'j> JsonReader<'j> {
    pub(super) fn new(text: &'j [u8]) -> Self {
        Self { text, start: 0, reader: reader(text), is_exact: false }
    }

    /// A reader whose errors have their positions in the whole text, because it never [moves on](Self::move_on).
    pub(super) fn exact(text: &'j [u8]) -> Self {
        Self { is_exact: true, ..Self::new(text) }
    }

    /// The position in the whole text.
    pub(super) fn position(&self) -> usize {
        self.start + self.reader.current_index()
    }

    /// The rest of the text, if the reader may [move on](Self::move_on).
    pub(super) fn rest(&self) -> Option<&'j [u8]> {
        self.text.get(self.position()..).filter(|_| !self.is_exact)
    }

    /// Continues behind the next `count` bytes.
    pub(super) fn move_on(&mut self, count: usize) {
        self.start = self.position() + count;
        self.reader = reader(self.text.get(self.start..).unwrap_or_default());
    }
}

fn reader(text: &[u8]) -> Jiter<'_> {
    Jiter::new(text).with_allow_inf_nan()
}

impl<'j> Deref for JsonReader<'j> {
    type Target = Jiter<'j>;

    fn deref(&self) -> &Jiter<'j> {
        &self.reader
    }
}

impl<'j> DerefMut for JsonReader<'j> {
    fn deref_mut(&mut self) -> &mut Jiter<'j> {
        &mut self.reader
    }
}
