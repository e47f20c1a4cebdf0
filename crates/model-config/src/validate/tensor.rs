//! The rules for inputs and outputs: names, types, shapes.

use std::collections::HashSet;

use super::Fault;
use crate::DataType;
use crate::proto::model_input::Format;
use crate::proto::{self, ModelConfig, ModelInput, ModelOutput};

/// A dimension of any size.
const ANY_SIZE: i64 = -1;

/// The one platform that knows shape tensors and elements in an order of its own.
const TENSORRT_PLATFORM: &str = "tensorrt_plan";

/// What inputs and outputs have in common.
struct Tensor<'a> {
    /// Path of the tensor in the configuration.
    path: String,
    name: &'a str,
    data_type: i32,
    dims: &'a [i64],
    reshape: Option<&'a [i64]>,
    is_shape_tensor: bool,
    is_non_linear_format_io: bool,
}

impl<'a> Tensor<'a> {
    fn input(index: usize, input: &'a ModelInput) -> Self {
        Self {
            path: format!("input[{index}]"),
            name: &input.name,
            data_type: input.data_type,
            dims: &input.dims,
            reshape: input.reshape.as_ref().map(|reshape| reshape.shape.as_slice()),
            is_shape_tensor: input.is_shape_tensor,
            is_non_linear_format_io: input.is_non_linear_format_io,
        }
    }

    fn output(index: usize, output: &'a ModelOutput) -> Self {
        Self {
            path: format!("output[{index}]"),
            name: &output.name,
            data_type: output.data_type,
            dims: &output.dims,
            reshape: output.reshape.as_ref().map(|reshape| reshape.shape.as_slice()),
            is_shape_tensor: output.is_shape_tensor,
            is_non_linear_format_io: output.is_non_linear_format_io,
        }
    }

    /// A fault of one of the tensor's fields; the reason begins with the tensor's name.
    fn fault(&self, field: &str, reason: impl AsRef<str>) -> Fault {
        Fault::new(format!("{}.{field}", self.path), format!("tensor '{}': {}", self.name, reason.as_ref()))
    }
}

pub(super) fn check(config: &ModelConfig) -> Result<(), Fault> {
    let inputs = config.input.iter().enumerate().map(|(index, input)| Tensor::input(index, input));
    check_all(config, inputs)?;
    for (index, input) in config.input.iter().enumerate() {
        check_format(&Tensor::input(index, input), input.format)?;
    }
    let outputs = config.output.iter().enumerate().map(|(index, output)| Tensor::output(index, output));
    check_all(config, outputs)
}

fn check_all<'a>(config: &ModelConfig, tensors: impl Iterator<Item = Tensor<'a>>) -> Result<(), Fault> {
    let mut names = HashSet::new();
    for tensor in tensors {
        if tensor.name.is_empty() {
            return Err(Fault::new(format!("{}.name", tensor.path), "must be given"));
        }
        if !names.insert(tensor.name) {
            return Err(tensor.fault("name", "the name is taken by another tensor"));
        }
        let data_type = proto::DataType::try_from(tensor.data_type).ok().and_then(DataType::from_proto);
        if data_type.is_none() {
            let reason = match tensor.data_type {
                0 => "must be given".to_owned(),
                number => format!("{number} is not a data type"),
            };
            return Err(tensor.fault("data_type", reason));
        }
        check_shapes(config, &tensor)?;
        check_platform(config, &tensor)?;
    }
    Ok(())
}

fn check_shapes(config: &ModelConfig, tensor: &Tensor<'_>) -> Result<(), Fault> {
    if tensor.dims.is_empty() {
        return Err(tensor.fault("dims", "must be given"));
    }
    let dims = fixed_parts(tensor, "dims", tensor.dims)?;
    let Some(reshape) = tensor.reshape else { return Ok(()) };
    if reshape.is_empty() && config.max_batch_size == 0 {
        let reason = "cannot be empty unless the model batches: it would be a tensor without dimensions";
        return Err(tensor.fault("reshape", reason));
    }
    let reshaped = fixed_parts(tensor, "reshape", reshape)?;
    if dims.len() != reshaped.len() {
        let reason = format!("{reshape:?} and dims {:?} differ in their variable dimensions", tensor.dims);
        return Err(tensor.fault("reshape", reason));
    }
    if dims != reshaped {
        let reason = format!("{reshape:?} and dims {:?} differ in their number of elements", tensor.dims);
        return Err(tensor.fault("reshape", reason));
    }
    Ok(())
}

/// The products of the dimensions before, between and after those of any size. Two shapes can hold the same
/// elements if these are equal; an empty shape holds one element.
fn fixed_parts(tensor: &Tensor<'_>, field: &str, shape: &[i64]) -> Result<Vec<i64>, Fault> {
    let mut parts = vec![1_i64];
    let mut total = 1_i64;
    for &dim in shape {
        if dim == ANY_SIZE {
            parts.push(1);
            continue;
        }
        if dim < 1 {
            let reason = format!("{dim} is not a dimension, must be at least 1, or -1 for any size");
            return Err(tensor.fault(field, reason));
        }
        total = total
            .checked_mul(dim)
            .ok_or_else(|| tensor.fault(field, format!("{shape:?} has more elements than can be counted")))?;
        if let Some(part) = parts.last_mut() {
            // Cannot overflow where the total does not.
            *part *= dim;
        }
    }
    Ok(parts)
}

fn check_platform(config: &ModelConfig, tensor: &Tensor<'_>) -> Result<(), Fault> {
    let is_tensorrt = config.platform == TENSORRT_PLATFORM || config.backend == "tensorrt";
    if tensor.is_shape_tensor && !is_tensorrt {
        return Err(tensor.fault("is_shape_tensor", "only TensorRT models have shape tensors"));
    }
    if tensor.is_non_linear_format_io && !is_tensorrt {
        return Err(tensor.fault("is_non_linear_format_io", "only TensorRT models have non-linear tensors"));
    }
    if tensor.is_non_linear_format_io && tensor.dims.len() != 3 {
        return Err(tensor.fault("dims", "a non-linear tensor has 3 dimensions"));
    }
    Ok(())
}

fn check_format(input: &Tensor<'_>, format: i32) -> Result<(), Fault> {
    match Format::try_from(format) {
        Ok(Format::None) => Ok(()),
        Ok(Format::Nhwc | Format::Nchw) if input.dims.len() == 3 => Ok(()),
        Ok(_) => Err(input.fault("dims", "an image has 3 dimensions, as format says NHWC or NCHW")),
        Err(_) => Err(input.fault("format", format!("{format} is not a format"))),
    }
}
