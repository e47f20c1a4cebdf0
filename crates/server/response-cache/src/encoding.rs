//! The encoding of responses, `outputs · parameters`, and of entries for caches outside of this process,
//! `magic · key · outputs · parameters · digest`.
//!
//! Lengths, counts and dimensions are LEB128; all other numbers are little-endian. Lengths precede their contents. An entry
//! contains its key and ends with a digest of all preceding bytes, so truncated, swapped or foreign entries are rejected. A
//! change of the format changes the magic and thereby every key.

use std::io::{self, Write};

use bytes::Bytes;
use nereid_core::backend_api::{
    Buffer, Buffers, DataType, ParameterValue, Parameters, Response, Shape, Tensor,
};

use crate::entry::CacheEntry;
use crate::key::CacheKey;

/// Start of every entry: the format and its version.
const MAGIC: [u8; 8] = *b"nereidR2";

/// The largest number of outputs for which memory is reserved before they are read.
const MAX_TRUSTED: usize = 16;

/// Maximum length of a LEB128 number, in bytes.
const MAX_BITS: usize = 10;

/// Length of the digest at the end.
const DIGEST: usize = 16;

const TYPES: [DataType; 14] = [
    DataType::Bool,
    DataType::Uint8,
    DataType::Uint16,
    DataType::Uint32,
    DataType::Uint64,
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::Fp16,
    DataType::Bf16,
    DataType::Fp32,
    DataType::Fp64,
    DataType::Bytes,
];

/// The bytes are not an entry of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Encodes an entry.
#[expect(clippy::expect_used, reason = "a vector grows as needed")]
pub fn encode_entry(key: &CacheKey, entry: &CacheEntry) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entry.byte_size() + MAGIC.len() + key.digest().len() + DIGEST);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(key.digest());
    write_response(&mut bytes, &entry.response()).expect("a vector grows as needed");
    seal(&mut bytes);
    bytes
}

/// Writes a response in host memory.
///
/// # Errors
/// The target is too small.
pub(crate) fn write_response(target: &mut impl Write, response: &Response) -> io::Result<()> {
    number(target, response.outputs.len())?;
    for output in &response.outputs {
        field(target, output.name.as_bytes())?;
        let data_type = TYPES.iter().position(|it| *it == output.data_type).unwrap_or(TYPES.len());
        target.write_all(&[data_type as u8])?;
        number(target, output.shape.len())?;
        output.shape.iter().try_for_each(|dim| bits(target, dim.cast_unsigned()))?;
        number(target, output.byte_size())?;
        output.buffers.iter().filter_map(Buffer::as_host).try_for_each(|part| target.write_all(part))?;
    }
    number(target, response.parameters.iter().len())?;
    for (name, value) in response.parameters.iter() {
        field(target, name.as_bytes())?;
        match value {
            ParameterValue::Bool(value) => target.write_all(&[0, u8::from(*value)])?,
            ParameterValue::Int(value) => {
                target.write_all(&[1])?;
                target.write_all(&value.to_le_bytes())?;
            }
            ParameterValue::Double(value) => {
                target.write_all(&[2])?;
                target.write_all(&value.to_le_bytes())?;
            }
            ParameterValue::String(value) => {
                target.write_all(&[3])?;
                field(target, value.as_bytes())?;
            }
        }
    }
    Ok(())
}

/// Appends the digest of all preceding bytes.
fn seal(bytes: &mut Vec<u8>) {
    let digest = blake3::hash(bytes);
    bytes.extend_from_slice(&digest.as_bytes()[..DIGEST]);
}

/// An entry with this body, valid or not, and the right digest: for tests with random bytes.
#[doc(hidden)]
pub fn sealed_entry(key: &CacheKey, body: &[u8]) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], key.digest(), body].concat();
    seal(&mut bytes);
    bytes
}

