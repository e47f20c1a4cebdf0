//! What makes two requests equal: a keyed digest of 256 bits.
//!
//! It covers the load of the model, the inputs in the order of their names (name, type, shape, contents), the parameters, the
//! sequence, and which outputs are asked for. It does not cover the id, the priority, the timeout, or how an output is
//! answered: as classes, in binary, in a region of shared memory.
//!
//! For a cache of this server alone the digest is AEGIS's, with a key that is drawn when the process starts: it takes a
//! fifteenth of a millisecond for a megabyte, and who does not know the key can make no two requests collide. Small requests
//! have the variant with one lane instead of four, which takes a third of the time for them. Keys that servers share cannot be
//! secret, so theirs are BLAKE3's.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::OnceLock;

use aegis::aegis128l::Aegis128LMac;
use aegis::aegis128x4::Aegis128X4Mac;
use nereid_backend_api::{CorrelationId, InferRequest, ParameterValue, Parameters, Tensor};
use smallvec::SmallVec;

use super::CacheScope;
use crate::signature::Signature;

/// Names an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CacheKey {
    load: u64,
    digest: [u8; 32],
}

impl CacheKey {
    /// A key for tests of caches.
    #[doc(hidden)]
    pub fn of(load: u64, digest: [u8; 32]) -> Self {
        Self { load, digest }
    }

    /// The number of the load that the entry belongs to. It holds for this process.
    pub fn load(&self) -> u64 {
        self.load
    }

    /// The digest. In a [shared](CacheScope::Shared) cache it is the same on all servers.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// The digest is as good as random, so a part of it does for a table.
impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.digest;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CacheKey({}, {:02x?})", self.load, &self.digest[..8])
    }
}

/// The names under which a request's answer may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// The one that it is stored under.
    pub own: CacheKey,
    /// That of the answer with all outputs, if the request asks for some only.
    pub all: Option<CacheKey>,
}

/// Makes the keys of the requests to one load of a model.
pub(super) struct KeyMaker {
    load: u64,
    start: DigestStart,
}

impl KeyMaker {
    /// For a load of that number. `identity` says which model it is; in a shared cache, on all servers.
    pub(super) fn new(scope: CacheScope, load: u64, identity: &[u8; 32]) -> Self {
        let mut start = match scope {
            CacheScope::Server => {
                let mut nonce = [0; 16];
                nonce[..8].copy_from_slice(&load.to_le_bytes());
                DigestStart::Secret {
                    short: Aegis128LMac::new_with_nonce(process_key(), &nonce),
                    long: Box::new(Aegis128X4Mac::new_with_nonce(process_key(), &nonce)),
                }
            }
            CacheScope::Shared => DigestStart::Public(Box::new(blake3::Hasher::new_derive_key(CONTEXT))),
        };
        start.update(identity);
        Self { load, start }
    }

    /// The keys of an admitted request, all of whose inputs the CPU can read. `members` are the digests of what an ensemble
    /// consists of.
    pub(super) fn keys(
        &self,
        request: &InferRequest,
        signature: &Signature,
        members: Option<&[u8; 32]>,
    ) -> Option<Keys> {
        let mut text = Text::new(&self.start);
        if let Some(members) = members {
            text.add(members);
        }
        let mut inputs: SmallVec<[&Tensor; 8]> = request.inputs.iter().collect();
        inputs.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        // Everything that has a length comes after its length, so no two requests give the same text.
        text.number(inputs.len());
        for input in &inputs {
            text.field(input.name.as_bytes());
            text.add(&[input.data_type as u8]);
            text.number(input.shape.len());
            input.shape.iter().for_each(|dim| text.add(&dim.to_le_bytes()));
            text.number(input.byte_size());
        }
        text.parameters(&request.parameters);
        match &request.correlation_id {
            CorrelationId::None => text.add(&[0]),
            CorrelationId::Number(id) => {
                text.add(&[1]);
                text.add(&id.to_le_bytes());
            }
            CorrelationId::Text(id) => {
                text.add(&[2]);
                text.field(id.as_bytes());
            }
        }
        text.add(&[u8::from(request.sequence.start), u8::from(request.sequence.end)]);
        for buffer in inputs.iter().flat_map(|input| &input.buffers) {
            text.add(buffer.as_host()?);
        }
        let mut outputs: SmallVec<[&str; 8]> =
            request.outputs.iter().map(|output| output.name.as_str()).collect();
        outputs.sort_unstable();
        outputs.dedup();
        if outputs.is_empty() || outputs.len() == signature.outputs.len() {
            return Some(Keys { own: self.key(text), all: None });
        }
        let all = self.key(text.clone());
        text.number(outputs.len());
        outputs.iter().for_each(|output| text.field(output.as_bytes()));
        Some(Keys { own: self.key(text), all: Some(all) })
    }

    fn key(&self, text: Text<'_>) -> CacheKey {
        CacheKey { load: self.load, digest: text.finish() }
    }
}

