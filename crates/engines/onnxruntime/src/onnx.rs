//! Decodes ONNX files, as far as is needed before the library loads them.
//!
//! The messages have the fields of `onnx.proto` that the checks of a file read. The decoder skips all others, above all weights,
//! and a file's skipped bytes are not read into memory. Names are kept as bytes, because ONNX does not require UTF-8 here.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use bytes::Buf;
use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_model_files::{self as model_files, FileError, PROTOBUF_LIMIT};
use prost::Message;

/// The bytes of a file that are read at once. Small, because most of a file is weights, in pieces that are skipped.
const CHUNK: usize = 16 << 10;

/// The configuration's parameter for the format that the library reads a file in.
const FORMAT: &str = "session.load_model_format";

/// Decodes a model's file. `None` if the library reads it in its own format, ORT.
///
/// # Errors
/// The file cannot be read, or is not ONNX's protobuf.
pub(crate) fn read(path: &Path, config: &ModelConfig) -> Result<Option<ModelProto>> {
    let cannot_read = |error: FileError| Error::cannot_read(path, &error);
    let file = model_files::open(path).map_err(cannot_read)?;
    let length = file.metadata().map_err(|error| cannot_read(error.into()))?.len();
    if length > PROTOBUF_LIMIT {
        return Err(cannot_read(FileError::TooLarge(PROTOBUF_LIMIT)));
    }
    if is_ort_format(path, config) {
        return Ok(None);
    }
    let length = usize::try_from(length).map_err(|_| cannot_read(FileError::TooLarge(PROTOBUF_LIMIT)))?;
    let mut contents = Contents::new(length, |buffer, offset| file.read_exact_at(buffer, offset));
    let decoded = decode(&mut contents, path);
    contents.error.map_or(decoded, |error| Err(cannot_read(error.into()))).map(Some)
}

/// Whether the library reads a file in its own format: by the same rule as the library, not by the contents, which may be valid in
/// both formats.
fn is_ort_format(path: &Path, config: &ModelConfig) -> bool {
    match config.parameters.get(FORMAT).map(|parameter| parameter.string_value.as_str()) {
        None | Some("") => path
            .as_os_str()
            .as_bytes()
            .last_chunk()
            .is_some_and(|end: &[u8; 4]| end.eq_ignore_ascii_case(b".ort")),
        Some(format) => format == "ORT",
    }
}

/// Decodes the contents of a file at `path`, or what they were converted to.
///
/// # Errors
/// They are not ONNX's protobuf. The library may still accept them, because it skips a field of an unexpected type. It would then
/// load what was not checked.
pub(crate) fn decode(contents: impl Buf, path: &Path) -> Result<ModelProto> {
    ModelProto::decode(contents).map_err(|error| {
        Error::invalid_arg(format!("{} is not a complete ONNX file: {error}", path.display()))
    })
}

/// The bytes of a file, read in chunks where the decoder does not skip them.
struct Contents<R> {
    /// Fills a buffer from an offset.
    read: R,
    buffer: Vec<u8>,
    /// The position in the buffer.
    position: usize,
    /// The offset of the buffer's end in the file.
    offset: usize,
    length: usize,
    /// The first error. Zeroes take the place of what cannot be read: they end the decoding, as no field has the number 0.
    error: Option<io::Error>,
}

impl<R: FnMut(&mut [u8], u64) -> io::Result<()>> Contents<R> {
    fn new(length: usize, read: R) -> Self {
        let mut contents = Self { read, buffer: Vec::new(), position: 0, offset: 0, length, error: None };
        contents.fill();
        contents
    }

    /// Reads the next chunk.
    fn fill(&mut self) {
        let chunk = CHUNK.min(self.length - self.offset);
        self.buffer.resize(chunk, 0);
        if self.error.is_none() {
            self.error = (self.read)(&mut self.buffer, self.offset as u64).err();
        }
        if self.error.is_some() {
            self.buffer.fill(0);
        }
        self.position = 0;
        self.offset += chunk;
    }
}

