//! Checks the windows of pools and convolutions against their input.
//!
//! The engine makes an output for a window that is larger than the padded input, and takes padding alone for the lowest number
//! or for a quotient of zeros. Knows only attributes and dimensions; `verify` checks what the engine makes of them.

use tract_onnx::pb::NodeProto;
use tract_onnx::prelude::TractResult;
use tract_onnx::tract_core::internal::ensure;

/// The attributes that place a window.
pub(crate) struct Windows {
    /// None if only the weights have it.
    kernel: Option<Vec<i64>>,
    strides: Option<Vec<i64>>,
    dilations: Option<Vec<i64>>,
    pads: Option<Vec<i64>>,
    padding: Padding,
    ceils: bool,
    pools: bool,
    /// The input with the weights.
    pub(crate) weights: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Padding {
    Explicit,
    None,
    /// Enough to keep the dimensions for any window.
    Same,
}

/// The windows along one dimension.
#[derive(Clone, Copy, Debug)]
struct Along {
    size: u64,
    kernel: u64,
    stride: u64,
    dilation: u64,
    before: u64,
    after: u64,
}

/// More padding than this has no use, and checking each window in it would take long.
const MOST_PADDING: u64 = 1 << 24;

impl Windows {
    /// The windows of a node, if it is a pool or a convolution.
    pub(crate) fn new(node: &NodeProto) -> Option<Self> {
        let (pools, weights) = match node.op_type.as_str() {
            "AveragePool" | "MaxPool" => (true, 0),
            "Conv" | "ConvInteger" => (false, 1),
            "QLinearConv" => (false, 3),
            _ => return None,
        };
        let attribute = |name| node.attribute.iter().find(|it| it.name == name);
        let list = |name| attribute(name).map(|it| it.ints.clone()).filter(|list| !list.is_empty());
        let padding = match attribute("auto_pad").map_or(&b""[..], |it| &it.s[..]) {
            b"SAME_UPPER" | b"SAME_LOWER" => Padding::Same,
            b"VALID" => Padding::None,
            _ => Padding::Explicit,
        };
        Some(Self {
            kernel: list("kernel_shape"),
            strides: list("strides"),
            dilations: list("dilations"),
            pads: list("pads"),
            padding,
            ceils: attribute("ceil_mode").is_some_and(|it| it.i != 0),
            pools,
            weights,
        })
    }

    /// Checks the windows over an input of these dimensions, with weights of these if it has any.
    pub(crate) fn check(&self, input: &[i64], weights: &[i64]) -> TractResult<()> {
        let sizes = input.get(2..).unwrap_or_default();
        let kernel = self.kernel.as_deref().or(weights.get(2..)).unwrap_or_default();
        let fits = |list: &Option<Vec<i64>>, count: usize, least: i64| {
            list.as_ref().is_none_or(|list| {
                list.len() == count
                    && list.iter().all(|&number| number >= least && i32::try_from(number).is_ok())
            })
        };
        ensure!(
            kernel.len() == sizes.len() && kernel.iter().all(|size| *size > 0),
            "a window {kernel:?} does not fit an input {input:?}"
        );
        ensure!(
            self.pools || weights.get(2..) == Some(kernel),
            "a window {kernel:?} does not fit weights {weights:?}"
        );
        ensure!(
            fits(&self.strides, sizes.len(), 1)
                && fits(&self.dilations, sizes.len(), 1)
                && fits(&self.pads, 2 * sizes.len(), 0),
            "strides {:?}, dilations {:?} and pads {:?} do not fit a window {kernel:?}",
            self.strides,
            self.dilations,
            self.pads
        );
        // ONNX Runtime makes another number of windows than ONNX has it.
        ensure!(
            !self.ceils || self.padding == Padding::Explicit,
            "ceil_mode with automatic padding is not served"
        );
        // ONNX Runtime pads a pool as if its window had no gaps.
        let has_gaps =
            self.dilations.as_ref().is_some_and(|dilations| dilations.iter().any(|step| *step != 1));
        ensure!(
            !(self.pools && has_gaps && self.padding == Padding::Same),
            "a pool with dilations and automatic padding is not served"
        );
        if self.padding == Padding::Same {
            return if self.pools { self.check_same(sizes, kernel) } else { Ok(()) };
        }
        for (axis, (size, kernel)) in sizes.iter().zip(kernel).enumerate() {
            let of = |list: &Option<Vec<i64>>, at: usize, default: u64| {
                list.as_ref().map_or(default, |list| list[at].unsigned_abs())
            };
            let pad = |at| if self.padding == Padding::Explicit { of(&self.pads, at, 0) } else { 0 };
            let along = Along {
                size: size.unsigned_abs(),
                kernel: kernel.unsigned_abs(),
                stride: of(&self.strides, axis, 1),
                dilation: of(&self.dilations, axis, 1),
                before: pad(axis),
                after: pad(axis + sizes.len()),
            };
            along.check(self.pools, self.ceils)?;
        }
        Ok(())
    }

