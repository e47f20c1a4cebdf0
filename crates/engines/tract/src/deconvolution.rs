//! ConvTranspose, padded as ONNX defines it.
//!
//! The engine panics, ignores the attribute `auto_pad` or crops the wrong end where `output_shape` is set, and takes
//! `output_padding` off the output with automatic padding. Here each dimension is given explicit pads instead.

use tract_hir::internal::*;
use tract_hir::ops::cnn::{PaddingSpec, PoolSpec};
use tract_hir::ops::nn::DataFormat;
use tract_hir::tract_core::ops::cnn::{Deconv, KernelFormat};
use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::pb::NodeProto;

/// Replaces the builder of the engine.
pub(crate) fn register(operators: &mut OnnxOpRegister) {
    operators.insert("ConvTranspose", deconvolution);
}

fn deconvolution(
    _: &ParsingContext<'_>,
    node: &NodeProto,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let list = |name| node.get_attr_opt_tvec::<usize>(name);
    let padding = match node.get_attr_opt::<String>("auto_pad")?.as_deref() {
        Some("SAME_UPPER") => Padding::SameUpper,
        Some("SAME_LOWER") => Padding::SameLower,
        Some("VALID") => Padding::Explicit(None),
        _ => Padding::Explicit(list("pads")?),
    };
    let operator = Deconvolution {
        kernel: list("kernel_shape")?,
        strides: list("strides")?,
        dilations: list("dilations")?,
        output_padding: list("output_padding")?,
        output_shape: list("output_shape")?,
        padding,
        group: node.get_attr_opt("group")?.unwrap_or(1),
        has_bias: node.input.get(2).is_some_and(|name| !name.is_empty()),
    };
    Ok((expand(operator), vec![]))
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Deconvolution {
    kernel: Option<TVec<usize>>,
    strides: Option<TVec<usize>>,
    dilations: Option<TVec<usize>>,
    /// The elements added to the end of each dimension.
    output_padding: Option<TVec<usize>>,
    output_shape: Option<TVec<usize>>,
    padding: Padding,
    group: usize,
    has_bias: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Padding {
    /// The elements cropped from the start of each dimension, then from the end of each.
    Explicit(Option<TVec<usize>>),
    /// Crops each dimension to the input's times its stride, the odd element from the end.
    SameUpper,
    /// Crops the odd element from the start.
    SameLower,
}

/// One dimension of the output, and how it differs from what the windows cover.
struct Cropped {
    before: usize,
    after: usize,
    /// The elements added to the end.
    added: usize,
    size: usize,
}

impl Deconvolution {
    /// The dimensions of the output behind its channels, for an input and weights of these shapes.
    fn cropped(&self, input: &[usize], weights: &[usize]) -> TractResult<TVec<Cropped>> {
        ensure!(input.len() >= 3 && weights.len() == input.len(), "weights {weights:?} do not fit {input:?}");
        let (sizes, kernel) = (&input[2..], &weights[2..]);
        let fits = |list: &Option<TVec<usize>>, count: usize, least: usize| {
            list.as_ref().is_none_or(|list| {
                list.len() == count && list.iter().all(|it| *it >= least && i32::try_from(*it).is_ok())
            })
        };
        ensure!(
            self.kernel.as_ref().is_none_or(|list| **list == *kernel)
                && fits(&self.strides, sizes.len(), 1)
                && fits(&self.dilations, sizes.len(), 1)
                && fits(&self.output_padding, sizes.len(), 0)
                && fits(&self.output_shape, sizes.len(), 1),
            "the attributes {self:?} do not fit weights {weights:?}"
        );
        if let Padding::Explicit(pads) = &self.padding {
            ensure!(fits(pads, 2 * sizes.len(), 0), "pads {pads:?} do not fit weights {weights:?}");
        }
        (0..sizes.len()).map(|axis| self.cropped_axis(axis, sizes, kernel)).collect()
    }

    fn cropped_axis(&self, axis: usize, sizes: &[usize], kernel: &[usize]) -> TractResult<Cropped> {
        let of = |list: &Option<TVec<usize>>, at: usize, default: usize| {
            list.as_ref().map_or(default, |list| list[at]) as i128
        };
        let (size, kernel) = (sizes[axis] as i128, kernel[axis] as i128);
        let (stride, dilation) = (of(&self.strides, axis, 1), of(&self.dilations, axis, 1));
        let mut added = of(&self.output_padding, axis, 0);
        ensure!(size > 0 && kernel > 0, "a dimension of {size} under a window of {kernel} elements");
        let covered = stride * (size - 1) + dilation * (kernel - 1) + 1;
        let (before, after) = match (&self.padding, &self.output_shape) {
            (Padding::Explicit(pads), None) => (of(pads, axis, 0), of(pads, axis + sizes.len(), 0)),
            (_, None) => {
                let cropped = covered + added - size * stride;
                ensure!(cropped >= 0, "a stride of {stride} is larger than its window");
                self.split(cropped)
            }
            (_, Some(shape)) => {
                let cropped = covered + added - shape[axis] as i128;
                // Elements of the output beyond the windows are added to its end.
                added -= cropped.min(0);
                self.split(cropped.max(0))
            }
        };
        ensure!(added < stride, "an output padding of {added} is not smaller than the stride {stride}");
        let left = covered + added - before - after;
        ensure!(left > 0, "a dimension of {covered} has nothing left without pads of {before} and {after}");
        Ok(Cropped {
            before: before.try_into()?,
            after: after.try_into()?,
            added: added.try_into()?,
            size: left.try_into()?,
        })
    }

    /// Divides cropped elements between start and end.
    fn split(&self, cropped: i128) -> (i128, i128) {
        let half = cropped / 2;
        if self.padding == Padding::SameUpper { (half, cropped - half) } else { (cropped - half, half) }
    }
}

impl Expansion for Deconvolution {
    fn name(&self) -> StaticName {
        "ConvTranspose".into()
    }

    fn rules<'r, 'p: 'r, 's: 'r>(
        &'s self,
        solver: &mut Solver<'r>,
        inputs: &'p [TensorProxy],
        outputs: &'p [TensorProxy],
    ) -> InferenceResult {
        check_input_arity(inputs, 2 + usize::from(self.has_bias))?;
        check_output_arity(outputs, 1)?;
        for input in &inputs[1..] {
            solver.equals(&inputs[0].datum_type, &input.datum_type)?;
        }
        solver.equals(&inputs[0].datum_type, &outputs[0].datum_type)?;
        solver.given_2(&inputs[0].shape, &inputs[1].shape, move |solver, input, weights| {
            let numbers = |dims: &[TDim]| dims.iter().map(TDim::to_usize).collect::<Result<TVec<_>, _>>();
            let (input, weights) = (numbers(&input)?, numbers(&weights)?);
            let cropped = self.cropped(&input, &weights)?;
            let channels = weights[1].checked_mul(self.group).context("it has too many channels")?;
            let dims = [input[0], channels].into_iter().chain(cropped.iter().map(|axis| axis.size));
            solver.equals(&outputs[0].shape, dims.map(|dim| dim.to_dim()).collect::<TVec<_>>())?;
            if self.has_bias {
                solver.equals(&inputs[2].shape, tvec!(channels.to_dim()))?;
            }
            solver.equals(&inputs[1].shape[0], input[1].to_dim())
        })
    }

    fn wire(&self, prefix: &str, model: &mut TypedModel, inputs: &[OutletId]) -> TractResult<TVec<OutletId>> {
        let shape = |input: OutletId, model: &TypedModel| -> TractResult<TVec<usize>> {
            let dims = model.outlet_fact(input)?.shape.as_concrete().context("its shape is unknown")?;
            Ok(dims.into())
        };
        let (input, weights) = (shape(inputs[0], model)?, shape(inputs[1], model)?);
        let cropped = self.cropped(&input, &weights)?;

        // Weights are of shape input channels, output channels per group, window.
        let name = |part: &str| format!("{prefix}.weights_{part}");
        let groups = AxisOp::wire_split_axis(model, name("groups"), inputs[1], 0, self.group)?;
        let turned = model.wire_node(name("turned"), AxisOp::Move(1, 2), &groups)?;
        let kernel = AxisOp::wire_collapse_axis(model, name("merged"), turned[0], 0)?[0];
        let bias = match inputs.get(2) {
            Some(bias) => *bias,
            None => {
                let zero = Tensor::zero_scalar_dt(model.outlet_fact(inputs[0])?.datum_type)?;
                model.add_const(format!("{prefix}.bias"), zero)?
            }
        };

        let pool = PoolSpec::new(
            DataFormat::NCHW,
            weights[2..].into(),
            PaddingSpec::Explicit(
                cropped.iter().map(|axis| axis.before).collect(),
                cropped.iter().map(|axis| axis.after).collect(),
            ),
            self.dilations.clone(),
            self.strides.clone(),
            weights[0],
            weights[1] * self.group,
        );
        let added = cropped.iter().map(|axis| axis.added).collect();
        let operator = Deconv::new(pool, KernelFormat::OIHW, added, self.group);
        model.wire_node(prefix, operator, &[inputs[0], kernel, bias])
    }
}
