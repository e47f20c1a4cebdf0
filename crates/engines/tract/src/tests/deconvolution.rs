//! ConvTranspose against its definition, over its attributes.

use nereid_backend_api::{DataType, Result};
use tract_onnx::pb::NodeProto;
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{file_of_version, floats, graph, node, port, with_ints, with_text};
use super::server::{config, try_serve};
use super::{fp32, fp32_output};

/// A ConvTranspose of one dimension and one channel.
#[derive(Clone, Copy, Debug)]
struct Case {
    size: i64,
    kernel: i64,
    stride: i64,
    dilation: i64,
    added: i64,
    padding: Padding,
    output: Option<i64>,
}

#[derive(Clone, Copy, Debug)]
enum Padding {
    Pads(i64, i64),
    Auto(&'static str),
}

impl Case {
    /// The pads, and the size of the output; none if ONNX Runtime refuses it, or has another size than ONNX.
    fn geometry(self) -> Option<(i64, i64)> {
        let covered = self.stride * (self.size - 1) + self.dilation * (self.kernel - 1) + 1;
        let whole = covered + self.added;
        if self.added >= self.stride {
            return None;
        }
        let (size, is_upper) = match (self.padding, self.output) {
            (Padding::Pads(before, after), None) => {
                return Some((before, whole - before - after)).filter(|(_, size)| *size > 0);
            }
            (Padding::Auto("VALID"), None) => return Some((0, whole)),
            (Padding::Auto(padding), None) => {
                let size = self.size * self.stride;
                let before = before(whole - size, padding == "SAME_UPPER");
                return Some((before, size)).filter(|_| size <= whole);
            }
            (Padding::Auto(padding), Some(size)) => (size, padding == "SAME_UPPER"),
            (Padding::Pads(..), Some(size)) => (size, false),
        };
        Some((before((whole - size).max(0), is_upper), size)).filter(|_| size - covered < self.stride)
    }

    fn node(self) -> NodeProto {
        let node = with_ints(node("ConvTranspose", &["X", "W"], &["Y"]), "strides", &[self.stride]);
        let node = with_ints(node, "dilations", &[self.dilation]);
        let node = if self.added > 0 { with_ints(node, "output_padding", &[self.added]) } else { node };
        let node = match self.output {
            Some(size) => with_ints(node, "output_shape", &[size]),
            None => node,
        };
        match self.padding {
            Padding::Pads(before, after) => with_ints(node, "pads", &[before, after]),
            Padding::Auto(padding) => with_text(node, "auto_pad", padding),
        }
    }

    fn run(self, x: &[f32], weights: &[f32]) -> Result<(Vec<i64>, Vec<f32>)> {
        let (input, output) = ([1, 1, self.size], [1, 1, -1]);
        let constants = vec![floats("W", &[1, 1, self.kernel], weights)];
        let (inputs, outputs) =
            (vec![port("X", Element::Float, &input)], vec![port("Y", Element::Float, &output)]);
        let file = file_of_version(graph(inputs, vec![self.node()], outputs, constants), 13);
        let config = config(0, &[("X", DataType::Fp32, &input)], &[("Y", DataType::Fp32, &output)]);
        let response = try_serve(&file, config)?.infer(vec![fp32("X", &input, x)])?;
        Ok(fp32_output(&response))
    }
}

/// The elements cropped from the start.
fn before(cropped: i64, is_upper: bool) -> i64 {
    if is_upper { cropped / 2 } else { cropped - cropped / 2 }
}

#[test]
fn each_element_is_spread_over_the_window_and_pads_are_cropped() {
    let (mut served, mut refused) = (0, 0);
    let windows = [(1, 1, 1), (2, 1, 1), (3, 2, 1), (2, 2, 2), (1, 3, 2), (3, 3, 1), (4, 2, 1)];
    let paddings = [
        Padding::Pads(0, 0),
        Padding::Pads(1, 0),
        Padding::Pads(0, 2),
        Padding::Auto("VALID"),
        Padding::Auto("NOTSET"),
        Padding::Auto("SAME_UPPER"),
        Padding::Auto("SAME_LOWER"),
    ];
    for (size, (kernel, stride, dilation)) in
        [1, 2, 5].into_iter().flat_map(|size| windows.map(|it| (size, it)))
    {
        for (added, padding) in [0, 1].into_iter().flat_map(|added| paddings.map(|it| (added, it))) {
            let sized =
                [-1, 0, 1, 2].map(|more| Some(size * stride + more)).into_iter().filter(|it| *it != Some(0));
            for output in sized.chain([None]) {
                let padding = match padding {
                    // Without pads, there are none.
                    Padding::Auto("NOTSET") if output.is_none() => Padding::Pads(0, 0),
                    padding => padding,
                };
                let case = Case { size, kernel, stride, dilation, added, padding, output };
                let x: Vec<f32> = (0..size).map(|at| (at * 3 % 7 + 1) as f32).collect();
                let weights: Vec<f32> = (0..kernel).map(|at| (10_i32.pow(at as u32)) as f32).collect();
                let found = case.run(&x, &weights);
                let Some((before, size)) = case.geometry() else {
                    let error = found.expect_err(&format!("{case:?}"));
                    assert!(!error.message().contains("panicked"), "{case:?}: {error}");
                    refused += 1;
                    continue;
                };
                let mut expected = vec![0.0; size as usize];
                for (at, x) in x.iter().enumerate() {
                    for (tap, weight) in weights.iter().enumerate() {
                        let place = at as i64 * stride + tap as i64 * dilation - before;
                        if (0..size).contains(&place) {
                            expected[place as usize] += x * weight;
                        }
                    }
                }
                assert_eq!(found.unwrap(), (vec![1, 1, size], expected), "{case:?}");
                served += 1;
            }
        }
    }
    assert!(served > 300 && refused > 200, "{served} {refused}");
}

#[test]
fn attributes_that_do_not_fit_the_weights_are_refused() {
    let x = [1.0, 2.0, 3.0];
    let usual = Case {
        size: 3,
        kernel: 2,
        stride: 2,
        dilation: 1,
        added: 0,
        padding: Padding::Pads(0, 0),
        output: None,
    };
    usual.run(&x, &[1.0, 2.0]).unwrap();
    const HUGE: i64 = i64::MAX;
    for case in [
        Case { stride: 0, ..usual },
        Case { dilation: 0, ..usual },
        Case { stride: HUGE, ..usual },
        Case { dilation: HUGE, ..usual },
        Case { added: HUGE, ..usual },
        Case { output: Some(0), ..usual },
        Case { output: Some(HUGE), ..usual },
        Case { output: Some(-1), ..usual },
        Case { padding: Padding::Pads(HUGE, HUGE), ..usual },
        Case { padding: Padding::Pads(3, 3), ..usual },
        Case { padding: Padding::Pads(-1, 0), ..usual },
    ] {
        let error = case.run(&x, &[1.0, 2.0]).expect_err(&format!("{case:?}"));
        assert!(!error.message().contains("panicked"), "{case:?}: {error}");
    }
}
