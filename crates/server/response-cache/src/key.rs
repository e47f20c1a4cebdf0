//! Keys of requests: keyed digests of 256 bits, which are equal for equal requests.
//!
//! The digest covers the load of the model, the inputs in the order of their names (name, type, shape, contents), the
//! parameters, the sequence, and the names of the requested outputs. Id, priority, timeout and the form of an output (classes,
//! binary, shared memory) do not count.
//!
//! Caches of this server alone use AEGIS with a random key of the process: a megabyte takes a fifteenth of a millisecond, and
//! without the key, clients cannot construct collisions. Small requests use the variant with one lane instead of four, which
//! takes a third of the time for them. Keys that servers share cannot be secret, so shared caches use BLAKE3.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::OnceLock;

use aegis::aegis128l::Aegis128LMac;
use aegis::aegis128x4::Aegis128X4Mac;
use nereid_core::Signature;
use nereid_core::backend_api::{CorrelationId, InferRequest, ParameterValue, Parameters, Tensor};
use smallvec::SmallVec;

use crate::cache::CacheScope;

/// Identifies an entry.
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

    /// The number of the load that the entry belongs to, valid within this process.
    pub fn load(&self) -> u64 {
        self.load
    }

    /// The digest. In a [shared](CacheScope::Shared) cache it is the same on all servers.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// The digest is uniformly distributed, so a part of it suffices as hash.
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

/// The keys under which a request's answer may be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keys {
    /// The key that the answer is stored under.
    pub own: CacheKey,
    /// The key of the answer with all outputs, if the request names only some.
    pub all: Option<CacheKey>,
}

/// Makes the keys of the requests to one load of a model.
pub(crate) struct KeyMaker {
    load: u64,
    start: DigestStart,
}

impl KeyMaker {
    /// For the load with this number. `identity` identifies the model; in a shared cache, on all servers.
    pub(crate) fn new(scope: CacheScope, load: u64, identity: &[u8; 32]) -> Self {
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

    /// The keys of an admitted request; `None` if an input is not in host memory. `members` is the digest of an ensemble's
    /// members.
    pub(crate) fn keys(
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
        // Lengths precede their contents, so different requests have different texts.
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

/// A digest of a list of byte strings.
pub(crate) fn identity<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut digest = blake3::Hasher::new_derive_key(CONTEXT);
    for part in parts {
        digest.update(&(part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    *digest.finalize().as_bytes()
}

/// Separates these keys from all others. The number changes with the format of keys and entries.
const CONTEXT: &str = "nereid 2026 response cache 1";

/// The secret key of this process.
fn process_key() -> &'static [u8; 16] {
    static KEY: OnceLock<[u8; 16]> = OnceLock::new();
    KEY.get_or_init(|| {
        // Seeded by the system's random numbers.
        let random = RandomState::new();
        let mut key = [0; 16];
        key[..8].copy_from_slice(&random.hash_one(0).to_le_bytes());
        key[8..].copy_from_slice(&random.hash_one(1).to_le_bytes());
        key
    })
}

/// The common start of all keys of a load. Digests of short and long texts are independent although they share the secret:
/// the variants of AEGIS start in different states.
#[expect(clippy::large_enum_variant, reason = "one per load of a model")]
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

    /// The digest of a text of at most [`GATHERED`] bytes.
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

/// The digest of a longer text. Its state exceeds a thousand bytes, so it is boxed.
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

/// Number of bytes gathered before they are digested.
const GATHERED: usize = 256;

/// A text to be digested. Small pieces are gathered, since each call costs as much as a hundred bytes.
#[derive(Clone)]
struct Text<'a> {
    start: &'a DigestStart,
    /// The digest of the bytes before `gathered`, if any.
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

    /// Digests the gathered bytes, and further ones that did not fit.
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
