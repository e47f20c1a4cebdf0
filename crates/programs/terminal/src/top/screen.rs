//! A terminal that is ours until the end: keys arrive one by one, and each frame fills it.

use std::io::{self, Read as _, Stdout, Write as _, stdin, stdout};
use std::thread;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::sync::mpsc;

/// The other screen, without a cursor and without wrapped lines.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The size where the terminal does not know its own.
const USUAL: (usize, usize) = (80, 24);

/// The terminal of the process. It is as before when this is dropped.
pub(super) struct Screen {
    out: Stdout,
    before: Termios,
    shown: String,
}

impl Screen {
    /// Takes the terminal.
    pub(super) fn enter() -> io::Result<Self> {
        let before = tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(stdin(), OptionalActions::Flush, &raw)?;
        let mut screen = Self { out: stdout(), before, shown: String::new() };
        screen.write(ENTER);
        Ok(screen)
    }

    /// Shows a frame made for the width and height of the terminal.
    pub(super) fn draw(&mut self, frame: impl FnOnce(usize, usize) -> Vec<String>) {
        let size = tcgetwinsize(&self.out).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let (width, height) = size.map_or(USUAL, |size| (size.ws_col.into(), size.ws_row.into()));
        let lines = frame(width, height).into_iter().take(height).map(|line| format!("{line}\x1b[0m\x1b[K"));
        let text = format!("\x1b[H{}\x1b[J", lines.collect::<Vec<_>>().join("\r\n"));
        if text != self.shown {
            self.write(&text);
            self.shown = text;
        }
    }

    /// A closed terminal is not a failure: its signal ends the process.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.write(LEAVE);
        let _ = tcsetattr(stdin(), OptionalActions::Flush, &self.before);
    }
}

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Character(char),
    Enter,
    Escape,
    Interrupt,
    Backspace,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

/// The keys of the terminal, from now on.
pub(super) fn keys() -> io::Result<mpsc::Receiver<Key>> {
    let (pressed, keys) = mpsc::channel(64);
    // Reading blocks, so it has a thread of its own, which ends with the process.
    thread::Builder::new().name("nereid-keys".into()).spawn(move || {
        let mut bytes = [0; 256];
        while let Ok(count @ 1..) = stdin().lock().read(&mut bytes) {
            for key in parse(&bytes[..count]) {
                if pressed.blocking_send(key).is_err() {
                    return;
                }
            }
        }
    })?;
    Ok(keys)
}

/// The keys in what a terminal sends. A sequence for a key arrives as a whole.
fn parse(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let text = String::from_utf8_lossy(bytes);
    let mut rest = &*text;
    while let Some(first) = rest.chars().next() {
        rest = &rest[first.len_utf8()..];
        if first == '\x1b'
            && let Some(sequence) = rest.strip_prefix(['[', 'O'])
        {
            let end = sequence
                .find(|end: char| end.is_ascii_alphabetic() || end == '~')
                .map_or(sequence.len(), |end| end + 1);
            let (name, behind) = sequence.split_at(end);
            rest = behind;
            keys.extend(named(name));
            continue;
        }
        keys.extend(match first {
            '\x1b' => Some(Key::Escape),
            '\x03' | '\x04' => Some(Key::Interrupt),
            '\r' | '\n' => Some(Key::Enter),
            '\x7f' | '\x08' => Some(Key::Backspace),
            other => (!other.is_control()).then_some(Key::Character(other)),
        });
    }
    keys
}

fn named(sequence: &str) -> Option<Key> {
    Some(match sequence {
        "A" => Key::Up,
        "B" => Key::Down,
        "C" => Key::Right,
        "D" => Key::Left,
        "H" | "1~" | "7~" => Key::Home,
        "F" | "4~" | "8~" => Key::End,
        "5~" => Key::PageUp,
        "6~" => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sequences_are_keys() {
        use Key::*;
        for (bytes, expected) in [
            (&b"q"[..], &[Character('q')][..]),
            ("/ü\r".as_bytes(), &[Character('/'), Character('ü'), Enter]),
            (b"\x1b", &[Escape]),
            (b"\x03", &[Interrupt]),
            (b"\x1b[A\x1b[B\x1bOC\x1b[D", &[Up, Down, Right, Left]),
            (b"\x1b[5~\x1b[6~\x1b[H\x1b[4~", &[PageUp, PageDown, Home, End]),
            (b"\x1b[1;5Cx", &[Character('x')]),
            (b"\x1b[200~", &[]),
            (b"a\x7f\x01b", &[Character('a'), Backspace, Character('b')]),
        ] {
            assert_eq!(parse(bytes), expected, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in any::<Vec<u8>>()) {
            prop_assert!(parse(&bytes).len() <= String::from_utf8_lossy(&bytes).chars().count());
        }
    }
}