/// A digest of texts that each say what they are.
pub(super) fn identity<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut digest = blake3::Hasher::new_derive_key(CONTEXT);
    for part in parts {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    *digest.finalize().as_bytes()
}

/// Tells our keys from others, and those of one form of keys and entries from those of the next.
const CONTEXT: &str = "nereid 2026 response cache 1";

/// The secret key of this process.
fn process_key() -> &'static [u8; 16] {
    static KEY: OnceLock<[u8; 16]> = OnceLock::new();
    KEY.get_or_init(|| {
        // It is drawn from the system's random numbers.
        let random = RandomState::new();
        let mut key = [0; 16];
        key[..8].copy_from_slice(&random.hash_one(0).to_le_bytes());
        key[8..].copy_from_slice(&random.hash_one(1).to_le_bytes());
        key
    })
}

/// What every key of a load begins with. The digests of short texts and of long ones have nothing in common, though they have
/// the same secret: the variants of AEGIS begin in states of their own.
#[expect(clippy::large_enum_variant, reason = "there is one for each load of a model")]
enum DigestStart {
    Secret { short: Aegis128LMac<32>, long: Box<Aegis128X4Mac<32>> },
    Public(Box<blake3::Hasher>),
}

impl DigestStart {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Secret { short, long } => {
                short.update(bytes);
                long.update(bytes);
            }
            Self::Public(digest) => drop(digest.update(bytes)),
        }
    }

    /// The digest of a text that is no longer than [`GATHERED`].
    fn short(&self, text: &[u8]) -> [u8; 32] {
        match self {
            Self::Secret { short, .. } => {
                let mut digest = short.clone();
                digest.update(text);
                digest.finalize()
            }
            Self::Public(digest) => *digest.clone().update(text).finalize().as_bytes(),
        }
    }

    fn long(&self) -> LongDigest {
        match self {
            Self::Secret { long, .. } => LongDigest::Secret(long.clone()),
            Self::Public(digest) => LongDigest::Public(digest.clone()),
        }
    }
}

/// The digest of a longer text. It has more than a thousand bytes, so it is not moved around.
#[derive(Clone)]
enum LongDigest {
    Secret(Box<Aegis128X4Mac<32>>),
    Public(Box<blake3::Hasher>),
}

impl LongDigest {
    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Secret(digest) => digest.update(bytes),
            Self::Public(digest) => drop(digest.update(bytes)),
        }
    }

    fn finish(self) -> [u8; 32] {
        match self {
            Self::Secret(digest) => digest.finalize(),
            Self::Public(digest) => *digest.finalize().as_bytes(),
        }
    }
}

/// How much of a text is gathered before it is digested.
const GATHERED: usize = 256;

/// What is digested. Small pieces are gathered, since each call costs as much as a hundred bytes do.
#[derive(Clone)]
struct Text<'a> {
    start: &'a DigestStart,
    /// Of what is not in `gathered`, if there is such.
    digest: Option<LongDigest>,
    gathered: [u8; GATHERED],
    length: usize,
}

impl<'a> Text<'a> {
    fn new(start: &'a DigestStart) -> Self {
        Self { start, digest: None, gathered: [0; GATHERED], length: 0 }
    }

    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        match self.gathered[self.length..].get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.length += bytes.len();
            }
            None => self.overflow(bytes),
        }
    }

    /// Digests what was gathered, and bytes behind it that did not fit.
    fn overflow(&mut self, bytes: &[u8]) {
        let digest = self.digest.get_or_insert_with(|| self.start.long());
        digest.update(&self.gathered[..self.length]);
        self.length = 0;
        if bytes.len() <= GATHERED / 2 {
            self.add(bytes);
        } else {
            digest.update(bytes);
        }
    }

    fn number(&mut self, number: usize) {
        self.add(&(number as u64).to_le_bytes());
    }

    fn field(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.add(bytes);
    }

    fn parameters(&mut self, parameters: &Parameters) {
        let mut sorted: SmallVec<[_; 8]> = parameters.iter().collect();
        sorted.sort_unstable_by_key(|(name, _)| *name);
        self.number(sorted.len());
        for (name, value) in sorted {
            self.field(name.as_bytes());
            match value {
                ParameterValue::Bool(value) => self.add(&[0, u8::from(*value)]),
                ParameterValue::Int(value) => {
                    self.add(&[1]);
                    self.add(&value.to_le_bytes());
                }
                ParameterValue::Double(value) => {
                    self.add(&[2]);
                    self.add(&value.to_bits().to_le_bytes());
                }
                ParameterValue::String(value) => {
                    self.add(&[3]);
                    self.field(value.as_bytes());
                }
            }
        }
    }

    fn finish(self) -> [u8; 32] {
        let gathered = &self.gathered[..self.length];
        match self.digest {
            None => self.start.short(gathered),
            Some(mut digest) => {
                digest.update(gathered);
                digest.finish()
            }
        }
    }
}