    /// Checks that automatic padding adds to each dimension. Where the last window of a pool ends before the dimension, ONNX Runtime
    /// refuses it or begins behind the first element.
    fn check_same(&self, sizes: &[i64], kernel: &[i64]) -> TractResult<()> {
        for (axis, (&size, &kernel)) in sizes.iter().zip(kernel).enumerate() {
            let stride = self.strides.as_ref().map_or(1, |strides| strides[axis]);
            let last = size.max(1) - 1 - (size.max(1) - 1) % stride;
            ensure!(
                size - last <= kernel,
                "a pool with automatic padding and a stride of {stride} leaves out the end of a dimension of {size}"
            );
        }
        Ok(())
    }
}

impl Along {
    /// Checks that the window is not larger than the padded dimension, and that each window of a pool covers an element.
    fn check(self, pools: bool, ceils: bool) -> TractResult<()> {
        let Self { size, kernel, stride, dilation, before, after } = self;
        ensure!(before.max(after) <= MOST_PADDING, "a padding of {before} and {after} is too large");
        let padded = size + before + after;
        let reach = (kernel - 1).saturating_mul(dilation);
        ensure!(
            reach < padded,
            "a window of {kernel} elements in steps of {dilation} is larger than a dimension of {size} with a padding of \
             {before} and {after}"
        );
        if !pools {
            return Ok(());
        }
        let room = padded - reach - 1;
        let mut last = if ceils { room.div_ceil(stride) } else { room / stride };
        // A window that begins in the padding at the end is left out.
        if ceils && last > 0 && last * stride >= size + before {
            last -= 1;
        }
        // Positions count from the start of the padding. A window that begins at an element covers it.
        let covers = |place: u64| {
            let start = place * stride;
            let skipped = before.saturating_sub(start).div_ceil(dilation);
            skipped < kernel && start + skipped * dilation < before + size
        };
        let in_padding = 0..before.div_ceil(stride).min(last);
        let outside = in_padding.chain([last]).find(|place| !covers(*place));
        ensure!(
            outside.is_none(),
            "a window of {kernel} elements over a dimension of {size} covers nothing but its padding of {before} and {after}"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each window covers an element, by a look at each position.
    fn fits(along: Along, pools: bool, ceils: bool) -> bool {
        let Along { size, kernel, stride, dilation, before, after } = along;
        let is_element = |position: u64| (before..before + size).contains(&position);
        let end = size + before + after;
        let reach = (kernel - 1) * dilation;
        if reach >= end {
            return false;
        }
        let mut starts: Vec<_> =
            (0..).map(|place| place * stride).take_while(|start| start + reach < end).collect();
        let next = starts.len() as u64 * stride;
        // Rounded up, the last window may reach past the end, but not begin in the padding there.
        if ceils && starts.last().is_some_and(|last| last + reach + 1 < end) {
            starts.push(next);
        }
        if ceils && starts.len() > 1 && starts.last().is_some_and(|last| *last >= before + size) {
            starts.pop();
        }
        let covers = |start: &u64| (0..kernel).any(|at| is_element(start + at * dilation));
        !pools || starts.iter().all(covers)
    }

    #[test]
    fn windows_that_cover_no_element_are_refused() {
        let (mut served, mut refused) = (0, 0);
        for (size, kernel) in (0..6).flat_map(|size| (1..5).map(move |kernel| (size, kernel))) {
            for (stride, dilation) in [(1, 1), (1, 3), (2, 1), (3, 2), (4, 1), (2, 4)] {
                for (before, after) in (0..5).flat_map(|before| (0..5).map(move |after| (before, after))) {
                    let along = Along { size, kernel, stride, dilation, before, after };
                    for (pools, ceils) in [(false, false), (true, false), (true, true)] {
                        let outcome = along.check(pools, ceils);
                        assert_eq!(
                            outcome.is_ok(),
                            fits(along, pools, ceils),
                            "{along:?} {ceils}: {outcome:?}"
                        );
                        if outcome.is_ok() { served += 1 } else { refused += 1 }
                    }
                }
            }
        }
        assert!(served > 1000 && refused > 1000, "{served} {refused}");
    }

    #[test]
    fn absurd_numbers_are_refused_at_once() {
        const HUGE: u64 = i64::MAX as u64;
        let usual = Along { size: 8, kernel: 3, stride: 1, dilation: 1, before: 1, after: 1 };
        usual.check(true, true).unwrap();
        for absurd in [
            Along { kernel: HUGE, ..usual },
            Along { dilation: HUGE, ..usual },
            Along { before: HUGE, ..usual },
            Along { after: HUGE, ..usual },
            Along { kernel: 1 << 40, before: 1 << 39, ..usual },
        ] {
            absurd.check(true, false).unwrap_err();
        }
        Along { stride: HUGE, ..usual }.check(true, false).unwrap();
    }
}