/// Decodes an entry. Its outputs are slices of `bytes`.
///
/// # Errors
/// The bytes are not an entry of this key, or damaged.
pub fn decode_entry(key: &CacheKey, bytes: &Bytes) -> Result<CacheEntry, Malformed> {
    let end = bytes.len().checked_sub(DIGEST).ok_or(Malformed)?;
    if blake3::hash(&bytes[..end]).as_bytes()[..DIGEST] != bytes[end..] {
        return Err(Malformed);
    }
    let mut reader = Reader { rest: &bytes[..end], shared: Some(bytes) };
    if reader.take(MAGIC.len())? != MAGIC || reader.take(key.digest().len())? != key.digest() {
        return Err(Malformed);
    }
    let response = reader.response()?;
    if response.outputs.iter().any(|output| output.check_contents().is_err()) {
        return Err(Malformed);
    }
    Ok(CacheEntry::of_parts(response))
}

/// Reads the output of [`write_response`]. Copies contents without checking them.
///
/// # Errors
/// The bytes are not a response.
pub(crate) fn read_response(bytes: &[u8]) -> Result<Response, Malformed> {
    Reader { rest: bytes, shared: None }.response()
}

fn number(target: &mut impl Write, number: usize) -> io::Result<()> {
    bits(target, number as u64)
}

fn bits(target: &mut impl Write, mut number: u64) -> io::Result<()> {
    let mut bytes = [0; MAX_BITS];
    let mut length = 1;
    while number >= 0x80 {
        bytes[length - 1] = number as u8 | 0x80;
        number >>= 7;
        length += 1;
    }
    bytes[length - 1] = number as u8;
    target.write_all(&bytes[..length])
}

fn field(target: &mut impl Write, text: &[u8]) -> io::Result<()> {
    number(target, text.len())?;
    target.write_all(text)
}

