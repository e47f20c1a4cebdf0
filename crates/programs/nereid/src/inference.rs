//! Requests and responses of a server within a program.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use nereid_core::ResponseStream;
use nereid_core::backend_api::{
    CorrelationId, DataType, Error, InferRequest, ParameterValue, RequestedOutput, Response, Result,
    SequenceFlags, Shape, Tensor,
};

/// A request to a model.
#[derive(Default)]
#[must_use]
pub struct Request {
    pub(crate) model: String,
    pub(crate) version: Option<u64>,
    pub(crate) inner: InferRequest,
}

impl Request {
    /// A request to the version of a model that its version policy serves by default.
    pub fn new(model: impl Into<String>) -> Self {
        Self { model: model.into(), ..Self::default() }
    }

    /// Asks this version of the model.
    pub fn version(mut self, version: u64) -> Self {
        self.version = Some(version);
        self
    }

    /// The request's id, which comes back with traces and in the log.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.inner.id = id.into();
        self
    }

    /// Adds an input.
    pub fn input(mut self, input: Tensor) -> Self {
        self.inner.inputs.push(input);
        self
    }

    /// Requests an output by its name. Without any, all are returned.
    pub fn output(mut self, name: impl Into<String>) -> Self {
        self.inner.outputs.push(RequestedOutput::new(name));
        self
    }

    /// Sets a parameter for the backend.
    pub fn parameter(mut self, name: impl Into<String>, value: ParameterValue) -> Self {
        self.inner.parameters.set(name.into(), value);
        self
    }

    /// Makes the request part of the sequence `id`, which must not be 0. `start` and `end` mark its first and last
    /// request.
    pub fn sequence(mut self, id: u64, start: bool, end: bool) -> Self {
        self.inner.correlation_id = CorrelationId::Number(id);
        self.inner.sequence = SequenceFlags { start, end };
        self
    }

    /// Sets the priority, 1 being the highest; 0 for the model's default.
    pub fn priority(mut self, priority: u64) -> Self {
        self.inner.priority = priority;
        self
    }

    /// Sets the maximum time in the queue, if the model's queue policy lets requests override it.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.inner.timeout = Some(timeout);
        self
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Request");
        debug.field("model", &self.model).field("version", &self.version).field("id", &self.inner.id);
        debug.field("inputs", &self.inner.inputs).finish_non_exhaustive()
    }
}

/// The responses to a request, as they arrive. Dropping it cancels the request.
pub struct Responses(pub(crate) ResponseStream);

impl Responses {
    /// The next response, or `None` after the last one.
    pub async fn next(&mut self) -> Option<Result<Response>> {
        self.0.next().await
    }

    /// The name of the model that answers.
    pub fn model_name(&self) -> &str {
        self.0.model_name()
    }

    /// The version that answers.
    pub fn model_version(&self) -> u64 {
        self.0.model_version()
    }
}

impl Stream for Responses {
    type Item = Result<Response>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next(context)
    }
}

impl fmt::Debug for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responses").field("model", &self.model_name()).finish_non_exhaustive()
    }
}

/// A Rust type of tensors' elements.
pub trait Element: Copy + sealed::Bytes {
    /// The type's name in configurations.
    const DATA_TYPE: DataType;
}

mod sealed {
    /// Elements as tensors hold them: little-endian.
    pub trait Bytes: Sized {
        const SIZE: usize;
        fn put(self, target: &mut Vec<u8>);
        fn get(bytes: &[u8]) -> Option<Self>;
    }
}

macro_rules! elements {
    ($($type:ty = $name:ident),* $(,)?) => {
        $(
            impl Element for $type {
                const DATA_TYPE: DataType = DataType::$name;
            }

            impl sealed::Bytes for $type {
                const SIZE: usize = size_of::<$type>();

                fn put(self, target: &mut Vec<u8>) {
                    target.extend_from_slice(&self.to_le_bytes());
                }

                fn get(bytes: &[u8]) -> Option<Self> {
                    bytes.try_into().ok().map(Self::from_le_bytes)
                }
            }
        )*
    };
}

elements! {
    u8 = Uint8, u16 = Uint16, u32 = Uint32, u64 = Uint64, i8 = Int8, i16 = Int16, i32 = Int32, i64 = Int64, f32 = Fp32,
    f64 = Fp64,
}

/// A tensor of these elements, row by row. The shape includes the batch dimension, if the model has one; the server checks
/// that it fits.
pub fn tensor<T: Element>(name: impl Into<String>, shape: impl Into<Shape>, values: &[T]) -> Tensor {
    let mut contents = Vec::with_capacity(values.len().saturating_mul(T::SIZE));
    values.iter().for_each(|value| value.put(&mut contents));
    Tensor::new(name, T::DATA_TYPE, shape, contents)
}

/// The elements of a tensor, row by row.
///
/// # Errors
/// The tensor has elements of another type, or is in the memory of a GPU whose driver failed.
pub fn elements<T: Element>(tensor: &Tensor) -> Result<Vec<T>> {
    if tensor.data_type != T::DATA_TYPE {
        return Err(Error::invalid_arg(format!(
            "tensor '{}' is of type {}, not {}",
            tensor.name,
            tensor.data_type,
            T::DATA_TYPE
        )));
    }
    let contents = tensor.contiguous()?;
    Ok(contents.chunks_exact(T::SIZE).filter_map(T::get).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn elements_round_trip(
            floats in any::<Vec<f32>>(),
            numbers in any::<Vec<i64>>(),
            bytes in any::<Vec<u8>>(),
        ) {
            let count = i64::try_from(floats.len()).unwrap();
            let floating = tensor("x", [count], &floats);
            prop_assert!(floating.check_contents().is_ok());
            let found: Vec<f32> = elements(&floating).unwrap();
            prop_assert_eq!(found.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
                floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            let integral = tensor("x", [numbers.len() as i64], &numbers);
            prop_assert_eq!(elements::<i64>(&integral).unwrap(), numbers);
            prop_assert_eq!(elements::<u8>(&tensor("x", [1, bytes.len() as i64], &bytes)).unwrap(), bytes);
            prop_assert!(elements::<i32>(&floating).is_err());
        }
    }
}