impl<R: FnMut(&mut [u8], u64) -> io::Result<()>> Buf for Contents<R> {
    fn remaining(&self) -> usize {
        self.chunk().len() + (self.length - self.offset)
    }

    fn chunk(&self) -> &[u8] {
        self.buffer.get(self.position..).unwrap_or_default()
    }

    fn advance(&mut self, count: usize) {
        match count.checked_sub(self.chunk().len()) {
            None => self.position += count,
            Some(skipped) => {
                self.offset = self.offset.saturating_add(skipped).min(self.length);
                self.fill();
            }
        }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelProto {
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct FunctionProto {
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "15")]
    pub sparse_initializer: Vec<SparseTensorProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeProto {
    #[prost(bytes = "vec", tag = "4")]
    pub op_type: Vec<u8>,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    #[prost(bytes = "vec", tag = "7")]
    pub domain: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct AttributeProto {
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphProto>,
    #[prost(message, repeated, tag = "10")]
    pub tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub graphs: Vec<GraphProto>,
    #[prost(message, optional, tag = "22")]
    pub sparse_tensor: Option<SparseTensorProto>,
    #[prost(message, repeated, tag = "23")]
    pub sparse_tensors: Vec<SparseTensorProto>,
}

impl AttributeProto {
    /// The bodies of a loop or condition.
    pub(crate) fn bodies(&self) -> impl Iterator<Item = &GraphProto> {
        self.g.iter().chain(&self.graphs)
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    pub values: Option<TensorProto>,
    #[prost(message, optional, tag = "2")]
    pub indices: Option<TensorProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfoProto {
    #[prost(bytes = "vec", tag = "1")]
    pub name: Vec<u8>,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypeProto {
    #[prost(oneof = "Kind", tags = "1, 4, 5, 7, 8, 9")]
    pub value: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Kind {
    #[prost(message, tag = "1")]
    Tensor(TensorType),
    #[prost(message, tag = "4")]
    Sequence(Box<SequenceType>),
    #[prost(message, tag = "5")]
    Map(Anything),
    #[prost(message, tag = "7")]
    Opaque(Anything),
    #[prost(message, tag = "8")]
    Sparse(Anything),
    #[prost(message, tag = "9")]
    Optional(Anything),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SequenceType {
    #[prost(message, optional, tag = "1")]
    pub element: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorType {
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Anything>,
}

/// A message of which only the presence matters.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Anything {}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use nereid_model_config::proto::ModelParameter;
    use prost::encoding::{WireType, encode_key, encode_varint};

    use super::*;

    fn read_onnx(path: &Path) -> Result<ModelProto> {
        read(path, &ModelConfig::default()).map(Option::unwrap)
    }

    /// A field of another message, or of a later version of ONNX.
    fn unknown_field(bytes: usize) -> Vec<u8> {
        let mut field = Vec::new();
        encode_key(6, WireType::LengthDelimited, &mut field);
        encode_varint(bytes as u64, &mut field);
        field.resize(field.len() + bytes, 0xff);
        field
    }

    fn model(operator: usize) -> ModelProto {
        let node = NodeProto { op_type: vec![b'x'; operator], ..NodeProto::default() };
        let graph = GraphProto { node: vec![node; 3], ..GraphProto::default() };
        ModelProto { graph: Some(graph), functions: vec![FunctionProto::default()] }
    }

    #[test]
    fn file_decodes_as_its_contents_wherever_its_chunks_end() {
        let around = |length: usize| length - 12..length + 3;
        for bytes in (0..3).chain(around(CHUNK)).chain(around(2 * CHUNK)).chain(around(7 * CHUNK)) {
            for (skipped, kept) in [(bytes, 1), (1, bytes), (bytes, bytes)] {
                let model = model(kept);
                let contents = [unknown_field(skipped), model.encode_to_vec()].concat();
                assert_eq!(decode(contents.as_slice(), Path::new("m")).unwrap(), model);
                let mut file = tempfile::NamedTempFile::new().unwrap();
                file.write_all(&contents).unwrap();
                assert_eq!(read_onnx(file.path()).unwrap(), model, "{skipped} and {kept} bytes");
                file.as_file().set_len(contents.len() as u64 - 1).unwrap();
                let error = read_onnx(file.path()).unwrap_err();
                assert!(
                    error.message().contains("is not a complete ONNX file"),
                    "{skipped}, {kept}: {error}"
                );
            }
        }
    }

    #[test]
    fn skipped_bytes_are_not_read() {
        for skipped in [0, CHUNK, 100 * CHUNK] {
            let (model, mut read) = (model(1), 0);
            let contents = [unknown_field(skipped), model.encode_to_vec()].concat();
            let mut file = Contents::new(contents.len(), |buffer, offset| {
                read += buffer.len();
                buffer.copy_from_slice(&contents[offset as usize..][..buffer.len()]);
                Ok(())
            });
            assert_eq!(decode(&mut file, Path::new("m")).unwrap(), model);
            assert!(file.error.is_none());
            assert!(read <= 2 * CHUNK, "{read} of {} bytes", contents.len());
        }
    }

    #[test]
    fn failed_read_ends_the_decoding_wherever_it_happens() {
        let contents = model(5 * CHUNK).encode_to_vec();
        for failing in 0..contents.len().div_ceil(CHUNK) {
            let mut reads = 0;
            let mut file = Contents::new(contents.len(), |buffer, offset| {
                reads += 1;
                if reads > failing {
                    return Err(io::Error::other("a broken disk"));
                }
                buffer.copy_from_slice(&contents[offset as usize..][..buffer.len()]);
                Ok(())
            });
            // The error of the file is reported in place of this one.
            decode(&mut file, Path::new("m")).unwrap_err();
            assert_eq!(file.error.unwrap().to_string(), "a broken disk");
            assert_eq!(reads, failing + 1);
        }
    }

    #[test]
    fn file_that_only_the_library_decodes_is_refused() {
        let valid = model(1).encode_to_vec();
        // Field 7, the graph, a second time as a number.
        let with_number = [&[0x38, 1], valid.as_slice()].concat();
        for (contents, is_refused) in [
            (b"".as_slice(), false),
            (&valid, false),
            (&with_number, true),
            (b"not a model", true),
            (&[0xff; 64], true),
        ] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(contents).unwrap();
            assert_eq!(read_onnx(file.path()).is_err(), is_refused, "{contents:?}");
        }
    }

    #[test]
    fn format_is_that_of_the_library() {
        let folder = tempfile::tempdir().unwrap();
        for (name, format, is_ort) in [
            ("model.onnx", None, false),
            ("model.ort", None, true),
            ("model.ORT", None, true),
            (".ort", None, true),
            ("ort", None, false),
            ("model.ort.onnx", None, false),
            ("model.ort", Some(""), true),
            ("model.ort", Some("ONNX"), false),
            ("model.ort", Some("ort"), false),
            ("model.onnx", Some("ORT"), true),
            ("model.onnx", Some(""), false),
        ] {
            let path = folder.path().join(name);
            fs::write(&path, "neither").unwrap();
            let mut config = ModelConfig::default();
            let parameter = |value: &str| ModelParameter { string_value: value.to_owned() };
            config.parameters.extend(format.map(|format| (FORMAT.to_owned(), parameter(format))));
            assert_eq!(matches!(read(&path, &config), Ok(None)), is_ort, "{name} {format:?}");
        }
    }

    #[test]
    fn a_missing_file_is_reported_by_its_path() {
        let error = read_onnx(Path::new("/no/such/model.onnx")).unwrap_err();
        assert!(error.message().contains("cannot read /no/such/model.onnx"), "{error}");
    }

    #[test]
    fn file_past_the_limit_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PROTOBUF_LIMIT + 1).unwrap();
        let error = read_onnx(file.path()).unwrap_err();
        assert!(error.message().ends_with("larger than 2147483648 bytes"), "{error}");
    }
}
