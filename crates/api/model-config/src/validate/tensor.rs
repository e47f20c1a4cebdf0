//! The rules for inputs and outputs: names, types, shapes.

use std::collections::HashSet;

use super::Stage;
use super::report::Report;
use crate::backend::TENSORRT_PLATFORM;
use crate::proto::model_input::Format;
use crate::proto::{DataType, ModelConfig, ModelInput, ModelOutput};

/// A dimension of any size.
pub(super) const ANY_SIZE: i64 = -1;

/// The common properties of inputs and outputs.
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

    /// Reports one of the tensor's fields; the reason begins with the tensor's name.
    fn report(&self, report: &mut Report, field: &str, reason: impl AsRef<str>) {
        if report.is_full() {
            return;
        }
        report.add(format!("{}.{field}", self.path), format!("tensor '{}': {}", self.name, reason.as_ref()));
    }
}

pub(super) fn check(config: &ModelConfig, stage: Stage, report: &mut Report) {
    let mut names = HashSet::new();
    for (index, input) in config.input.iter().enumerate() {
        let tensor = Tensor::input(index, input);
        check_tensor(config, stage, &tensor, &mut names, report);
        check_format(&tensor, input.format, report);
    }
    names.clear();
    for (index, output) in config.output.iter().enumerate() {
        let tensor = Tensor::output(index, output);
        check_tensor(config, stage, &tensor, &mut names, report);
    }
}

fn check_tensor<'a>(
    config: &ModelConfig,
    stage: Stage,
    tensor: &Tensor<'a>,
    names: &mut HashSet<&'a str>,
    report: &mut Report,
) {
    if tensor.name.is_empty() {
        report.add(format!("{}.name", tensor.path), "is required");
    } else if !names.insert(tensor.name) {
        tensor.report(report, "name", "the name is taken by another tensor");
    }
    if tensor.data_type == DataType::TypeInvalid as i32 && stage == Stage::Final {
        tensor.report(report, "data_type", "is required");
    }
    check_shapes(config, stage, tensor, report);
    check_platform(config, tensor, report);
}

fn check_shapes(config: &ModelConfig, stage: Stage, tensor: &Tensor<'_>, report: &mut Report) {
    if tensor.dims.is_empty() && stage == Stage::Final {
        tensor.report(report, "dims", "is required");
    }
    let dims = fixed_parts(tensor, "dims", tensor.dims, report);
    let Some(reshape) = tensor.reshape else { return };
    // Completion may find that the model batches.
    if reshape.is_empty() && config.max_batch_size == 0 && stage == Stage::Final {
        let reason = "cannot be empty unless the model batches: it would be a tensor without dimensions";
        tensor.report(report, "reshape", reason);
        return;
    }
    let reshaped = fixed_parts(tensor, "reshape.shape", reshape, report);
    let (Some(dims), Some(reshaped)) = (dims, reshaped) else { return };
    if tensor.dims.is_empty() {
        return;
    }
    if dims.len() != reshaped.len() {
        let reason = format!("{reshape:?} and dims {:?} differ in their variable dimensions", tensor.dims);
        tensor.report(report, "reshape", reason);
    } else if dims != reshaped {
        let reason = format!("{reshape:?} and dims {:?} differ in their number of elements", tensor.dims);
        tensor.report(report, "reshape", reason);
    }
}

/// The products of the dimensions before, between and after the variable ones. Two shapes can hold the same elements
/// if these are equal; an empty shape holds one element. `None` if a dimension is invalid.
fn fixed_parts(tensor: &Tensor<'_>, field: &str, shape: &[i64], report: &mut Report) -> Option<Vec<i64>> {
    let mut parts = vec![1_i64];
    let mut total = Some(1_i64);
    let mut right = true;
    for (index, &dim) in shape.iter().enumerate() {
        if dim == ANY_SIZE {
            parts.push(1);
            continue;
        }
        if dim < 1 {
            let reason = format!("{dim} is not a dimension, must be at least 1, or -1 for any size");
            tensor.report(report, &format!("{field}[{index}]"), reason);
            right = false;
            continue;
        }
        total = total.and_then(|total| total.checked_mul(dim));
        if let Some(part) = parts.last_mut() {
            // Cannot overflow unless the total does.
            *part = part.wrapping_mul(dim);
        }
    }
    if total.is_none() {
        tensor.report(report, field, format!("{shape:?} has more elements than can be counted"));
        right = false;
    }
    right.then_some(parts)
}

fn check_platform(config: &ModelConfig, tensor: &Tensor<'_>, report: &mut Report) {
    let is_tensorrt = config.platform == TENSORRT_PLATFORM || config.backend == "tensorrt";
    if tensor.is_shape_tensor && !is_tensorrt {
        tensor.report(report, "is_shape_tensor", "only TensorRT models have shape tensors");
    }
    if !tensor.is_non_linear_format_io {
        return;
    }
    if !is_tensorrt {
        tensor.report(report, "is_non_linear_format_io", "only TensorRT models have non-linear tensors");
    } else if !tensor.dims.is_empty() && tensor.dims.len() != 3 {
        tensor.report(report, "dims", "a non-linear tensor has 3 dimensions");
    }
}

fn check_format(input: &Tensor<'_>, format: i32, report: &mut Report) {
    let is_image = matches!(Format::try_from(format), Ok(Format::Nhwc | Format::Nchw));
    if is_image && !input.dims.is_empty() && input.dims.len() != 3 {
        input.report(report, "dims", "must have 3 dimensions for format NHWC or NCHW");
    }
}
