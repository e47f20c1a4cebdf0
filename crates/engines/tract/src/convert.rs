//! Converts tensors between the server's raw bytes and the engine's typed, aligned memory.
//!
//! An input is copied once, into memory aligned for the engine's kernels. An output is passed on without a copy, except
//! strings, which get their length prefixes. Knows nothing of batches: the caller chooses what to join and where to cut.

use bytes::Bytes;
use nereid_backend_api::{BytesElements, DataType, Error, Result, Shape, Tensor};
use nereid_graph_executor::{Contents, Port};
use smallvec::SmallVec;
use tract_onnx::prelude::{
    Blob, DatumType, IntoTensor, PlainStorage, TValue, TVec, Tensor as EngineTensor, TractResult,
    tract_ndarray,
};
use tract_onnx::tract_core::internal::{bail, ensure, vector_size};

use crate::guard::guarded;
use crate::signature::datum_type;

/// Checks that strings are text, as the engine requires.
pub(crate) fn check(port: &Port, tensor: &Tensor) -> Result<()> {
    if port.data_type == DataType::Bytes {
        texts(&[tensor], |text| std::str::from_utf8(text).map(drop))?;
    }
    Ok(())
}

pub(crate) fn shape_of(value: &TValue) -> Shape {
    value.shape().iter().map(|&dim| dim as i64).collect()
}

/// Joins the contents of `parts`, one after the other, into one tensor of `shape`. Each part passed [`check`].
pub(crate) fn gather(port: &Port, shape: &[i64], parts: &[&Tensor]) -> Result<TValue> {
    let pieces = host_pieces(parts)?;
    let tensor = match datum_type(port.data_type) {
        DatumType::String => {
            let texts = texts(parts, |text| std::str::from_utf8(text).map(str::to_owned))?;
            guarded(|| Ok(tract_ndarray::ArrayD::from_shape_vec(&*dims(shape)?, texts)?.into_tensor()))
        }
        DatumType::Bool => {
            // Any byte but 0 and 1 in a bool's place would be undefined behaviour.
            let flags: Vec<bool> =
                pieces.iter().flat_map(|piece| piece.iter().map(|&byte| byte != 0)).collect();
            guarded(|| EngineTensor::from_shape(&dims(shape)?, &flags))
        }
        datum_type => guarded(|| fixed_size(datum_type, &dims(shape)?, &pieces)),
    };
    let tensor = tensor.map_err(|why| Error::internal(format!("input '{}': {why}", port.name)))?;
    Ok(tensor.into())
}

fn dims(shape: &[i64]) -> TractResult<TVec<usize>> {
    Ok(shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<_, _>>()?)
}

fn fixed_size(datum_type: DatumType, shape: &[usize], pieces: &[&Bytes]) -> TractResult<EngineTensor> {
    let size = shape.iter().try_fold(datum_type.size_of(), |size, &dim| size.checked_mul(dim));
    let given = pieces.iter().map(|piece| piece.len()).sum();
    ensure!(size == Some(given), "{given} bytes do not make a {datum_type:?} tensor of shape {shape:?}");
    if let [piece] = pieces
        && !piece.is_empty()
    {
        let blob = Blob::from_bytes_alignment(piece, vector_size())?;
        return EngineTensor::from_storage(datum_type, shape, PlainStorage::from(blob)).into_plain_ram();
    }
    let mut tensor = EngineTensor::zero_dt(datum_type, shape)?;
    let mut target = tensor.as_bytes_mut();
    for piece in pieces {
        let (here, rest) = target.split_at_mut(piece.len());
        here.copy_from_slice(piece);
        target = rest;
    }
    Ok(tensor)
}

fn host_pieces<'a>(parts: &[&'a Tensor]) -> Result<SmallVec<[&'a Bytes; 4]>> {
    let pieces = parts.iter().flat_map(|part| part.buffers.iter().map(move |buffer| (part, buffer)));
    pieces
        .map(|(part, buffer)| {
            buffer.as_host().ok_or_else(|| {
                Error::unsupported(format!(
                    "input '{}' lies in device memory, which the embedded engine does not read",
                    part.name
                ))
            })
        })
        .collect()
}

/// The elements of BYTES tensors, each read by `read`.
fn texts<T>(parts: &[&Tensor], read: impl Fn(&[u8]) -> Result<T, std::str::Utf8Error>) -> Result<Vec<T>> {
    let mut texts = Vec::new();
    for part in parts {
        for element in BytesElements::new(&part.contiguous()?) {
            texts.push(read(element?).map_err(|error| {
                Error::invalid_arg(format!(
                    "input '{}': element {} is not UTF-8 text, which the embedded engine asks of strings: {error}",
                    part.name,
                    texts.len()
                ))
            })?);
        }
    }
    Ok(texts)
}

/// The contents of the engine's value for the output `port`.
pub(crate) fn contents(port: &Port, value: TValue) -> Result<Contents> {
    let declared = datum_type(port.data_type);
    guarded(|| {
        // tract computes with dimensions as a type of its own; ONNX calls them INT64.
        let value = match value.datum_type() {
            DatumType::TDim => value.cast_to_dt(DatumType::I64)?.into_owned().into(),
            _ => value,
        };
        if value.datum_type().unquantized() != declared {
            bail!("it is {:?}, but the file declares {declared:?}", value.datum_type());
        }
        let plain = value.try_as_plain_ram()?;
        if declared == DatumType::String {
            let texts = plain.as_slice::<String>()?.iter().map(|text| text.clone().into_bytes());
            return Ok(Contents::Strings(texts.collect()));
        }
        let (count, size) = (value.len(), plain.as_bytes().len());
        ensure!(size == count * declared.size_of(), "it has {size} bytes for {count} elements");
        Ok(Contents::Fixed(Bytes::from_owner(EngineMemory(value))))
    })
    .map_err(|why| Error::internal(format!("output '{}': {why}", port.name)))
}

/// Memory of the engine as the owner of the server's bytes.
struct EngineMemory(TValue);

impl AsRef<[u8]> for EngineMemory {
    fn as_ref(&self) -> &[u8] {
        self.0.as_plain_ram().map_or(&[], |plain| plain.as_bytes())
    }
}
