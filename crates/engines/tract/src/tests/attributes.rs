//! Attributes and constants that ONNX does not allow are refused when the model loads, and nothing panics on the way.

use nereid_backend_api::DataType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{NodeProto, TensorProto};

use super::onnx::{file_of_version, floats, graph, ints, node, port, with_int, with_ints, with_text};
use super::server::{config, folder, load_from, serve};
use super::{fp32, fp32_output};

const REDUCTIONS: [&str; 10] = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
];

/// A model of X, of this shape, with the outputs of its node.
struct Model {
    version: i64,
    node: NodeProto,
    constants: Vec<TensorProto>,
    x: &'static [i64],
    outputs: Vec<Vec<i64>>,
}

impl Model {
    /// The output Y, of this shape.
    fn new(version: i64, node: NodeProto, constants: Vec<TensorProto>, x: &'static [i64], y: &[i64]) -> Self {
        Self { version, node, constants, x, outputs: vec![y.to_vec()] }
    }

    fn file(&self) -> Vec<u8> {
        let names = &self.node.output;
        let outputs = names.iter().zip(&self.outputs).map(|(name, dims)| port(name, Element::Float, dims));
        let inputs = vec![port("X", Element::Float, self.x)];
        let graph = graph(inputs, vec![self.node.clone()], outputs.collect(), self.constants.clone());
        file_of_version(graph, self.version)
    }

    fn config(&self) -> nereid_backend_api::ModelConfig {
        let names = self.node.output.iter().map(String::as_str);
        let outputs: Vec<_> =
            names.zip(&self.outputs).map(|(name, dims)| (name, DataType::Fp32, dims.as_slice())).collect();
        config(0, &[("X", DataType::Fp32, self.x)], &outputs)
    }

    /// Refused, for this reason, without a panic of the engine's.
    fn refused(&self, reason: &str) {
        let what = format!("{} at {}: {:?}", self.node.op_type, self.version, self.node.attribute);
        let outcome = load_from(&folder(&self.file()), self.config());
        let error = outcome.map(drop).expect_err(&what);
        let message = error.message();
        assert!(message.contains(reason) && !message.contains("panicked"), "{what}: {message}");
    }

    fn served(&self) {
        let outcome = load_from(&folder(&self.file()), self.config());
        if let Err(error) = outcome {
            panic!("{} at {}: {error}", self.node.op_type, self.version);
        }
    }
}

#[test]
fn an_axis_out_of_range_is_refused() {
    let x = &[2, 3, 4][..];
    let by_input = |operator, axes: &[i64]| {
        (node(operator, &["X", "axes"], &["Y"]), vec![ints("axes", &[axes.len() as i64], axes)])
    };
    let by_attribute =
        |operator, axes: &[i64]| (with_ints(node(operator, &["X"], &["Y"]), "axes", axes), vec![]);
    for operator in REDUCTIONS {
        for (version, (good, good_constants)) in
            [(11, by_attribute(operator, &[-1])), (18, by_input(operator, &[-1]))]
        {
            Model::new(version, good, good_constants, x, &[2, 3, 1]).served();
            for axes in [&[3][..], &[-4], &[65_537], &[i64::MAX], &[i64::MIN], &[0, 3], &[1 << 32]] {
                let (node, constants) =
                    if version == 18 { by_input(operator, axes) } else { by_attribute(operator, axes) };
                Model::new(version, node, constants, x, &[2, 3, 1]).refused("out of range");
            }
            for axes in [&[1, 1][..], &[1, -2]] {
                let (node, constants) =
                    if version == 18 { by_input(operator, axes) } else { by_attribute(operator, axes) };
                Model::new(version, node, constants, x, &[2, 1, 4]).refused("name one twice");
            }
        }
    }
    for (operator, attribute) in [
        ("ArgMax", "axis"),
        ("Concat", "axis"),
        ("Flatten", "axis"),
        ("Hardmax", "axis"),
        ("LogSoftmax", "axis"),
        ("LpNormalization", "axis"),
        ("Softmax", "axis"),
        ("Split", "axis"),
    ] {
        for axis in [4, -4, 65_537, i64::MAX, i64::MIN, 1 << 32] {
            let node = with_int(node(operator, &["X"], &["Y"]), attribute, axis);
            Model::new(13, node, vec![], x, &[2, 3, 4]).refused("out of range");
        }
    }
    for (operator, version, inputs) in [
        ("Squeeze", 13, &["X", "axes"][..]),
        ("Unsqueeze", 13, &["X", "axes"]),
        ("CumSum", 14, &["X", "axes"]),
        ("Slice", 13, &["X", "one", "two", "axes"]),
        ("Pad", 18, &["X", "pads", "", "axes"]),
    ] {
        for axis in [5, -5, 65_537, i64::MAX, i64::MIN, 1 << 32] {
            let constants = vec![
                ints("axes", &[1], &[axis]),
                ints("one", &[1], &[1]),
                ints("two", &[1], &[2]),
                ints("pads", &[2], &[1, 1]),
            ];
            Model::new(version, node(operator, inputs, &["Y"]), constants, x, &[2, 3, 4])
                .refused("out of range");
        }
    }
}