struct Reader<'a> {
    rest: &'a [u8],
    /// The buffer that contains `rest`, for outputs that are slices of it. If `None`, outputs are copies.
    shared: Option<&'a Bytes>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    /// Reads all remaining bytes.
    fn response(mut self) -> Result<Response, Malformed> {
        let count = self.number()?;
        let mut outputs = Vec::with_capacity(count.min(MAX_TRUSTED));
        for _ in 0..count {
            outputs.push(self.output()?);
        }
        let mut parameters = Parameters::default();
        for _ in 0..self.number()? {
            parameters.set(self.text()?, self.value()?);
        }
        if self.rest.is_empty() { Ok(Response { outputs, parameters }) } else { Err(Malformed) }
    }

    fn number(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.bits()?).map_err(|_| Malformed)
    }

    fn bits(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for place in 0..MAX_BITS {
            let [byte] = self.array()?;
            let group = u64::from(byte & 0x7f);
            number |= group << (7 * place);
            if byte & 0x80 == 0 {
                // Each number has exactly one valid encoding.
                let is_whole = number >> (7 * place) == group;
                let is_shortest = place == 0 || byte != 0;
                return if is_whole && is_shortest { Ok(number) } else { Err(Malformed) };
            }
        }
        Err(Malformed)
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let length = self.number()?;
        std::str::from_utf8(self.take(length)?).map(str::to_owned).map_err(|_| Malformed)
    }

    fn output(&mut self) -> Result<Tensor, Malformed> {
        let name = self.text()?;
        let [data_type] = self.array()?;
        let data_type = *TYPES.get(usize::from(data_type)).ok_or(Malformed)?;
        let mut shape = Shape::scalar();
        for _ in 0..self.number()? {
            shape.push(self.bits()?.cast_signed());
        }
        let length = self.number()?;
        let contents = self.take(length)?;
        let contents =
            self.shared.map_or_else(|| Bytes::copy_from_slice(contents), |it| it.slice_ref(contents));
        Ok(Tensor { name, data_type, shape, buffers: Buffers::from_iter([Buffer::host(contents)]) })
    }

    fn value(&mut self) -> Result<ParameterValue, Malformed> {
        let [kind] = self.array()?;
        Ok(match kind {
            0 => ParameterValue::Bool(self.array()? == [1]),
            1 => ParameterValue::Int(i64::from_le_bytes(self.array()?)),
            2 => ParameterValue::Double(f64::from_le_bytes(self.array()?)),
            3 => ParameterValue::String(self.text()?.into()),
            _ => return Err(Malformed),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tensor() -> impl Strategy<Value = Tensor> {
        let contents = prop::collection::vec(any::<u8>(), 0..40);
        (".{0,8}", contents, 0..3_usize).prop_map(|(name, contents, zeros)| {
            let mut shape = Shape::scalar();
            shape.push(contents.len() as i64);
            (0..zeros).for_each(|_| shape.push(1));
            Tensor::new(name, DataType::Uint8, shape, contents)
        })
    }

    fn value() -> impl Strategy<Value = ParameterValue> {
        prop_oneof![
            any::<bool>().prop_map(ParameterValue::Bool),
            any::<i64>().prop_map(ParameterValue::Int),
            any::<i32>().prop_map(|value| ParameterValue::Double(f64::from(value) / 7.0)),
            ".{0,9}".prop_map(|text| ParameterValue::String(text.into())),
        ]
    }

    fn entry() -> impl Strategy<Value = CacheEntry> {
        let parameters = prop::collection::vec((".{0,5}", value()), 0..4);
        (prop::collection::vec(tensor(), 0..4), parameters).prop_map(|(outputs, parameters)| {
            let mut response = Response::new(outputs);
            parameters.into_iter().for_each(|(name, value)| response.parameters.set(name, value));
            CacheEntry::of(&response).unwrap()
        })
    }

    proptest! {
        #[test]
        fn encoded_entries_are_decoded(entry in entry(), digest in any::<[u8; 32]>()) {
            let key = CacheKey::of(1, digest);
            let bytes = Bytes::from(encode_entry(&key, &entry));
            let read = decode_entry(&key, &bytes).unwrap();
            // Compare contents, not buffers.
            prop_assert_eq!(encode_entry(&key, &read), bytes.to_vec());
            prop_assert_eq!(&read.response().parameters, &entry.response().parameters);
            let shapes = |entry: &CacheEntry| -> Vec<_> {
                entry.response().outputs.iter().map(|it| (it.name.clone(), it.shape.clone())).collect()
            };
            prop_assert_eq!(shapes(&read), shapes(&entry));
        }

        #[test]
        fn changed_entries_are_rejected(
            entry in entry(), place in any::<prop::sample::Index>(), bit in 0..8_u8, cut in any::<prop::sample::Index>()
        ) {
            let key = CacheKey::of(1, [7; 32]);
            let bytes = encode_entry(&key, &entry);
            let mut other = bytes.clone();
            other[place.index(bytes.len())] ^= 1 << bit;
            prop_assert!(decode_entry(&key, &other.into()).is_err());
            prop_assert!(decode_entry(&key, &bytes[..cut.index(bytes.len())].to_vec().into()).is_err());
            prop_assert!(decode_entry(&key, &[&bytes[..], b"x"].concat().into()).is_err());
            prop_assert!(decode_entry(&CacheKey::of(1, [8; 32]), &bytes.into()).is_err());
        }

        /// A number has one encoding, and others are rejected.
        #[test]
        fn numbers_are_read_as_they_were_written(number: u64, shift in 0..64, more in 1..4_usize) {
            let number = number >> shift;
            let mut bytes = Vec::new();
            bits(&mut bytes, number).unwrap();
            prop_assert!(bytes.len() <= MAX_BITS);
            let read = |bytes: &[u8]| {
                let mut reader = Reader { rest: bytes, shared: None };
                reader.bits().map(|number| (number, reader.rest.len()))
            };
            prop_assert_eq!(read(&bytes), Ok((number, 0)));
            prop_assert_eq!(read(&[&bytes[..], b"x"].concat()), Ok((number, 1)));
            prop_assert_eq!(read(&bytes[..bytes.len() - 1]), Err(Malformed));
            *bytes.last_mut().unwrap() |= 0x80;
            bytes.resize(bytes.len() + more - 1, 0x80);
            bytes.push(0);
            prop_assert_eq!(read(&bytes), Err(Malformed));
        }

        /// Including bytes with a valid digest.
        #[test]
        fn foreign_bytes_do_no_harm(body in prop::collection::vec(any::<u8>(), 0..80), lengths in any::<bool>()) {
            let key = CacheKey::of(1, [7; 32]);
            let body = if lengths { body.into_iter().map(|byte| byte % 3).collect() } else { body };
            if let Ok(entry) = decode_entry(&key, &sealed_entry(&key, &body).into()) {
                prop_assert!(entry.response().outputs.iter().all(|output| output.check_contents().is_ok()));
            }
        }
    }
}
