//! Digests of files that stores give, by which what arrives is checked.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::Receiver;

use md5::{Digest as _, Md5};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// A digest that a file should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    pub algorithm: Algorithm,
    pub hex: String,
}

/// How a digest is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// What ETags of buckets may be.
    Md5,
    Sha256,
    /// Git's, of a file's length and contents.
    Git,
}

impl Expected {
    /// The digest that an ETag is, or may be: hubs say which it is.
    pub(crate) fn of_etag(etag: &str) -> Option<Self> {
        let (algorithm, hex, length) = match etag.split_once(':') {
            Some(("sha256", hex)) => (Algorithm::Sha256, hex, 64),
            Some(("git", hex)) => (Algorithm::Git, hex, 40),
            Some(_) => return None,
            None => (Algorithm::Md5, etag, 32),
        };
        let is_digest = hex.len() == length && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_digest.then(|| Self { algorithm, hex: hex.to_ascii_lowercase() })
    }

    /// Whether it is a digest for sure, and not what only looks like one.
    pub(crate) fn is_certain(&self) -> bool {
        self.algorithm != Algorithm::Md5
    }
}

enum Hasher {
    Md5(Md5),
    Ring(Context),
}

impl Hasher {
    fn new(algorithm: Algorithm, size: u64) -> Self {
        match algorithm {
            Algorithm::Md5 => Self::Md5(Md5::new()),
            Algorithm::Sha256 => Self::Ring(Context::new(&SHA256)),
            Algorithm::Git => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                Self::Ring(context)
            }
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(hasher) => hasher.update(bytes),
            Self::Ring(context) => context.update(bytes),
        }
    }

    fn finish(self) -> String {
        match self {
            Self::Md5(hasher) => hex(&hasher.finalize()),
            Self::Ring(context) => hex(context.finish().as_ref()),
        }
    }
}

/// The digest of a file of this size, whose bytes are read as soon as they are there: `ready` tells up to where they are.
pub(crate) fn digest(
    algorithm: Algorithm,
    file: &File,
    size: u64,
    ready: &Receiver<u64>,
) -> io::Result<String> {
    let (mut hasher, mut from, mut buffer) = (Hasher::new(algorithm, size), 0, vec![0; 1 << 20]);
    while from < size {
        let end = ready.recv().map_err(io::Error::other)?.min(size);
        while from < end {
            let length = usize::try_from(end - from).unwrap_or(usize::MAX).min(buffer.len());
            file.read_exact_at(&mut buffer[..length], from)?;
            hasher.update(&buffer[..length]);
            from += length as u64;
        }
    }
    Ok(hasher.finish())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn digests_are_those_of_other_programs() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        for (algorithm, expected) in [
            (Algorithm::Md5, "900150983cd24fb0d6963f7d28e17f72"),
            (Algorithm::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            // `git hash-object`
            (Algorithm::Git, "f2ba8f84ab5c1bce84a7b441cb1959cfc7093b7f"),
        ] {
            let (sender, ready) = channel();
            for end in [1, 2, 8] {
                sender.send(end).unwrap();
            }
            assert_eq!(digest(algorithm, &file, 3, &ready).unwrap(), expected);
        }
    }

    #[test]
    fn an_etag_is_a_digest_if_it_looks_like_one() {
        let md5 = "900150983CD24fb0d6963f7d28e17f72";
        let expected = Expected::of_etag(md5).unwrap();
        assert_eq!((expected.hex, expected.algorithm), (md5.to_lowercase(), Algorithm::Md5));
        assert!(Expected::of_etag(&format!("sha256:{}", "a".repeat(64))).unwrap().is_certain());
        assert!(Expected::of_etag(&format!("git:{}", "a".repeat(40))).unwrap().is_certain());
        for other in
            ["", "0x8D93C7D4629C227", "d41d8cd98f00b204e9800998ecf8427e-2", "sha256:ab", "git:", "x:y"]
        {
            assert_eq!(Expected::of_etag(other), None, "{other}");
        }
    }
}
