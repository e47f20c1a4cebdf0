//! Converts tensors between the server and ONNX Runtime.
//!
//! A fixed-size input in one piece is passed to the library in place; one in several pieces, or at an unaligned
//! address, is copied once. A fixed-size output stays in the library's memory until the response is sent. Strings are
//! copied both ways, because the two sides store them differently.

use std::ffi::c_char;
use std::fmt::Debug;
use std::ops::Range;
use std::{ptr, slice};

use bytemuck::Pod;
use bytes::Bytes;
use half::{bf16, f16};
use nereid_backend_api::{BytesElements, DataType, Error, Result, Shape, Tensor};
use nereid_graph_executor::Contents;
use ort::AsPointer;
use ort::memory::Allocator;
use ort::session::SessionInputValue;
use ort::value::{
    DynTensor, DynValue, PrimitiveTensorElementType, Shape as OrtShape, TensorElementType, TensorRef,
    ValueType,
};
use smallvec::SmallVec;

use crate::one_line;
use crate::signature::data_type;

/// Memory for copies, aligned for every element type.
pub(crate) type Words = Vec<u64>;

/// An input, ready to be run on.
#[derive(Debug)]
pub(crate) enum Value {
    /// In the memory of the request.
    Given(Bytes),
    /// A copy, of this many bytes.
    Copied(Words, usize),
    /// Strings, in the library's form.
    Strings(DynTensor),
}

impl Value {
    /// Joins the contents of `parts`, which make a tensor of that type and shape. A copy goes to memory from `spare`, if
    /// there is any.
    pub(crate) fn gather(
        data_type: DataType,
        shape: &Shape,
        parts: &[&Tensor],
        spare: impl FnOnce() -> Words,
    ) -> Result<Self> {
        if data_type == DataType::Bytes {
            return strings(shape, parts).map(Self::Strings);
        }
        let pieces = host_pieces(parts)?;
        if let [piece] = pieces.as_slice()
            && fits(data_type, piece)
        {
            return Ok(Self::Given((*piece).clone()));
        }
        let size: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut words = spare();
        if words.len() * size_of::<u64>() < size {
            words.resize(size.div_ceil(size_of::<u64>()), 0);
        }
        let mut target: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        for piece in pieces {
            let (here, rest) = target.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            if data_type == DataType::Bool {
                // Bytes other than 0 and 1 are not valid bools, here or in the library's kernels.
                here.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
            target = rest;
        }
        Ok(Self::Copied(words, size))
    }

    /// The input in the library's form, over the same memory.
    pub(crate) fn feed<'a>(
        &'a self,
        data_type: DataType,
        shape: &'a Shape,
    ) -> ort::Result<SessionInputValue<'a>> {
        let bytes: &[u8] = match self {
            Self::Given(bytes) => bytes,
            Self::Copied(words, size) => &bytemuck::cast_slice(words)[..*size],
            Self::Strings(tensor) => return Ok(tensor.into()),
        };
        match data_type {
            DataType::Bool => {
                let flags: &[bool] = bytemuck::checked::try_cast_slice(bytes).map_err(mismatch)?;
                Ok(TensorRef::from_array_view((&shape[..], flags))?.into())
            }
            DataType::Uint8 => view::<u8>(bytes, shape),
            DataType::Uint16 => view::<u16>(bytes, shape),
            DataType::Uint32 => view::<u32>(bytes, shape),
            DataType::Uint64 => view::<u64>(bytes, shape),
            DataType::Int8 => view::<i8>(bytes, shape),
            DataType::Int16 => view::<i16>(bytes, shape),
            DataType::Int32 => view::<i32>(bytes, shape),
            DataType::Int64 => view::<i64>(bytes, shape),
            DataType::Fp16 => view::<f16>(bytes, shape),
            DataType::Bf16 => view::<bf16>(bytes, shape),
            DataType::Fp32 => view::<f32>(bytes, shape),
            DataType::Fp64 => view::<f64>(bytes, shape),
            DataType::Bytes => Err(ort::Error::new("strings are not made of bytes alone")),
        }
    }

    /// The addresses at which the library reads it.
    pub(crate) fn addresses(&self) -> Range<usize> {
        let range = match self {
            Self::Given(bytes) => bytes.as_ptr_range(),
            Self::Copied(words, size) => bytemuck::cast_slice::<u64, u8>(words)[..*size].as_ptr_range(),
            Self::Strings(_) => return 0..0,
        };
        range.start.addr()..range.end.addr()
    }
}

/// The elements in `bytes`, which are aligned for them.
fn view<'a, T>(bytes: &'a [u8], shape: &'a Shape) -> ort::Result<SessionInputValue<'a>>
where
    T: Pod + PrimitiveTensorElementType + Debug,
{
    let elements: &[T] = bytemuck::try_cast_slice(bytes).map_err(mismatch)?;
    Ok(TensorRef::from_array_view((&shape[..], elements))?.into())
}

fn mismatch(why: impl ToString) -> ort::Error {
    ort::Error::new(why.to_string())
}

