//! The memory that the engine takes to compute a node, besides its inputs and output.
//!
//! The amount is a small multiple of these but for the operators here, where a few numbers can make it arbitrarily large.

use tract_onnx::pb::NodeProto;
use tract_onnx::prelude::{InferenceFact, TractResult};
use tract_onnx::tract_core::internal::ensure;
use tract_onnx::tract_hir::infer::Factoid;

/// The bytes for a place that an axis is resampled to: four neighbours and their weights.
const RESAMPLED: u64 = 4 * (size_of::<usize>() + size_of::<f32>()) as u64;

/// The bytes for an element that a window covers: its place in the window, and in the input.
const COVERED: u64 = 2 * size_of::<usize>() as u64;

/// The kinds of operators, by what decides the amount.
pub(crate) enum Scratch {
    /// Tile repeats one axis after the other.
    Repeats,
    /// Resize resamples one axis after the other.
    Resampling,
    /// Pools and convolutions list what a window covers, for each way in which it reaches past an edge.
    Window(Window),
    Little,
}

pub(crate) struct Window {
    of: Kind,
    /// None if only the weights have it.
    kernel: Option<Vec<u64>>,
    strides: Vec<u64>,
    dilations: Vec<u64>,
    groups: u64,
}

#[derive(Clone, Copy)]
enum Kind {
    Pool,
    /// With the position of the weights among the inputs.
    Conv(usize),
    ConvTranspose,
}

impl Scratch {
    pub(crate) fn new(node: &NodeProto) -> Self {
        let attribute = |name| node.attribute.iter().find(|it| it.name == name);
        let of = match node.op_type.as_str() {
            "Tile" => return Self::Repeats,
            "Resize" => return Self::Resampling,
            "AveragePool" | "MaxPool" => Kind::Pool,
            "Conv" | "ConvInteger" => Kind::Conv(1),
            "QLinearConv" => Kind::Conv(3),
            "ConvTranspose" => Kind::ConvTranspose,
            _ => return Self::Little,
        };
        let list = |name| attribute(name).map(|it| it.ints.iter().map(|size| size.unsigned_abs()).collect());
        Self::Window(Window {
            of,
            kernel: list("kernel_shape"),
            strides: list("strides").unwrap_or_default(),
            dilations: list("dilations").unwrap_or_default(),
            groups: attribute("group").map_or(1, |it| it.i.unsigned_abs()),
        })
    }

    /// The bytes, if what decides them is known. A node that `folds` has only constant inputs, and is computed before there
    /// is a plan whose tensors can be counted.
    pub(crate) fn bytes(
        &self,
        inputs: &[InferenceFact],
        output: &InferenceFact,
        folds: bool,
    ) -> TractResult<Option<u64>> {
        let (Some(input), Some(output)) = (inputs.first().and_then(sizes), sizes(output)) else {
            return Ok(None);
        };
        let element = inputs[0].datum_type.concretize().map_or(1, |it| it.size_of() as u64);
        let bytes = match self {
            Self::Repeats => {
                let Some(repeats) = inputs.get(1).and_then(|repeats| repeats.value.concretize()) else {
                    return Ok(None);
                };
                let repeats = repeats.cast_to::<i64>()?;
                let repeats = repeats.try_as_plain_ram()?.as_slice::<i64>()?;
                ensure!(repeats.iter().all(|count| *count >= 0), "it cannot be repeated {repeats:?} times");
                // The engine repeats what has no elements, too, and what it will repeat 0 times along the next axis.
                let repeats = repeats.iter().map(|count| count.unsigned_abs().max(1));
                product(repeats.chain(input.iter().map(|&size| size.max(1))).chain([element]))
            }
            Self::Resampling => {
                let sizes = || input.iter().zip(&output);
                let between = sizes().map(|(&from, &to)| from.max(to));
                // A window that prevents aliasing grows as the output shrinks.
                let places = sizes().map(|(from, to)| from.saturating_add(*to)).max().unwrap_or(0);
                product(between.chain([size_of::<f32>() as u64]))
                    .saturating_add(places.saturating_mul(RESAMPLED))
            }
            Self::Window(window) => window.bytes(inputs, &input, &output, folds.then_some(element)),
            Self::Little => 0,
        };
        Ok(Some(bytes))
    }
}

