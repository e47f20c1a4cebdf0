//! NaN, infinities and the ends of the types in functions of elements, extremes and recurrent operators.

use nereid_backend_api::{DataType, Tensor};
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{NodeProto, TensorProto};
use tract_onnx::prelude::f16;

use super::fp32;
use super::onnx::{file_of_version, floats, graph, ints, node, port, with_int, with_ints, with_text};
use super::server::{config, serve, try_serve};

const NAN: f32 = f32::NAN;
const INFINITY: f32 = f32::INFINITY;

type Function<T> = fn(T) -> T;
type Test = fn(f32) -> bool;

/// A tensor: its shape and numbers.
type Given<'a> = (&'a [i64], &'a [f32]);

/// The outputs of these nodes, in FP32, for inputs X, Z and so on. The dimensions of inputs are variable.
fn run(
    version: i64,
    nodes: Vec<NodeProto>,
    constants: Vec<TensorProto>,
    given: &[Given<'_>],
    outputs: &[(&str, DataType, usize)],
) -> Vec<Tensor> {
    let names = ["X", "Z", "V"];
    let open: Vec<Vec<i64>> = given.iter().map(|(shape, _)| vec![-1; shape.len()]).collect();
    let inputs = names.iter().zip(&open).map(|(name, dims)| port(name, Element::Float, dims)).collect();
    let any: Vec<Vec<i64>> = outputs.iter().map(|(_, _, rank)| vec![-1; *rank]).collect();
    let element = |data_type| if data_type == DataType::Int64 { Element::Int64 } else { Element::Float };
    let ports =
        outputs.iter().zip(&any).map(|((name, data_type, _), dims)| port(name, element(*data_type), dims));
    let file = file_of_version(graph(inputs, nodes, ports.collect(), constants), version);
    let declared: Vec<_> =
        names.iter().zip(&open).map(|(name, dims)| (*name, DataType::Fp32, &dims[..])).collect();
    let wanted: Vec<_> =
        outputs.iter().zip(&any).map(|((name, it, _), dims)| (*name, *it, &dims[..])).collect();
    let tensors =
        names.iter().zip(given).map(|(name, (shape, numbers))| fp32(name, shape, numbers)).collect();
    let mut found = serve(&file, config(0, &declared, &wanted)).infer(tensors).unwrap().outputs;
    found.sort_by_key(|output| outputs.iter().position(|(name, ..)| *name == output.name));
    found
}

/// The output Y of these nodes.
fn y(nodes: Vec<NodeProto>, constants: Vec<TensorProto>, given: &[Given<'_>], rank: usize) -> Vec<f32> {
    fp32_of(&run(18, nodes, constants, given, &[("Y", DataType::Fp32, rank)])[0])
}

fn fp32_of(tensor: &Tensor) -> Vec<f32> {
    let contents = tensor.contiguous().unwrap();
    contents.as_chunks().0.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect()
}

fn int64_of(tensor: &Tensor) -> Vec<i64> {
    let contents = tensor.contiguous().unwrap();
    contents.as_chunks().0.iter().map(|&chunk| i64::from_le_bytes(chunk)).collect()
}

/// Numbers of all sizes of both signs, with NaN and infinities among them.
fn numbers(count: usize) -> Vec<f32> {
    let special = [NAN, INFINITY, -INFINITY, 0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, -1e-40];
    let number = |at: usize| {
        // Steps that are no multiple of the exponents' count, so that signs and sizes mix.
        let size = 10_f32.powf((at * 37 % 761) as f32 / 10.0 - 38.0);
        if at.is_multiple_of(3) { -size } else { size }
    };
    (0..count).map(|at| if at % 11 == 7 { special[at / 11 % special.len()] } else { number(at) }).collect()
}

fn assert_near(found: &[f32], expected: &[f64], error: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let is_same = f64::from(found) == expected || found.is_nan() && expected.is_nan();
        let is_near = (f64::from(found) - expected).abs() <= error * (1.0 + expected.abs());
        assert!(is_same || is_near, "{what}, {at}: {found} instead of {expected}");
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gelu(x: f64) -> f64 {
    x * sigmoid(2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x))
}

/// The nodes for Y of X, computed with another type than FP32.
fn of_type(element: Element, function: &NodeProto) -> Vec<NodeProto> {
    let (input, output) = (vec!["A".into()], vec!["B".into()]);
    let inner = NodeProto { name: "function".into(), input, output, ..function.clone() };
    let to = |element, from, to| with_int(node("Cast", &[from], &[to]), "to", i64::from(element as i32));
    vec![to(element, "X", "A"), inner, to(Element::Float, "B", "Y")]
}

#[test]
fn functions_are_right_for_all_numbers_of_all_types() {
    let of_x = |operator| node(operator, &["X"], &["Y"]);
    let functions: [(NodeProto, Function<f64>); 14] = [
        (of_x("Acosh"), f64::acosh),
        (of_x("Asinh"), f64::asinh),
        (of_x("Erf"), libm::erf),
        (of_x("Gelu"), |x| 0.5 * x * (1.0 + libm::erf(x / 2_f64.sqrt()))),
        (with_text(of_x("Gelu"), "approximate", "tanh"), gelu),
        (of_x("HardSigmoid"), |x| (f64::from(0.2_f32) * x + 0.5).clamp(0.0, 1.0)),
        (of_x("HardSwish"), |x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        (of_x("LeakyRelu"), |x| if x < 0.0 { f64::from(0.01_f32) * x } else { x }),
        (of_x("Relu"), |x| if x < 0.0 { 0.0 } else { x }),
        (of_x("Round"), f64::round_ties_even),
        (of_x("Sigmoid"), sigmoid),
        (of_x("Softsign"), |x| if x.is_infinite() { f64::NAN } else { x / (1.0 + x.abs()) }),
        (of_x("Swish"), |x| x * sigmoid(x)),
        (of_x("Tanh"), f64::tanh),
    ];
    // More than the engine takes at once, and no multiple of a register.
    let x = numbers(2501);
    for (function, expected) in functions {
        let operator = &function.op_type;
        let found = |nodes| {
            fp32_of(&run(24, nodes, vec![], &[(&[x.len() as i64], &x)], &[("Y", DataType::Fp32, 1)])[0])
        };
        let wide: Vec<f64> = x.iter().map(|&x| expected(f64::from(x))).collect();
        let single: Vec<f64> = wide.iter().map(|&y| f64::from(y as f32)).collect();
        assert_near(&found(vec![function.clone()]), &single, 2e-6, &format!("{operator} of FP32"));
        assert_near(
            &found(of_type(Element::Double, &function)),
            &single,
            1e-7,
            &format!("{operator} of FP64"),
        );
        let half = |x: f64| f64::from(f16::from_f64(x));
        let narrow: Vec<f64> = x.iter().map(|&x| half(expected(f64::from(f16::from_f32(x))))).collect();
        assert_near(
            &found(of_type(Element::Float16, &function)),
            &narrow,
            1e-3,
            &format!("{operator} of FP16"),
        );
    }
}

#[test]
fn an_error_function_has_its_digits_near_zero() {
    let x: Vec<f32> = numbers(2501).into_iter().filter(|x| x.abs() < 1.0).collect();
    let outputs = [("Y", DataType::Fp32, 1)];
    let nodes = vec![node("Erf", &["X"], &["Y"])];
    let found = fp32_of(&run(20, nodes, vec![], &[(&[x.len() as i64], &x)], &outputs)[0]);
    for (found, x) in found.into_iter().zip(x) {
        let expected = libm::erf(f64::from(x));
        // Numbers near 0 have fewer digits.
        let error = (expected.abs() * 3e-6).max(1e-44);
        assert!((f64::from(found) - expected).abs() <= error, "{x:e}: {found:e}, not {expected:e}");
    }
}

#[test]
fn infinities_of_fp16_meet_a_bound_that_is_left_out_as_on_onnx_runtime() {
    let x = [INFINITY, -INFINITY, NAN, 3.0, -3.0, 0.5];
    let largest = 65504.0;
    for (version, inputs, expected) in [
        (11, vec!["A"], x),
        (11, vec!["A", "one"], [INFINITY, 1.0, NAN, 3.0, 1.0, 1.0]),
        (11, vec!["A", "", "one"], [1.0, -INFINITY, NAN, 1.0, -3.0, 0.5]),
        (12, vec!["A", "one"], [largest, 1.0, NAN, 3.0, 1.0, 1.0]),
        (13, vec!["A", "", "one"], [1.0, -largest, NAN, 1.0, -3.0, 0.5]),
    ] {
        let one = vec![with_int(node("Cast", &["C"], &["one"]), "to", i64::from(Element::Float16 as i32))];
        let mut nodes = [one, of_type(Element::Float16, &node("Clip", &inputs, &["Y"]))].concat();
        nodes[2].input = inputs.iter().map(|name| (*name).to_owned()).collect();
        let constants = vec![floats("C", &[], &[1.0])];
        let found = fp32_of(&run(version, nodes, constants, &[(&[6], &x)], &[("Y", DataType::Fp32, 1)])[0]);
        assert_near(&found, &wide(expected), 0.0, &format!("{inputs:?}"));
    }
}

#[test]
fn an_error_function_of_fp64_has_its_digits() {
    // From tables, and the first term of its series.
    let known =
        [(0.5, 0.520_499_877_813_046_5), (1.0, 0.842_700_792_949_714_9), (2.0, 0.995_322_265_018_952_7)];
    for (x, erf) in known.into_iter().chain([(1e-30, 1.128_379_167_095_512_6e-30), (7.0, 1.0)]) {
        for sign in [1.0, -1.0] {
            let (x, erf) = (sign * x, sign * erf);
            let gelu = |x: f64| 0.5 * x * (1.0 + erf);
            // Gelu divides by the square root of 2 first.
            for (operator, x, expected) in
                [("Erf", x, erf), ("Gelu", x * 2_f64.sqrt(), gelu(x * 2_f64.sqrt()))]
            {
                let port = |name| vec![port(name, Element::Double, &[1])];
                let file = graph(port("X"), vec![node(operator, &["X"], &["Y"])], port("Y"), vec![]);
                let config = config(0, &[("X", DataType::Fp64, &[1])], &[("Y", DataType::Fp64, &[1])]);
                let tensor = Tensor::new("X", DataType::Fp64, [1], x.to_le_bytes().to_vec());
                let response = serve(&file_of_version(file, 20), config).infer(vec![tensor]).unwrap();
                let contents = response.outputs[0].contiguous().unwrap();
                let found = f64::from_le_bytes(contents[..].try_into().unwrap());
                assert!(
                    (found - expected).abs() <= 4e-15 * x.abs(),
                    "{operator}: {found} and not {expected}"
                );
            }
        }
    }
}

#[test]
fn constants_are_functions_of_the_same_numbers() {
    let zero = || floats("C", &[], &[0.0]);
    let operators = [
        "Erf",
        "Gelu",
        "Relu",
        "Sigmoid",
        "Tanh",
        "HardSwish",
        "HardSigmoid",
        "Asinh",
        "Max",
        "Clip",
        "Swish",
        "LpNormalization",
        "ReduceLogSumExp",
        "TopK",
    ];
    // The engine computes with constants of a few elements earlier than with others.
    let all = numbers(99);
    for (operator, x) in operators
        .iter()
        .flat_map(|operator| [3, 15, 99].map(|size| (*operator, size)))
        .flat_map(|(operator, size)| all.chunks_exact(size).map(move |x| (operator, x)))
    {
        let count = [x.len() as i64];
        let of = |input: &str| {
            let inputs = match operator {
                "Max" => vec![input, "C"],
                "TopK" => vec![input, "k"],
                _ => vec![input],
            };
            let outputs: &[&str] = if operator == "TopK" { &["F", "places"] } else { &["F"] };
            run(
                24,
                vec![node(operator, &inputs, outputs), node("Add", &["F", "Z"], &["Y"])],
                vec![floats("K", &count, x), zero(), ints("k", &[1], &[2])],
                &[(&count, x), (&[1], &[0.0])],
                &[("Y", DataType::Fp32, 1)],
            )
        };
        let expected: Vec<_> = fp32_of(&of("X")[0]).iter().map(|&y| f64::from(y)).collect();
        assert_near(&fp32_of(&of("K")[0]), &expected, 0.0, &format!("{operator} of {x:?}"));
    }
}

#[test]
fn tests_for_nan_and_infinities_take_all_types() {
    let x = numbers(300);
    for (element, narrow) in [(Element::Float, false), (Element::Double, false), (Element::Float16, true)] {
        let wide = |x: f32| if narrow { f16::from_f32(x).to_f32() } else { x };
        let cases: [(NodeProto, Test); 3] = [
            (node("IsNaN", &["X"], &["Y"]), f32::is_nan),
            (node("IsInf", &["X"], &["Y"]), f32::is_infinite),
            (with_int(node("IsInf", &["X"], &["Y"]), "detect_negative", 0), |x| x == INFINITY),
        ];
        for (test, expected) in cases {
            let expected: Vec<f64> = x.iter().map(|&x| f64::from(u8::from(expected(wide(x))))).collect();
            let found = y(of_type(element, &test), vec![], &[(&[x.len() as i64], &x)], 1);
            assert_near(&found, &expected, 0.0, &format!("{} of {element:?}", test.op_type));
        }
    }
}

fn larger(one: f32, other: f32) -> f32 {
    if one.is_nan() || other.is_nan() { NAN } else { one.max(other) }
}

fn smaller(one: f32, other: f32) -> f32 {
    if one.is_nan() || other.is_nan() { NAN } else { one.min(other) }
}

fn wide(numbers: impl IntoIterator<Item = f32>) -> Vec<f64> {
    numbers.into_iter().map(f64::from).collect()
}

#[test]
fn extremes_of_pairs_are_nan_if_one_of_them_is() {
    let (rows, columns) = (37, 41);
    let all = numbers(rows * columns);
    let shape = [rows as i64, columns as i64];
    let others: [&[i64]; 7] = [&[37, 41], &[41], &[37, 1], &[1, 1], &[1], &[], &[1, 41]];
    for other in others {
        let count = other.iter().product::<i64>() as usize;
        for z in [numbers(count + 7)[7..].to_vec(), vec![0.5; count]] {
            let at = |row: usize, column: usize| match other {
                [37, 41] => row * columns + column,
                [37, 1] => row,
                [41] | [1, 41] => column,
                _ => 0,
            };
            let pair = |place: usize| (all[place], z[at(place / columns, place % columns)]);
            for (operator, extreme) in [("Max", larger as fn(f32, f32) -> f32), ("Min", smaller)] {
                let expected = wide((0..all.len()).map(pair).map(|(one, other)| extreme(one, other)));
                let found =
                    |nodes: Vec<NodeProto>, constants| y(nodes, constants, &[(&shape, &all), (other, &z)], 2);
                for inputs in [["X", "Z"], ["Z", "X"]] {
                    let what = format!("{operator} {inputs:?} {other:?}");
                    assert_near(&found(vec![node(operator, &inputs, &["Y"])], vec![]), &expected, 0.0, &what);
                }
                // The same as a constant, and of products, to which the engine joins it.
                let constant = || floats("C", other, &z);
                let reads_z = node("Add", &["P", "Z"], &["unused"]);
                let nodes =
                    vec![node("Identity", &["X"], &["P"]), reads_z, node(operator, &["P", "C"], &["Y"])];
                assert_near(&found(nodes, vec![constant()]), &expected, 0.0, operator);
            }
        }
    }
}

#[test]
fn extremes_behind_products_of_matrices_keep_nan() {
    let (rows, inner, columns) = (33, 20, 40);
    let mut x = vec![0.25; rows * inner];
    for row in [0, 7, 32] {
        x[row * inner + row % inner] = NAN;
    }
    let weights: Vec<f32> = (0..inner * columns).map(|at| (at % 17) as f32 - 8.0).collect();
    let product = || node("MatMul", &["X", "W"], &["P"]);
    let heads = [
        vec![node("Relu", &["P"], &["Y"])],
        vec![node("Clip", &["P", "low", "high"], &["Y"])],
        vec![node("Max", &["columns", "P"], &["Y"])],
        vec![node("Min", &["P", "rows"], &["Y"])],
        vec![node("Max", &["P", "nan"], &["Y"])],
        vec![node("Neg", &["P"], &["N"]), node("Max", &["P", "N"], &["Y"])],
        vec![node("LeakyRelu", &["P"], &["Y"])],
        vec![node("Sigmoid", &["P"], &["S"]), node("Mul", &["S", "P"], &["Y"])],
    ];
    for head in heads {
        let constants = vec![
            floats("W", &[inner as i64, columns as i64], &weights),
            floats("low", &[], &[-1.0]),
            floats("high", &[], &[6.0]),
            floats("columns", &[columns as i64], &vec![0.5; columns]),
            floats("rows", &[rows as i64, 1], &vec![0.5; rows]),
            floats("nan", &[], &[NAN]),
        ];
        let all_nan = head.iter().any(|node| node.input.iter().any(|name| name == "nan"));
        let what = format!("{} {:?}", head[0].op_type, head[0].input);
        let found = y([vec![product()], head].concat(), constants, &[(&[rows as i64, inner as i64], &x)], 2);
        for (at, number) in found.iter().enumerate() {
            let row = at / columns;
            assert_eq!(number.is_nan(), all_nan || [0, 7, 32].contains(&row), "{what}: {number} at {at}");
        }
    }
}

#[test]
fn a_clip_keeps_nan_and_ends_at_finite_numbers() {
    let x = numbers(500);
    let count = x.len() as i64;
    for (low, high) in [
        (Some(-1.0), Some(1.0)),
        (None, Some(2.0)),
        (Some(0.0), None),
        (None, None),
        (Some(NAN), Some(6.0)),
        (Some(-2.0), Some(NAN)),
        (Some(1.0), Some(-1.0)),
    ] {
        let bound = |x: f32| {
            let lower = low.filter(|low: &f32| !low.is_nan()).unwrap_or(if low.is_none() {
                f32::MIN
            } else {
                -INFINITY
            });
            let upper = high.filter(|high: &f32| !high.is_nan()).unwrap_or(if high.is_none() {
                f32::MAX
            } else {
                INFINITY
            });
            if x.is_nan() { x } else { x.max(lower).min(upper) }
        };
        let expected = wide(x.iter().map(|&x| bound(x)));
        let inputs = ["X", if low.is_some() { "Z" } else { "" }, if high.is_some() { "V" } else { "" }];
        let (z, v) = ([low.unwrap_or(0.0)], [high.unwrap_or(0.0)]);
        // Bounds that are inputs, and bounds that are constants.
        let given: [Given<'_>; 3] = [(&[count], &x), (&[1], &z), (&[1], &v)];
        let reads = vec![node("Add", &["Z", "V"], &["unused"])];
        let nodes = |clip: NodeProto| [reads.clone(), vec![clip]].concat();
        let squeezed = |name: &str| node("Reshape", &[name, "scalar"], &[&format!("{name}_scalar")]);
        let scalars =
            ["X", if low.is_some() { "Z_scalar" } else { "" }, if high.is_some() { "V_scalar" } else { "" }];
        let dynamic = [vec![squeezed("Z"), squeezed("V")], nodes(node("Clip", &scalars, &["Y"]))].concat();
        let what = format!("{low:?} to {high:?}");
        assert_near(&y(dynamic, vec![ints("scalar", &[0], &[])], &given, 1), &expected, 0.0, &what);
        let constants = vec![floats("L", &[], &z), floats("H", &[], &v)];
        let names = inputs.map(|name| match name {
            "Z" => "L",
            "V" => "H",
            other => other,
        });
        assert_near(&y(nodes(node("Clip", &names, &["Y"])), constants, &given, 1), &expected, 0.0, &what);
    }
}

/// The places of a tensor of these dimensions as runs along an axis.
fn runs(shape: [usize; 3], axis: usize) -> Vec<Vec<usize>> {
    let strides = [shape[1] * shape[2], shape[2], 1];
    let starts =
        (0..shape.iter().product::<usize>()).filter(|at| (at / strides[axis]).is_multiple_of(shape[axis]));
    starts.map(|start| (0..shape[axis]).map(|step| start + step * strides[axis]).collect()).collect()
}

#[test]
fn reductions_to_extremes_keep_nan_and_infinities() {
    let shape = [3, 35, 7];
    let mut x = numbers(3 * 35 * 7);
    // Runs of nothing but an infinity.
    x[..35 * 7].fill(-INFINITY);
    x[35 * 7..35 * 7 + 7].fill(INFINITY);
    let given: [Given<'_>; 1] = [(&[3, 35, 7], &x)];
    for axis in 0..3 {
        for (operator, extreme) in [("ReduceMax", larger as fn(f32, f32) -> f32), ("ReduceMin", smaller)] {
            let expected: Vec<_> = runs(shape, axis)
                .iter()
                .map(|run| run.iter().map(|&at| x[at]).reduce(extreme).unwrap())
                .collect();
            let found = y(
                vec![node(operator, &["X", "axis"], &["Y"])],
                vec![ints("axis", &[1], &[axis as i64])],
                &given,
                3,
            );
            assert_near(&found, &wide(expected), 0.0, &format!("{operator} along {axis}"));
            let all = y(vec![node(operator, &["X"], &["Y"])], vec![], &given, 3);
            assert_near(&all, &wide(x.iter().copied().reduce(extreme)), 0.0, operator);
        }
        for (operator, wins) in
            [("ArgMax", (|one, best| one > best) as fn(f32, f32) -> bool), ("ArgMin", |one, best| one < best)]
        {
            for last in [false, true] {
                let place = |run: &Vec<usize>| {
                    let beats = |at: usize, best: usize| wins(x[at], x[best]) || last && x[at] == x[best];
                    let best =
                        (1..run.len()).fold(0, |best, at| if beats(run[at], run[best]) { at } else { best });
                    best as i64
                };
                let expected: Vec<_> = runs(shape, axis).iter().map(place).collect();
                let op = with_int(
                    with_int(node(operator, &["X"], &["Y"]), "axis", axis as i64),
                    "select_last_index",
                    last.into(),
                );
                let found = run(18, vec![op], vec![], &given, &[("Y", DataType::Int64, 3)]);
                assert_eq!(int64_of(&found[0]), expected, "{operator} along {axis}, last {last}");
            }
        }
    }
}

#[test]
fn the_largest_numbers_begin_with_nan() {
    let shape = [2, 61, 3];
    let x = numbers(2 * 61 * 3);
    for (axis, k, largest) in
        [(1, 5, true), (1, 61, false), (1, 9, false), (2, 1, true), (2, 3, false), (0, 2, true), (1, 0, true)]
    {
        let order = |run: &Vec<usize>| {
            let mut places: Vec<usize> = (0..run.len()).collect();
            places.sort_by(|&one, &other| {
                let (one, other) = (x[run[one]], x[run[other]]);
                let order = one.partial_cmp(&other).unwrap_or_else(|| one.is_nan().cmp(&other.is_nan()));
                if largest { order.reverse() } else { order }
            });
            places.truncate(k);
            places
        };
        let (mut numbers, mut places) = (vec![], vec![]);
        let sorted: Vec<_> = runs(shape, axis).iter().map(|run| (run.clone(), order(run))).collect();
        // In the order of the output, in which the runs along an axis lie side by side.
        let inner: usize = shape[axis + 1..].iter().product();
        for runs in sorted.chunks(inner) {
            for rank in 0..k {
                for (run, order) in runs {
                    numbers.push(x[run[order[rank]]]);
                    places.push(order[rank] as i64);
                }
            }
        }
        let op = with_int(
            with_int(node("TopK", &["X", "K"], &["Y", "P"]), "axis", axis as i64),
            "largest",
            largest.into(),
        );
        let outputs = [("Y", DataType::Fp32, 3), ("P", DataType::Int64, 3)];
        let found = run(18, vec![op], vec![ints("K", &[1], &[k as i64])], &[(&[2, 61, 3], &x)], &outputs);
        let what = format!("{k} along {axis}, largest {largest}");
        assert_near(&fp32_of(&found[0]), &wide(numbers), 0.0, &what);
        assert_eq!(int64_of(&found[1]), places, "{what}");
    }
}

#[test]
fn windows_of_a_pool_are_nan_if_they_have_one() {
    let (height, width) = (9, 13);
    let mut x = numbers(2 * height * width);
    x[..width * 4].fill(-INFINITY);
    for (kernel, stride, pad) in [(2, 1, 0), (2, 2, 0), (3, 2, 1), (3, 1, 1), (1, 1, 0)] {
        let op = with_ints(node("MaxPool", &["X"], &["Y"]), "kernel_shape", &[kernel, kernel]);
        let op = with_ints(with_ints(op, "strides", &[stride, stride]), "pads", &[pad; 4]);
        let count = |size: usize| (size as i64 + 2 * pad - kernel) / stride + 1;
        let mut expected = vec![];
        for (channel, row, column) in (0..2).flat_map(|channel| {
            (0..count(height))
                .flat_map(move |row| (0..count(width)).map(move |column| (channel, row, column)))
        }) {
            let places = (0..kernel * kernel)
                .map(|at| (row * stride - pad + at / kernel, column * stride - pad + at % kernel));
            let inside = places.filter(|(row, column)| {
                (0..height as i64).contains(row) && (0..width as i64).contains(column)
            });
            let window = inside
                .map(|(row, column)| x[channel * height * width + row as usize * width + column as usize]);
            expected.push(window.reduce(larger).unwrap());
        }
        let given: [Given<'_>; 1] = [(&[1, 2, height as i64, width as i64], &x)];
        let what = format!("windows of {kernel} with a stride of {stride}");
        assert_near(&y(vec![op.clone()], vec![], &given, 4), &wide(expected.clone()), 0.0, &what);
        // The indices point to equal numbers.
        let op = NodeProto { output: vec!["Y".into(), "P".into()], ..op };
        let found = run(18, vec![op], vec![], &given, &[("Y", DataType::Fp32, 4), ("P", DataType::Int64, 4)]);
        let placed = int64_of(&found[1]).into_iter().map(|place| x[place as usize]);
        assert_near(&fp32_of(&found[0]), &wide(expected.clone()), 0.0, &what);
        assert_near(&placed.collect::<Vec<_>>(), &wide(expected), 0.0, &what);
    }
}

#[test]
fn states_behind_nan_are_nan() {
    let (steps, batch, inputs, hidden) = (6, 2, 4, 5);
    for (operator, gates, reset) in [("LSTM", 4, 0), ("GRU", 3, 0), ("GRU", 3, 1), ("RNN", 1, 0)] {
        for place in [None, Some(0), Some(3), Some(5)] {
            let mut x: Vec<f32> = (0..steps * batch * inputs).map(|at| (at % 7) as f32 / 4.0 - 0.6).collect();
            if let Some(step) = place {
                x[(step * batch + 1) * inputs + 2] = NAN;
            }
            let weights = |name, columns: usize| {
                let weights: Vec<f32> =
                    (0..gates * hidden * columns).map(|at| (at % 5) as f32 / 8.0 - 0.2).collect();
                floats(name, &[1, (gates * hidden) as i64, columns as i64], &weights)
            };
            let mut op =
                with_int(node(operator, &["X", "W", "R"], &["Y", "H"]), "hidden_size", hidden as i64);
            if reset == 1 {
                op = with_int(op, "linear_before_reset", 1);
            }
            let shape = [steps as i64, batch as i64, inputs as i64];
            let outputs = [("Y", DataType::Fp32, 4), ("H", DataType::Fp32, 3)];
            let found = run(
                14,
                vec![op],
                vec![weights("W", inputs), weights("R", hidden)],
                &[(&shape, &x)],
                &outputs,
            );
            let expected = |step: usize, row: usize| row == 1 && place.is_some_and(|place| step >= place);
            for (at, state) in fp32_of(&found[0]).into_iter().enumerate() {
                let (step, row) = (at / (batch * hidden), at / hidden % batch);
                assert_eq!(
                    state.is_nan(),
                    expected(step, row),
                    "{operator} {reset} {place:?}: {state} at step {step}"
                );
            }
            for (at, state) in fp32_of(&found[1]).into_iter().enumerate() {
                assert_eq!(
                    state.is_nan(),
                    expected(steps - 1, at / hidden),
                    "{operator} {reset} {place:?}: {state}"
                );
            }
        }
    }
}

/// A gate of a GRU has NaN where infinities of both signs meet; the other gates have none.
#[test]
fn a_step_from_a_state_of_zeros_keeps_nan() {
    let (inputs, hidden) = (2, 2);
    for (steps, reset) in [(1, 0), (1, 1), (3, 0), (3, 1)] {
        for (nan_gate, name) in ["update", "reset", "new"].into_iter().enumerate() {
            let weights: Vec<f32> = (0..3 * hidden * inputs)
                .map(|at| if at / (hidden * inputs) == nan_gate && at % 2 == 1 { -1.0 } else { 1.0 })
                .collect();
            let weights = vec![
                floats("W", &[1, 3 * hidden as i64, inputs as i64], &weights),
                floats("R", &[1, 3 * hidden as i64, hidden as i64], &vec![0.5; 3 * hidden * hidden]),
            ];
            let mut op = with_int(node("GRU", &["X", "W", "R"], &["Y", "H"]), "hidden_size", hidden as i64);
            if reset == 1 {
                op = with_int(op, "linear_before_reset", 1);
            }
            let shape = [steps as i64, 1, inputs as i64];
            let x = vec![INFINITY; steps * inputs];
            let outputs = [("Y", DataType::Fp32, 4), ("H", DataType::Fp32, 3)];
            let found = run(14, vec![op], weights, &[(&shape, &x)], &outputs);
            for (at, state) in found.iter().flat_map(fp32_of).enumerate() {
                assert!(state.is_nan(), "{name} gate, reset {reset}, {steps} steps: {state} at {at}");
            }
        }
    }
}

#[test]
fn roots_as_powers_and_means_take_all_operands() {
    let x = numbers(200);
    let given: [Given<'_>; 1] = [(&[200], &x)];
    let power = node("Pow", &["X", "half"], &["Y"]);
    let expected: Vec<f64> = x.iter().map(|&x| f64::from(x).powf(0.5)).collect();
    for element in [Element::Float, Element::Double] {
        let half = with_int(node("Cast", &["h"], &["half"]), "to", i64::from(element as i32));
        let mut nodes = vec![half];
        nodes.extend(of_type(element, &power));
        nodes[2].input.push("half".into());
        let found = y(nodes, vec![floats("h", &[], &[0.5])], &given, 1);
        assert_near(&found, &expected.iter().map(|&y| f64::from(y as f32)).collect::<Vec<_>>(), 1e-6, "Pow");
    }
    for (shape, operand) in [(&[][..], vec![4.0]), (&[1], vec![-2.0]), (&[200], numbers(203)[3..].to_vec())] {
        let expected = x.iter().enumerate().map(|(at, x)| (x + operand[at % operand.len()]) / 2.0);
        let expected = wide(expected);
        for inputs in [["X", "C"], ["C", "X"]] {
            let found = y(vec![node("Mean", &inputs, &["Y"])], vec![floats("C", shape, &operand)], &given, 1);
            assert_near(&found, &expected, 1e-6, &format!("Mean with {shape:?}"));
        }
    }
}

#[test]
fn recurrent_operators_of_fp64_are_refused_at_load() {
    for (operator, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
        let refused = |element, data_type| {
            let (input, states) = ([2, 1, 3], [2, 1, 1, 5]);
            let weights = [[1, gates * 5, 3], [1, gates * 5, 5]];
            let ports = [("X", &input[..]), ("W", &weights[0][..]), ("R", &weights[1][..])];
            let inputs = ports.iter().map(|(name, dims)| port(name, element, dims)).collect();
            let cell = with_int(node(operator, &["X", "W", "R"], &["Y"]), "hidden_size", 5);
            let file = graph(inputs, vec![cell], vec![port("Y", element, &states)], vec![]);
            let config =
                config(0, &ports.map(|(name, dims)| (name, data_type, dims)), &[("Y", data_type, &states)]);
            try_serve(&file_of_version(file, 14), config)
                .map(drop)
                .map_err(|error| error.message().to_owned())
        };
        refused(Element::Float, DataType::Fp32).unwrap();
        let error = refused(Element::Double, DataType::Fp64).unwrap_err();
        assert!(error.contains(&format!("has no {operator} of FP64")), "{error}");
    }
}

#[test]
fn recurrent_operators_refuse_a_sum_of_inputs_that_do_not_fit() {
    for (operator, gates) in [("LSTM", 4), ("GRU", 3), ("RNN", 1)] {
        let ports = [("X", vec![-1, -1, 3]), ("Z", vec![-1, -1, 3])];
        let inputs = ports.iter().map(|(name, dims)| port(name, Element::Float, dims)).collect();
        let cell = with_int(node(operator, &["S", "W", "R"], &["Y"]), "hidden_size", 1);
        let nodes = vec![node("Add", &["X", "Z"], &["S"]), cell];
        let weights = [("W", 3), ("R", 1)].map(|(name, columns)| {
            floats(name, &[1, gates, columns], &vec![0.5; (gates * columns) as usize])
        });
        let file = graph(inputs, nodes, vec![port("Y", Element::Float, &[-1; 4])], weights.into());
        let declared = ports.each_ref().map(|(name, dims)| (*name, DataType::Fp32, &dims[..]));
        let config = config(0, &declared, &[("Y", DataType::Fp32, &[-1; 4])]);
        let mut model = serve(&file_of_version(file, 14), config);
        for (x, z, fits) in
            [([2, 4], [2, 4], true), ([2, 4], [2, 6], false), ([5, 1], [2, 1], false), ([2, 1], [1, 4], true)]
        {
            let tensor = |name, [steps, batch]: [i64; 2]| {
                fp32(name, &[steps, batch, 3], &vec![1.0; (steps * batch * 3) as usize])
            };
            let outcome = model.infer(vec![tensor("X", x), tensor("Z", z)]);
            assert_eq!(outcome.is_ok(), fits, "{operator} {x:?} {z:?}");
            if let Err(error) = outcome {
                assert!(error.message().contains("do not fit"), "{operator} {x:?} {z:?}: {error}");
            }
        }
    }
}
