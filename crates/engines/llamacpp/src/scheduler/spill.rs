//! Saved states of sequences: prefixes that left the engine's cache stay in files for requests that begin with the same tokens.
//!
//! The files have no names: they vanish with the process, and no other program can open them. Failures are warnings in the log, and cost
//! another evaluation.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;

use super::Owner;
use crate::engine::Token;

/// Evaluating fewer tokens costs about as much as a file.
const LEAST: usize = 128;

/// The most files: each one is a descriptor of the process.
const MAX_FILES: usize = 256;

/// Saved states, the most recently used ones up to a size.
pub(crate) struct Spill {
    /// The most bytes.
    room: u64,
    /// The fewest tokens that are worth a file.
    pub(super) least: usize,
    size: u64,
    prefixes: Vec<Prefix>,
    uses: u64,
    /// Whether the last file could not be written, which is not reported again.
    is_failing: bool,
}

/// The saved state of a sequence.
struct Prefix {
    tokens: Vec<Token>,
    owner: Owner,
    adapter: Option<usize>,
    file: File,
    size: u64,
    /// The number of the last use.
    used: u64,
}

/// A state read from its file.
pub(super) struct State {
    pub(super) bytes: Vec<u8>,
    /// The tokens of the sequence.
    pub(super) tokens: usize,
    /// The number of tokens that the sequence and the prompt have in common.
    pub(super) common: usize,
}

impl Spill {
    /// Up to this many bytes.
    pub(crate) fn new(room: u64) -> Self {
        Self { room, least: LEAST, size: 0, prefixes: Vec::new(), uses: 0, is_failing: false }
    }

    /// Whether a saved sequence begins with these tokens.
    pub(super) fn holds(&self, tokens: &[Token], owner: &Owner, adapter: Option<usize>) -> bool {
        self.prefixes.iter().any(|prefix| prefix.common(tokens, owner, adapter) == tokens.len())
    }

    /// Saves the state of a sequence with these tokens. Drops states of its prefixes and, to make room, the least recently used ones.
    pub(super) fn put(&mut self, tokens: &[Token], owner: &Owner, adapter: Option<usize>, state: &[u8]) {
        let size = state.len() as u64;
        if size > self.room {
            return;
        }
        self.drop_where(|prefix| prefix.common(tokens, owner, adapter) == prefix.tokens.len());
        while self.size + size > self.room || self.prefixes.len() >= MAX_FILES {
            let Some(oldest) = self.prefixes.iter().map(|prefix| prefix.used).min() else { break };
            self.drop_where(|prefix| prefix.used == oldest);
        }
        match write(state) {
            Ok(file) => {
                self.is_failing = false;
                self.uses += 1;
                self.size += size;
                let (tokens, owner) = (tokens.to_vec(), owner.clone());
                self.prefixes.push(Prefix { tokens, owner, adapter, file, size, used: self.uses });
            }
            Err(error) if !self.is_failing => {
                tracing::warn!("cached prefixes cannot be kept in files: {error}");
                self.is_failing = true;
            }
            Err(_) => {}
        }
    }

    /// The state with the longest common prefix, of `least` tokens or more.
    pub(super) fn get(
        &mut self,
        prompt: &[Token],
        owner: &Owner,
        adapter: Option<usize>,
        least: usize,
    ) -> Option<State> {
        let common = |prefix: &Prefix| prefix.common(prompt, owner, adapter);
        let longest = self.prefixes.iter_mut().max_by_key(|prefix| common(prefix))?;
        let common = common(longest);
        if common < least {
            return None;
        }
        self.uses += 1;
        longest.used = self.uses;
        let mut bytes = vec![0; usize::try_from(longest.size).ok()?];
        match longest.file.read_exact_at(&mut bytes, 0) {
            Ok(()) => Some(State { bytes, tokens: longest.tokens.len(), common }),
            Err(error) => {
                tracing::warn!("a cached prefix cannot be read from its file: {error}");
                let used = self.uses;
                self.drop_where(|prefix| prefix.used == used);
                None
            }
        }
    }

    fn drop_where(&mut self, is_dropped: impl Fn(&Prefix) -> bool) {
        let size = &mut self.size;
        self.prefixes.retain(|prefix| {
            let is_dropped = is_dropped(prefix);
            *size -= if is_dropped { prefix.size } else { 0 };
            !is_dropped
        });
    }
}