impl Window {
    /// `folds` has the bytes of an element if the node folds.
    fn bytes(&self, inputs: &[InferenceFact], input: &[u64], output: &[u64], folds: Option<u64>) -> u64 {
        let (Some(input_sizes), Some(output_sizes)) = (input.get(2..), output.get(2..)) else { return 0 };
        let weights = match self.of {
            Kind::Pool => None,
            Kind::Conv(position) => inputs.get(position),
            Kind::ConvTranspose => inputs.get(1),
        };
        let weights = weights.and_then(sizes).unwrap_or_default();
        let kernel = self.kernel.as_deref().or(weights.get(2..)).unwrap_or_default();
        let covered = product(kernel.iter().map(|&size| size.max(1)));
        let places = |sizes: &[u64]| product(sizes.iter().copied());
        let ways = kernel.iter().enumerate().map(|(axis, &kernel)| {
            let of = |list: &[u64]| list.get(axis).copied().unwrap_or(1);
            ways(of(input_sizes), of(output_sizes), kernel, of(&self.strides), of(&self.dilations))
        });
        let listed = product([product(ways), covered, COVERED]);
        match (self.of, folds) {
            // What each place of the input adds to the output.
            (Kind::ConvTranspose, Some(element)) => {
                let channels = weights.get(1).copied().unwrap_or(1).saturating_mul(self.groups);
                product([input[0], channels, covered, places(input_sizes), element])
            }
            (Kind::ConvTranspose, None) => 0,
            // What the window covers at each place of the output.
            (Kind::Conv(_), Some(element)) => {
                listed.saturating_add(product([input[0], input[1], covered, places(output_sizes), element]))
            }
            (Kind::Conv(_), None) | (Kind::Pool, _) => listed,
        }
    }
}

/// In how many ways, at most, a window along an axis reaches past the edges or does not.
fn ways(input: u64, output: u64, kernel: u64, stride: u64, dilation: u64) -> u64 {
    let reach = kernel.saturating_sub(1).saturating_mul(dilation);
    let inside = input.saturating_sub(reach) / stride.max(1);
    // Inside, it is one way.
    output.min(output.saturating_sub(inside).saturating_add(1)).max(1)
}

fn product(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().fold(1, u64::saturating_mul)
}

/// The sizes of a tensor's dimensions, if all are known.
fn sizes(fact: &InferenceFact) -> Option<Vec<u64>> {
    fact.shape.concretize()?.iter().map(|dim| u64::try_from(dim.to_i64().ok()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use tract_onnx::prelude::DatumType;

    use super::*;
    use crate::tests::onnx::{node, with_ints};

    fn bytes(node: &NodeProto, inputs: &[&[usize]], output: &[usize], folds: bool) -> u64 {
        let fact = |dims: &[usize]| InferenceFact::dt_shape(DatumType::F32, dims);
        let inputs: Vec<_> = inputs.iter().map(|dims| fact(dims)).collect();
        Scratch::new(node).bytes(&inputs, &fact(output), folds).unwrap().unwrap()
    }

    #[test]
    fn a_convolution_of_constants_takes_what_a_plan_would_count() {
        let (wide, narrow) = (&[2, 64, 256, 256][..], &[2, 32, 250, 250][..]);
        for (operator, input, output) in [("Conv", wide, narrow), ("ConvTranspose", narrow, wide)] {
            let conv = node(operator, &["X", "W"], &["Y"]);
            for conv in [conv.clone(), with_ints(conv, "kernel_shape", &[7, 7])] {
                let weights = &[32, 64, 7, 7][..];
                let [planned, folded] =
                    [false, true].map(|folds| bytes(&conv, &[input, weights], output, folds));
                assert!(planned < 1 << 20, "{operator}: {planned}");
                assert_eq!(folded - planned, 2 * 64 * 7 * 7 * 250 * 250 * 4, "{operator}");
            }
        }
    }

    #[test]
    fn a_window_reaches_past_the_edges_in_at_most_so_many_ways() {
        let mut tried = 0;
        for input in 0..9_i64 {
            for kernel in 1..6 {
                for (stride, dilation) in [(1, 1), (1, 2), (2, 1), (2, 3), (3, 1), (3, 2)] {
                    for (before, after) in (0..6).flat_map(|before| (0..6).map(move |after| (before, after)))
                    {
                        let reach = (kernel - 1) * dilation;
                        let room = input + before + after - reach;
                        let output = if room > 0 { (room - 1) / stride + 1 } else { 0 };
                        let outside = |place: i64| {
                            let element = |at: i64| place * stride - before + at * dilation;
                            (0..kernel).map(|at| !(0..input).contains(&element(at))).collect::<Vec<_>>()
                        };
                        let seen: HashSet<_> = (0..output).map(outside).collect();
                        let numbers = [input, output, kernel, stride, dilation];
                        let [input, output, kernel, stride, dilation] = numbers.map(|it| it as u64);
                        let most = ways(input, output, kernel, stride, dilation);
                        assert!(seen.len() as u64 <= most, "{numbers:?}: {} > {most}", seen.len());
                        tried += 1;
                    }
                }
            }
        }
        assert_eq!(tried, 9 * 5 * 6 * 36);
        // The usual one is cheap: at the left edge, inside, at the right edge.
        assert!(ways(224, 224, 3, 1, 1) <= 4);
        assert_eq!(ways(u64::MAX, u64::MAX, u64::MAX, 1, u64::MAX), u64::MAX);
    }
}