#[test]
fn the_parts_of_a_split_sum_up_to_the_dimension() {
    let x = &[2, 6][..];
    let split = |sizes: &[i64], version: i64| {
        let outputs: &[&str] = &["A", "B", "C"];
        match version {
            11 => (with_ints(node("Split", &["X"], outputs), "split", sizes), vec![]),
            _ => {
                let sizes = ints("sizes", &[sizes.len() as i64], sizes);
                (node("Split", &["X", "sizes"], outputs), vec![sizes])
            }
        }
    };
    for version in [11, 13, 18] {
        let model = |sizes: &[i64]| {
            let (node, constants) = split(sizes, version);
            let outputs = (0..3).map(|at| vec![2, sizes.get(at).copied().unwrap_or(1).max(0)]).collect();
            Model { version, node: with_int(node, "axis", -1), constants, x, outputs }
        };
        for sizes in [[1, 2, 3], [2, 2, 2], [0, 6, 0]] {
            let model = model(&sizes);
            let values: Vec<f32> = (0..12).map(|at| at as f32).collect();
            let response = serve(&model.file(), model.config()).infer(vec![fp32("X", x, &values)]).unwrap();
            let mut from = 0;
            for (output, size) in response.outputs.iter().zip(sizes) {
                let contents = output.contiguous().unwrap();
                let (chunks, _) = contents.as_chunks();
                let found: Vec<f32> = chunks.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect();
                let row = |row: i64| (row * 6 + from..row * 6 + from + size).map(|at| at as f32);
                assert_eq!(found, row(0).chain(row(1)).collect::<Vec<_>>(), "{sizes:?}");
                from += size;
            }
        }
        for sizes in [&[1, 2, 2][..], &[2, 2, 3], &[3, 3], &[2, 2, 1, 1], &[i64::MAX, 1, 6]] {
            model(sizes).refused("does not split into");
        }
        model(&[6, 1, -1]).refused(if version == 11 { "non-negative" } else { "does not split into" });
    }
}

#[test]
fn a_split_without_sizes_is_even_unless_it_has_a_number_of_parts() {
    let model = |version, parts: Option<i64>, x: &'static [i64], outputs: &[i64]| {
        let names: Vec<_> = (0..outputs.len()).map(|at| format!("Y{at}")).collect();
        let split = node("Split", &["X"], &names.iter().map(String::as_str).collect::<Vec<_>>());
        let node = match parts {
            Some(parts) => with_int(split, "num_outputs", parts),
            None => split,
        };
        Model {
            version,
            node,
            constants: vec![],
            x,
            outputs: outputs.iter().map(|&size| vec![size]).collect(),
        }
    };
    model(13, None, &[6], &[2, 2, 2]).served();
    model(18, Some(3), &[7], &[3, 3, 1]).served();
    model(18, Some(3), &[6], &[2, 2, 2]).served();
    for refused in [
        model(13, None, &[7], &[3, 3, 1]),
        model(11, None, &[5], &[3, 2]),
        model(18, Some(4), &[5], &[2, 2, 1, 0]),
        model(18, Some(3), &[6], &[3, 3]),
        model(18, Some(0), &[6], &[3, 3]),
        model(18, Some(i64::MAX), &[6], &[3, 3]),
    ] {
        refused.refused("does not split into");
    }
}

#[test]
fn instance_normalization_needs_a_scale_and_a_bias_for_each_channel() {
    let x = &[1, 2, 3][..];
    let model = |scale: &[i64], bias: &[i64]| {
        let constant =
            |name, dims: &[i64]| floats(name, dims, &vec![1.0; dims.iter().product::<i64>() as usize]);
        let node = node("InstanceNormalization", &["X", "scale", "bias"], &["Y"]);
        Model::new(13, node, vec![constant("scale", scale), constant("bias", bias)], x, x)
    };
    let good = model(&[2], &[2]);
    let values = [1.0, 2.0, 3.0, -1.0, 0.0, 4.0];
    let response = serve(&good.file(), good.config()).infer(vec![fp32("X", x, &values)]).unwrap();
    let (_, found) = fp32_output(&response);
    for (found, values) in found.chunks(3).zip(values.chunks(3)) {
        let mean = values.iter().sum::<f32>() / 3.0;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 3.0;
        for (found, value) in found.iter().zip(values) {
            let expected = (value - mean) / (variance + 1e-5).sqrt() + 1.0;
            assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
        }
    }
    for (scale, bias) in [(&[][..], &[][..]), (&[1, 2], &[1, 2]), (&[2, 1, 1], &[2, 1, 1]), (&[2], &[])] {
        model(scale, bias).refused("need one dimension");
    }
    for (scale, bias) in [(&[1][..], &[1][..]), (&[3], &[3]), (&[2], &[1]), (&[0], &[0])] {
        model(scale, bias).refused("do not fit");
    }
}

