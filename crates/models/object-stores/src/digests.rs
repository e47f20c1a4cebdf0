//! Digests of files, as stores report them, to check what arrives.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::Receiver;

use crc_fast::CrcAlgorithm;
use md5::{Digest as _, Md5};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// The expected digest of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExpectedDigest {
    pub algorithm: Algorithm,
    pub hex: String,
    /// Whether this is certainly a digest. An ETag may only look like one.
    pub is_certain: bool,
}

/// A digest algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// The algorithm that buckets may use for ETags.
    Md5,
    Sha1,
    Sha256,
    /// Git's, of a file's length and contents.
    Git,
    Crc32,
    Crc32c,
    Crc64Nvme,
}

impl Algorithm {
    /// The length of the digest in bytes.
    pub(crate) fn length(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Md5 => 16,
            Self::Sha1 | Self::Git => 20,
            Self::Sha256 => 32,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Md5 => "MD5",
            Self::Sha1 => "SHA-1",
            Self::Sha256 => "SHA-256",
            Self::Git => "Git hash",
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
        })
    }
}

impl ExpectedDigest {
    /// The digest that an ETag contains or may contain. ETags of hubs name the algorithm.
    pub(crate) fn of_etag(etag: &str) -> Option<Self> {
        let (algorithm, hex) = match etag.split_once(':') {
            Some(("sha256", hex)) => (Algorithm::Sha256, hex),
            Some(("git", hex)) => (Algorithm::Git, hex),
            Some(_) => return None,
            None => (Algorithm::Md5, etag),
        };
        let is_digest =
            hex.len() == 2 * algorithm.length() && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_certain = algorithm != Algorithm::Md5;
        is_digest.then(|| Self { algorithm, hex: hex.to_ascii_lowercase(), is_certain })
    }
}

enum Hasher {
    Md5(Md5),
    Ring(Context),
    Crc(crc_fast::Digest, usize),
}

impl Hasher {
    fn new(algorithm: Algorithm, size: u64) -> Self {
        let crc = |of| Self::Crc(crc_fast::Digest::new(of), 2 * algorithm.length());
        match algorithm {
            Algorithm::Crc32 => crc(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => crc(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => crc(CrcAlgorithm::Crc64Nvme),
            Algorithm::Md5 => Self::Md5(Md5::new()),
            Algorithm::Sha1 => Self::Ring(Context::new(&SHA1_FOR_LEGACY_USE_ONLY)),
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
            Self::Crc(digest, _) => digest.update(bytes),
        }
    }

    fn finish(self) -> String {
        match self {
            Self::Md5(hasher) => hex(&hasher.finalize()),
            Self::Ring(context) => hex(context.finish().as_ref()),
            Self::Crc(digest, width) => format!("{:0width$x}", digest.finalize()),
        }
    }
}

/// Computes the digest of a file of this size while it arrives. `ready` receives the readable lengths.
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

/// An ETag without its quotes, which some listings omit.
pub(crate) fn bare(etag: &str) -> &str {
    etag.trim_matches('"')
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
        file.write_all(b"123456789").unwrap();
        for (algorithm, expected) in [
            (Algorithm::Md5, "25f9e794323b453885f5181f1b624d0b"),
            (Algorithm::Sha1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
            (Algorithm::Sha256, "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"),
            // `git hash-object`
            (Algorithm::Git, "e2e107ac61ac259b87c544f6e7a4eb03422c6c21"),
            // The check values in the algorithms' definitions.
            (Algorithm::Crc32, "cbf43926"),
            (Algorithm::Crc32c, "e3069283"),
            (Algorithm::Crc64Nvme, "ae8b14860a799888"),
        ] {
            let (sender, ready) = channel();
            for end in [1, 2, 16] {
                sender.send(end).unwrap();
            }
            assert_eq!(digest(algorithm, &file, 9, &ready).unwrap(), expected, "{algorithm}");
            assert_eq!(expected.len(), 2 * algorithm.length());
        }
    }

    #[test]
    fn an_etag_is_a_digest_if_it_looks_like_one() {
        let md5 = "900150983CD24fb0d6963f7d28e17f72";
        let expected = ExpectedDigest::of_etag(md5).unwrap();
        assert_eq!((expected.hex, expected.algorithm), (md5.to_lowercase(), Algorithm::Md5));
        assert!(ExpectedDigest::of_etag(&format!("sha256:{}", "a".repeat(64))).unwrap().is_certain);
        assert!(ExpectedDigest::of_etag(&format!("git:{}", "a".repeat(40))).unwrap().is_certain);
        for other in
            ["", "0x8D93C7D4629C227", "d41d8cd98f00b204e9800998ecf8427e-2", "sha256:ab", "git:", "x:y"]
        {
            assert_eq!(ExpectedDigest::of_etag(other), None, "{other}");
        }
    }
}
