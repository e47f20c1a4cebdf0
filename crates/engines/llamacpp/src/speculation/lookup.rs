//! Guesses by lookup: what followed the last tokens where they occurred before.

use std::iter;

use super::Unfinished;
use crate::engine::Token;

/// The fewest and the most tokens that have to occur again.
const SHORTEST: usize = 2;
const LONGEST: usize = 5;

/// Guesses what follows a text by its longest ending that occurred before, and of several the last one.
pub(super) fn guess(text: &Unfinished<'_>) -> Vec<Token> {
    let Unfinished { tokens, next, most, .. } = *text;
    let mut best: Option<(usize, usize)> = None;
    for (place, _) in tokens.iter().enumerate().rev().filter(|(_, token)| **token == next) {
        let before = tokens.iter().take(place).rev().zip(tokens.iter().rev());
        let length = 1 + before.take(LONGEST - 1).take_while(|(one, other)| one == other).count();
        if length >= SHORTEST && best.is_none_or(|(known, _)| length > known) {
            best = Some((length, place));
        }
        if length == LONGEST {
            break;
        }
    }
    let Some((_, place)) = best else { return Vec::new() };
    let mut guess = Vec::with_capacity(most);
    // A text that repeats itself goes on with the guess.
    for place in (place + 1..).take(most) {
        let held = tokens.iter().copied().chain(iter::once(next)).nth(place);
        let token = held.or_else(|| guess.get(place.checked_sub(tokens.len() + 1)?).copied());
        guess.extend(token);
    }
    guess
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guessed(text: &str, most: usize) -> String {
        let tokens: Vec<Token> = text.bytes().map(Token::from).collect();
        let (next, tokens) = tokens.split_last().unwrap();
        let guess = guess(&Unfinished { sequence: 0, tokens, next: *next, most });
        guess.into_iter().map(|token| char::from(u8::try_from(token).unwrap())).collect()
    }

    #[test]
    fn longest_and_last_occurrence_is_continued() {
        for (text, most, expected) in [
            ("a", 4, ""),
            ("abc", 4, ""),
            ("xaya", 4, ""),
            ("abcdab", 2, "cd"),
            ("abcdab", 0, ""),
            ("abcdab", 7, "cdabcda"),
            ("aaa", 3, "aaa"),
            // The last one of two.
            ("ab1 ab2 ab", 1, "2"),
            // The longer one, though another one is later.
            ("xyzab1 ab2 xyzab", 2, "1 "),
            // Longer endings than five tokens are equal.
            ("0vwxyzab1 1vwxyzab2 0vwxyzab", 1, "2"),
        ] {
            assert_eq!(guessed(text, most), expected, "{text}");
        }
    }
}
