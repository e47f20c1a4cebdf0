//! Encrypted files: ChaCha20-Poly1305 in pieces, so that files need not fit into memory.
//!
//! A file begins with 7 random bytes. Pieces of 1 MiB follow, each with a tag of 16 bytes; only the last one is
//! shorter, and may be empty. A piece's nonce consists of those 7 bytes, its number as 4 big-endian bytes, and 1 for
//! the last piece or else 0. So pieces can neither be omitted nor exchanged. The additional data is the file's path in
//! the model, so that files cannot be exchanged either.

use std::io::{self, Read, Write};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// The length of a key.
pub const KEY: usize = 32;

const PREFIX: usize = 7;
const PIECE: usize = 1 << 20;
const TAG: usize = 16;

/// The key of encrypted files.
pub struct Key(LessSafeKey);

impl Key {
    /// # Errors
    /// The key does not have [`KEY`] bytes.
    pub fn new(bytes: &[u8]) -> io::Result<Self> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, bytes);
        let key = key.map_err(|_| invalid(&format!("the key has {} bytes, and not {KEY}", bytes.len())))?;
        Ok(Self(LessSafeKey::new(key)))
    }

    /// Decrypts the file with this path. Use the output only if the whole function succeeds.
    ///
    /// # Errors
    /// The file is malformed, was changed, or belongs to another key or path; or an error of the reader or writer.
    pub fn open(&self, path: &str, mut from: impl Read, mut to: impl Write) -> io::Result<()> {
        let mut prefix = [0; PREFIX];
        from.read_exact(&mut prefix).map_err(|_| invalid("the file is too short"))?;
        for number in 0.. {
            let mut piece = read_up_to(&mut from, PIECE + TAG)?;
            let is_last = piece.len() < PIECE + TAG;
            let opened = self.0.open_in_place(nonce(&prefix, number, is_last), Aad::from(path), &mut piece);
            let opened = opened.map_err(|_| {
                invalid("the file was changed, or belongs to another key or another place in the model")
            })?;
            to.write_all(opened)?;
            if is_last {
                return Ok(());
            }
        }
        Err(invalid("the file is too long"))
    }

    /// Encrypts the file with this path. Never use the same random bytes for two files.
    ///
    /// # Errors
    /// The file is too long, or an error of the reader or writer.
    pub fn seal(
        &self,
        path: &str,
        prefix: [u8; PREFIX],
        mut from: impl Read,
        mut to: impl Write,
    ) -> io::Result<()> {
        to.write_all(&prefix)?;
        for number in 0.. {
            let mut piece = read_up_to(&mut from, PIECE)?;
            let is_last = piece.len() < PIECE;
            let nonce = nonce(&prefix, number, is_last);
            let sealed = self.0.seal_in_place_append_tag(nonce, Aad::from(path), &mut piece);
            sealed.map_err(|_| io::Error::other("cannot encrypt"))?;
            to.write_all(&piece)?;
            if is_last {
                return Ok(());
            }
        }
        Err(invalid("the file is too long"))
    }
}

fn nonce(prefix: &[u8; PREFIX], number: u32, is_last: bool) -> Nonce {
    let mut nonce = [0; 12];
    nonce[..PREFIX].copy_from_slice(prefix);
    nonce[PREFIX..11].copy_from_slice(&number.to_be_bytes());
    nonce[11] = u8::from(is_last);
    Nonce::assume_unique_for_key(nonce)
}

/// The next `length` bytes, or what is left.
fn read_up_to(from: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length);
    from.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message.to_owned())
}
