//! Digests of files, computed in chunks.

use std::fmt;
use std::io::{self, Read};

use md5::{Digest as _, Md5};
use ring::digest::{Context, SHA256};

/// A digest algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Md5,
    Sha256,
    Blake3,
}

/// The size of a chunk.
const PIECE: usize = 1 << 20;

impl Algorithm {
    /// Finds an algorithm by name, in upper or lower case.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let known = [Self::Md5, Self::Sha256, Self::Blake3];
        known.into_iter().find(|algorithm| algorithm.to_string().eq_ignore_ascii_case(name))
    }

    /// The digest of everything that a reader returns, in hexadecimal digits.
    ///
    /// # Errors
    /// The reader's error.
    pub(super) fn digest(self, mut reader: impl Read) -> io::Result<String> {
        let mut hasher = match self {
            Self::Md5 => Hasher::Md5(Md5::new()),
            Self::Sha256 => Hasher::Sha256(Context::new(&SHA256)),
            Self::Blake3 => Hasher::Blake3(Box::default()),
        };
        let mut piece = vec![0; PIECE];
        loop {
            match reader.read(&mut piece) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(length) => hasher.update(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Md5 => "MD5",
            Self::Sha256 => "SHA256",
            Self::Blake3 => "BLAKE3",
        })
    }
}

enum Hasher {
    Md5(Md5),
    Sha256(Context),
    Blake3(Box<blake3::Hasher>),
}

impl Hasher {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(hasher) => hasher.update(bytes),
            Self::Sha256(hasher) => hasher.update(bytes),
            Self::Blake3(hasher) => drop(hasher.update(bytes)),
        }
    }

    fn finish(self) -> String {
        match self {
            Self::Md5(hasher) => hex(&hasher.finalize()),
            Self::Sha256(hasher) => hex(hasher.finish().as_ref()),
            Self::Blake3(hasher) => hex(hasher.finalize().as_bytes()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_usual_tools() {
        let long = vec![7; 3 * PIECE + 5];
        for (algorithm, bytes, expected) in [
            (Algorithm::Md5, &b""[..], "d41d8cd98f00b204e9800998ecf8427e"),
            (Algorithm::Md5, b"abc", "900150983cd24fb0d6963f7d28e17f72"),
            (Algorithm::Sha256, b"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (Algorithm::Blake3, b"abc", "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
            (Algorithm::Blake3, &long, &blake3::hash(&long).to_string()),
        ] {
            assert_eq!(algorithm.digest(bytes).unwrap(), expected, "{algorithm}");
        }
    }

    #[test]
    fn algorithms_have_names_in_any_case() {
        for (name, expected) in [
            ("MD5", Some(Algorithm::Md5)),
            ("md5", Some(Algorithm::Md5)),
            ("Sha256", Some(Algorithm::Sha256)),
            ("BLAKE3", Some(Algorithm::Blake3)),
            ("SHA1", None),
            ("", None),
        ] {
            assert_eq!(Algorithm::parse(name), expected, "{name}");
        }
    }
}