/// Whether the bytes are aligned for elements of this type.
pub(crate) fn fits_address(data_type: DataType, bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(data_type.byte_size().unwrap_or(1))
}

/// Whether the library may read the bytes in place, as elements of this type.
fn fits(data_type: DataType, bytes: &[u8]) -> bool {
    fits_address(data_type, bytes) && (data_type != DataType::Bool || bytes.iter().all(|&byte| byte <= 1))
}

fn host_pieces<'a>(parts: &[&'a Tensor]) -> Result<SmallVec<[&'a Bytes; 8]>> {
    let pieces = parts.iter().flat_map(|part| part.buffers.iter().map(move |buffer| (part, buffer)));
    pieces
        .map(|(part, buffer)| {
            buffer.as_host().ok_or_else(|| {
                Error::unsupported(format!(
                    "input '{}' lies in device memory, which this backend does not read",
                    part.name
                ))
            })
        })
        .collect()
}

/// A tensor of strings with the elements of all `parts`. They need not be UTF-8.
fn strings(shape: &Shape, parts: &[&Tensor]) -> Result<DynTensor> {
    let refused = |error: ort::Error| {
        Error::internal(format!(
            "ONNX Runtime takes no strings of shape {shape}: {}",
            one_line(error.message())
        ))
    };
    let dims = OrtShape::new(shape.iter().copied());
    let mut tensor =
        DynTensor::new(&Allocator::default(), TensorElementType::String, dims).map_err(refused)?;
    let mut index = 0;
    for part in parts {
        for element in BytesElements::new(&part.contiguous()?) {
            write_string(&mut tensor, index, element?).map_err(refused)?;
            index += 1;
        }
    }
    Ok(tensor)
}

fn write_string(tensor: &mut DynTensor, index: usize, element: &[u8]) -> ort::Result<()> {
    let mut buffer: *mut c_char = ptr::null_mut();
    // SAFETY: the tensor is one of strings, owned by the caller alone. The library refuses an index outside of it, and
    // otherwise gives the address of a string of `element.len()` bytes, which nothing else refers to.
    unsafe {
        let resize = ort::api().GetResizedStringTensorElementBuffer;
        let status = resize(tensor.ptr_mut(), index, element.len(), &raw mut buffer);
        ort::Error::result_from_status(status)?;
        ptr::copy_nonoverlapping(element.as_ptr(), buffer.cast(), element.len());
    }
    Ok(())
}

fn read_strings(value: &DynValue, count: usize) -> ort::Result<Vec<Vec<u8>>> {
    let mut size = 0;
    // SAFETY: the value is a tensor of strings, as its type said; `size` is valid to write.
    unsafe {
        ort::Error::result_from_status((ort::api().GetStringTensorDataLength)(value.ptr(), &raw mut size))?;
    }
    let (mut contents, mut offsets) = (vec![0_u8; size], vec![0_usize; count]);
    if count > 0 {
        // SAFETY: both buffers have the stated lengths, and the library refuses a wrong number of offsets.
        unsafe {
            let read = ort::api().GetStringTensorContent;
            let status = read(value.ptr(), contents.as_mut_ptr().cast(), size, offsets.as_mut_ptr(), count);
            ort::Error::result_from_status(status)?;
        }
    }
    let ends = offsets.iter().skip(1).copied().chain([size]);
    let texts = offsets.iter().zip(ends).map(|(&start, end)| contents.get(start..end).map(<[u8]>::to_vec));
    texts
        .collect::<Option<_>>()
        .ok_or_else(|| ort::Error::new("the places of its strings do not fit together"))
}

/// An output from the library.
#[derive(Debug)]
pub(crate) struct Raw {
    value: DynValue,
    /// Its bytes, if they could not stay in place.
    copy: Option<Bytes>,
}

impl Raw {
    /// An output of a run over inputs at these addresses. A graph may give an input back as an output; since the input
    /// belongs to a request that ends before its response is sent, such an output is copied.
    pub(crate) fn of(value: DynValue, inputs: &[Range<usize>]) -> Result<Self> {
        let (element, shape) = typed(&value)?;
        if element == DataType::Bytes || shape.element_count() == Some(0) {
            return Ok(Self { value, copy: None });
        }
        let memory = Memory::of(value, element, &shape)?;
        let start = memory.address.addr();
        let is_input = inputs.iter().any(|input| input.contains(&start));
        let copy = is_input.then(|| Bytes::copy_from_slice(memory.as_ref()));
        Ok(Self { value: memory.value, copy })
    }

    /// Its shape and contents, if it has the type that the model declares.
    pub(crate) fn read(self, declared: DataType) -> Result<(Shape, Contents)> {
        let (element, shape) = typed(&self.value)?;
        if element != declared {
            return Err(Error::internal(format!("it is {element}, but the model declares {declared}")));
        }
        let count = shape.element_count().unwrap_or(0);
        if element == DataType::Bytes {
            let strings = read_strings(&self.value, count)
                .map_err(|error| Error::internal(one_line(error.message())))?;
            return Ok((shape, Contents::Strings(strings)));
        }
        let bytes = match self.copy {
            Some(bytes) => bytes,
            None if count == 0 => Bytes::new(),
            None => Bytes::from_owner(Memory::of(self.value, element, &shape)?),
        };
        Ok((shape, Contents::Fixed(bytes)))
    }
}

