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
use nereid_graph_executor::{Contents, Elements, Words};
use ort::AsPointer;
use ort::memory::Allocator;
use ort::session::SessionInputValue;
use ort::value::{
    DynTensor, DynValue, PrimitiveTensorElementType, Shape as OrtShape, TensorElementType, TensorRef,
    ValueType,
};

use crate::one_line;
use crate::signature::data_type;

/// An input, ready to be run on.
#[derive(Debug)]
pub(crate) enum Value {
    /// Elements of a fixed size.
    Fixed(Elements),
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
        Elements::join(data_type, parts, spare).map(Self::Fixed)
    }

    /// The input in the library's form, over the same memory.
    pub(crate) fn feed<'a>(
        &'a self,
        data_type: DataType,
        shape: &'a Shape,
    ) -> ort::Result<SessionInputValue<'a>> {
        let bytes: &[u8] = match self {
            Self::Fixed(elements) => elements.as_bytes(),
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
        match self {
            Self::Fixed(elements) => elements.addresses(),
            Self::Strings(_) => 0..0,
        }
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
    // otherwise returns the address of a string of `element.len()` bytes, which nothing else refers to.
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
    // SAFETY: the value is a tensor of strings, as its type shows; `size` is valid to write.
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
    /// A copy of the bytes, if they could not stay in place.
    copy: Option<Bytes>,
}

impl Raw {
    /// An output of a run over inputs at these addresses. A graph may return an input as an output; since the input
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

    /// The shape and contents, if the type is the one that the model declares.
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
    /// The address of a tensor that is neither empty nor made of strings.
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

// SAFETY: the address is the value's memory, which any thread may read and the last holder free.
unsafe impl Send for Memory {}