#[test]
fn pads_that_crop_or_lack_elements_are_refused() {
    let pad = |mode: &str, pads: &[i64], y: &[i64]| {
        let node = with_text(node("Pad", &["X", "pads"], &["Y"]), "mode", mode);
        Model::new(13, node, vec![ints("pads", &[pads.len() as i64], pads)], &[2, 3], y)
    };
    for mode in ["constant", "edge", "reflect"] {
        pad(mode, &[1, 2, 0, 2], &[3, 7]).served();
        pad(mode, &[0, -1, 0, 0], &[2, 2]).refused("negative pads");
        pad(mode, &[0, 0, -70_000, 0], &[2, 3]).refused("negative pads");
        pad(mode, &[1, 1, 1], &[3, 4]).refused("3 pads for 2 axes");
    }
    pad("edge", &[5, 9, 0, 0], &[7, 12]).served();
    for pads in [[2, 0, 0, 0], [0, 0, 2, 0], [0, 3, 0, 0], [0, 0, 0, 65_537]] {
        pad("reflect", &pads, &[2 + pads[0] + pads[2], 3 + pads[1] + pads[3]]).refused("too few elements");
    }
}

#[test]
fn a_window_beyond_the_input_is_refused() {
    for operator in ["MaxPool", "AveragePool"] {
        let pool = |kernel: &[i64], pads: &[i64], y: &[i64]| {
            let node = with_ints(node(operator, &["X"], &["Y"]), "kernel_shape", kernel);
            Model::new(13, with_ints(node, "pads", pads), vec![], &[1, 1, 4, 4], y)
        };
        pool(&[4, 4], &[0; 4], &[1, 1, 1, 1]).served();
        pool(&[5, 4], &[1, 0, 0, 0], &[1, 1, 1, 1]).served();
        pool(&[5, 4], &[0; 4], &[1, 1, 1, 1]).refused("is larger than a dimension of 4");
        pool(&[7, 4], &[1; 4], &[1, 1, 1, 3]).refused("is larger than a dimension of 4");
        pool(&[2, 2], &[2, 0, 0, 0], &[1, 1, 5, 3]).refused("covers nothing but its padding");
        pool(&[2, 2], &[0, 0, 0, 2], &[1, 1, 3, 5]).refused("covers nothing but its padding");
        pool(&[2, 2], &[-1, 0, 0, 0], &[1, 1, 2, 3]).refused("non-negative");
        pool(&[2], &[0, 0], &[1, 1, 3, 4]).refused("does not fit an input");
    }
    let conv = |kernel: i64| {
        let size = (kernel * kernel) as usize;
        let weights = floats("W", &[1, 1, kernel, kernel], &vec![1.0; size]);
        Model::new(13, node("Conv", &["X", "W"], &["Y"]), vec![weights], &[1, 1, 4, 4], &[1, 1, 1, 1])
    };
    conv(4).served();
    conv(5).refused("is larger than a dimension of 4");
    for (kernel, fits) in [([2, 3], true), ([3, 2], false), ([2, 2], false), ([1, 1], false)] {
        let weights = floats("W", &[1, 1, 2, 3], &[1.0; 6]);
        let node = with_ints(node("Conv", &["X", "W"], &["Y"]), "kernel_shape", &kernel);
        let model = Model::new(13, node, vec![weights], &[1, 1, 4, 4], &[1, 1, 3, 2]);
        if fits { model.served() } else { model.refused("does not fit weights") }
    }
}

#[test]
fn a_slope_has_no_more_dimensions_than_the_input() {
    const SHAPES: [&[i64]; 4] = [&[1], &[2, 3], &[2, 2, 3], &[2, 2, 2, 3]];
    for (rank, x) in SHAPES.into_iter().enumerate() {
        for (slope_rank, slope) in [&[], &[1][..], &[1, 1], &[1, 1, 1], &[1, 1, 1, 1]].into_iter().enumerate()
        {
            let constants = vec![floats("slope", slope, &[0.5])];
            let model = Model::new(13, node("PRelu", &["X", "slope"], &["Y"]), constants, x, x);
            if slope_rank <= rank + 1 {
                model.served();
            } else {
                model.refused("the slope has more dimensions than the input");
            }
        }
    }
}