fn typed(value: &DynValue) -> Result<(DataType, Shape)> {
    let ValueType::Tensor { ty, shape, .. } = value.dtype() else {
        return Err(Error::internal(format!("it is {}, not a tensor", value.dtype())));
    };
    let element = data_type(*ty)
        .ok_or_else(|| Error::internal(format!("its element type is {ty}, which the protocol lacks")))?;
    Ok((element, shape.iter().copied().collect()))
}

/// The bytes of an output, as an owner of the server's bytes.
struct Memory {
    value: DynValue,
    address: *const u8,
    len: usize,
}

impl Memory {
    /// Of a tensor that is neither empty nor made of strings.
    fn of(value: DynValue, element: DataType, shape: &Shape) -> Result<Self> {
        if !value.memory_info().is_cpu_accessible() {
            return Err(Error::unsupported("it lies in device memory, which this backend does not read"));
        }
        let size = element.byte_size().unwrap_or(0);
        let len = shape.element_count().and_then(|count| count.checked_mul(size));
        let len = len.ok_or_else(|| Error::internal(format!("it has the invalid shape {shape}")))?;
        let address = value.data_ptr().cast();
        Ok(Self { value, address, len })
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the library keeps the elements of a tensor in one run from this address on, for as long as the value
        // lives, which is held here. Its length was computed from its own type and shape. Nothing writes to an output
        // once the run is over; where it is an input's memory, it is read before the input goes.
        unsafe { slice::from_raw_parts(self.address, self.len) }
    }
}

// SAFETY: the address is that of the value's memory, which any thread may read and the last holder free.
unsafe impl Send for Memory {}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(data_type: DataType, shape: &[i64], parts: &[&[u8]]) -> Value {
        let tensor = |part: &&[u8]| Tensor::new("X", data_type, shape, part.to_vec());
        let tensors: Vec<_> = parts.iter().map(tensor).collect();
        Value::gather(data_type, &shape.into(), &tensors.iter().collect::<Vec<_>>(), Words::new).unwrap()
    }

    #[test]
    fn one_piece_is_not_copied_if_it_is_aligned() {
        let words = vec![0_u64; 2];
        let bytes = Bytes::from_owner(bytemuck::cast_slice::<u64, u8>(&words).to_vec());
        let start = bytes.as_ptr().addr() % 4;
        let aligned =
            Tensor::new("X", DataType::Fp32, [1], bytes.slice((4 - start) % 4..(4 - start) % 4 + 4));
        let value = Value::gather(DataType::Fp32, &[1].into(), &[&aligned], Words::new).unwrap();
        assert_eq!(value.addresses().start, aligned.buffers[0].as_host().unwrap().as_ptr().addr());
        assert!(matches!(value, Value::Given(_)));
        let odd =
            Tensor::new("X", DataType::Fp32, [1], bytes.slice((4 - start) % 4 + 1..(4 - start) % 4 + 5));
        let value = Value::gather(DataType::Fp32, &[1].into(), &[&odd], Words::new).unwrap();
        assert!(matches!(value, Value::Copied(_, 4)));
    }

    #[test]
    fn pieces_are_joined_in_order_in_memory_that_is_used_again() {
        let Value::Copied(words, 6) = gather(DataType::Uint8, &[6], &[b"abc", b"def"]) else { panic!() };
        assert_eq!(&bytemuck::cast_slice::<u64, u8>(&words)[..6], b"abcdef");
        let parts = [
            Tensor::new("X", DataType::Uint8, [1], vec![b'x']),
            Tensor::new("X", DataType::Uint8, [1], vec![b'y']),
        ];
        let before = words.as_ptr();
        let value =
            Value::gather(DataType::Uint8, &[2].into(), &parts.iter().collect::<Vec<_>>(), || words).unwrap();
        let Value::Copied(words, 2) = value else { panic!() };
        assert_eq!(
            (words.as_ptr(), &bytemuck::cast_slice::<u64, u8>(&words)[..2]),
            (before, b"xy".as_slice())
        );
    }

    #[test]
    fn any_byte_but_zero_is_true() {
        assert!(matches!(gather(DataType::Bool, &[2], &[&[0, 1]]), Value::Given(_)));
        let Value::Copied(words, 3) = gather(DataType::Bool, &[3], &[&[0, 1, 255]]) else { panic!() };
        assert_eq!(bytemuck::cast_slice::<u64, u8>(&words)[..3], [0, 1, 1]);
    }

    #[test]
    fn an_empty_input_needs_no_memory() {
        let value = gather(DataType::Fp64, &[0], &[]);
        assert!(
            matches!(&value, Value::Copied(words, 0) if words.is_empty()) && value.addresses().is_empty()
        );
    }
}