impl Prefix {
    /// The length of the common prefix with a prompt.
    fn common(&self, prompt: &[Token], owner: &Owner, adapter: Option<usize>) -> usize {
        if self.owner != *owner || self.adapter != adapter {
            return 0;
        }
        self.tokens.iter().zip(prompt).take_while(|(held, wanted)| held == wanted).count()
    }
}

fn write(state: &[u8]) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(state)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(flow: u64) -> Owner {
        Owner { flow, salt: String::new() }
    }

    /// The state for a prompt, and the length of the common prefix.
    fn found(
        spill: &mut Spill,
        prompt: &[Token],
        owner: &Owner,
        adapter: Option<usize>,
    ) -> Option<(Vec<u8>, usize)> {
        spill.get(prompt, owner, adapter, 1).map(|state| (state.bytes, state.common))
    }

    #[test]
    fn the_longest_common_beginning_of_the_same_owner_and_adapter_is_found() {
        let mut spill = Spill::new(100);
        spill.put(&[1, 2, 3], &owner(1), None, b"one");
        spill.put(&[1, 2, 9, 9], &owner(1), None, b"other");
        spill.put(&[1, 2, 3, 4], &owner(2), None, b"theirs");
        spill.put(&[1, 2, 3, 4], &owner(1), Some(0), b"adapted");
        for (prompt, flow, adapter, expected) in [
            (&[1, 2, 3, 4][..], 1, None, Some((&b"one"[..], 3))),
            (&[1, 2, 9], 1, None, Some((b"other", 3))),
            (&[1, 2, 3, 4], 2, None, Some((b"theirs", 4))),
            (&[1, 2, 3, 4], 1, Some(0), Some((b"adapted", 4))),
            (&[1, 2, 3, 4], 1, Some(1), None),
            (&[1, 2, 3, 4], 3, None, None),
            (&[2], 1, None, None),
            (&[], 1, None, None),
        ] {
            let found = found(&mut spill, prompt, &owner(flow), adapter);
            let expected = expected.map(|(bytes, common)| (bytes.to_vec(), common));
            assert_eq!(found, expected, "{prompt:?} {flow} {adapter:?}");
        }
        assert!(spill.get(&[1, 2, 3], &owner(1), None, 4).is_none());
        assert!(spill.holds(&[1, 2], &owner(1), None) && !spill.holds(&[1, 2, 4], &owner(1), None));
    }

    #[test]
    fn longer_files_replace_their_beginnings() {
        let mut spill = Spill::new(100);
        for (tokens, state) in [(&[1][..], "a"), (&[1, 2], "ab"), (&[3], "c"), (&[1, 2, 4], "abd")] {
            spill.put(tokens, &owner(1), None, state.as_bytes());
        }
        assert_eq!((spill.prefixes.len(), spill.size), (2, 4));
    }

    #[test]
    fn the_least_recently_used_leave_first() {
        let mut spill = Spill::new(10);
        for token in 1..=3 {
            spill.put(&[token], &owner(1), None, b"xxx");
        }
        assert!(spill.get(&[1], &owner(1), None, 1).is_some());
        spill.put(&[4], &owner(1), None, b"xxxx");
        let left: Vec<_> = (1..=4).filter(|token| spill.holds(&[*token], &owner(1), None)).collect();
        assert_eq!((left, spill.size), (vec![1, 3, 4], 10));
        spill.put(&[5], &owner(1), None, b"more than there is room");
        assert!(!spill.holds(&[5], &owner(1), None) && spill.holds(&[4], &owner(1), None));
        for token in 10..Token::try_from(MAX_FILES).unwrap() + 20 {
            spill.put(&[token], &owner(1), None, b"");
        }
        assert_eq!(spill.prefixes.len(), MAX_FILES);
    }

    #[test]
    fn files_that_cannot_be_read_are_dropped() {
        let mut spill = Spill::new(100);
        spill.put(&[1], &owner(1), None, b"state");
        spill.prefixes[0].file.set_len(2).unwrap();
        assert!(spill.get(&[1], &owner(1), None, 1).is_none());
        assert_eq!((spill.prefixes.len(), spill.size), (0, 0));
    }
}
