//! Arithmetic at the ends of floating-point numbers, where the rules of real numbers fail.

use nereid_backend_api::{DataType, Tensor};
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{NodeProto, TensorProto};
use tract_onnx::prelude::f16;

use super::onnx::{file_of_version, floats, graph, ints, node, port, with_int, with_ints};
use super::server::{config, serve};
use super::{fp32, fp32_output};

/// Numbers at the ends of FP32, and usual ones.
const NUMBERS: [f32; 16] = [
    0.0,
    1.0,
    -3.0,
    0.1,
    1e-20,
    1e20,
    1e-39,
    -1e-45,
    f32::MIN_POSITIVE,
    8.6e37,
    f32::MAX,
    f32::MIN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    65536.0,
];

/// Y of these nodes for inputs X and Z, in FP32.
fn run(nodes: Vec<NodeProto>, constants: Vec<TensorProto>, x: &[f32], z: &[f32]) -> Vec<f32> {
    let reads_z = nodes.iter().any(|node| node.input.iter().any(|name| name == "Z"));
    let sizes = [x.len() as i64, z.len() as i64];
    let all = [("X", &sizes[..1], x), ("Z", &sizes[1..], z)];
    let given = &all[..1 + usize::from(reads_z)];
    let inputs = given.iter().map(|(name, dims, _)| port(name, Element::Float, dims)).collect();
    let file = file_of_version(graph(inputs, nodes, vec![port("Y", Element::Float, &[-1])], constants), 13);
    let declared: Vec<_> = given.iter().map(|&(name, dims, _)| (name, DataType::Fp32, dims)).collect();
    let config = config(0, &declared, &[("Y", DataType::Fp32, &[-1])]);
    let tensors = given.iter().map(|(name, dims, values)| fp32(name, dims, values)).collect();
    fp32_output(&serve(&file, config).infer(tensors).unwrap()).1
}

/// Checks numbers within some units of rounding; those below the normal ones within the smallest of these.
fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let is_same = found == expected || found.is_nan() && expected.is_nan();
        let error = (f64::from(found) - f64::from(expected)).abs();
        let allowed = 1e-6 * f64::from(expected).abs() + f64::from(f32::MIN_POSITIVE) * 1e-6;
        assert!(is_same || error <= allowed, "{what}, {at}: {found} instead of {expected}");
    }
}

#[test]
fn a_quotient_is_that_of_a_division_for_any_numbers() {
    let pairs = || NUMBERS.iter().flat_map(|&one| NUMBERS.iter().map(move |&other| (one, other)));
    let (x, z): (Vec<_>, Vec<_>) = pairs().unzip();
    let expected: Vec<_> = pairs().map(|(one, other)| one / other).collect();
    assert_near(&run(vec![node("Div", &["X", "Z"], &["Y"])], vec![], &x, &z), &expected, "two inputs");
    for constant in NUMBERS {
        let value = || vec![floats("C", &[], &[constant])];
        let found = run(vec![node("Div", &["X", "C"], &["Y"])], value(), &NUMBERS, &[]);
        assert_near(&found, &NUMBERS.map(|x| x / constant), &format!("by {constant}"));
        let found = run(vec![node("Div", &["C", "X"], &["Y"])], value(), &NUMBERS, &[]);
        assert_near(&found, &NUMBERS.map(|x| constant / x), &format!("of {constant}"));
    }
}

#[test]
fn a_normalization_divides_by_the_smallest_norms() {
    for x in NUMBERS.iter().flat_map(|&one| NUMBERS.map(|other| [one, other])) {
        let norm = x[0].abs() + x[1].abs();
        let expected = x.map(|x| if norm == 0.0 { 0.0 } else { x / norm });
        let normalization = with_int(node("LpNormalization", &["X"], &["Y"]), "p", 1);
        assert_near(&run(vec![normalization], vec![], &x, &[]), &expected, &format!("{x:?}"));
    }
}

#[test]
fn factors_are_multiplied_one_after_the_other() {
    for (first, second) in
        NUMBERS.iter().flat_map(|one| [0.0, 0.5, 1e-30, 1e30, 3e-39].map(|other| (*one, other)))
    {
        let nodes = vec![node("Mul", &["X", "A"], &["T"]), node("Mul", &["B", "T"], &["Y"])];
        let constants = vec![floats("A", &[], &[first]), floats("B", &[1], &[second])];
        let found = run(nodes, constants, &NUMBERS, &[]);
        assert_near(&found, &NUMBERS.map(|x| x * first * second), &format!("{first} and {second}"));
    }
}

#[test]
fn the_square_of_a_root_of_a_negative_number_is_not_a_number() {
    let x = [4.0, -4.0, 0.0, 2.25, -1e-20, 1e20];
    let expected = x.map(|x: f32| x.sqrt() * x.sqrt());
    let roots = [vec![node("Sqrt", &["X"], &["R"])], vec![node("Pow", &["X", "half"], &["R"])]];
    for root in roots {
        for moves in [vec![], vec![node("Reshape", &["R", "shape"], &["M"])]] {
            let moved = if moves.is_empty() { "R" } else { "M" };
            for square in [node("Mul", &[moved, moved], &["S"]), node("Pow", &[moved, "two"], &["S"])] {
                let flat = node("Reshape", &["S", "flat"], &["Y"]);
                let what = format!("{} {} {moved}", root[0].op_type, square.op_type);
                let nodes = [root.clone(), moves.clone(), vec![square, flat]].concat();
                let constants = vec![
                    floats("two", &[], &[2.0]),
                    floats("half", &[], &[0.5]),
                    ints("shape", &[2], &[2, 3]),
                    ints("flat", &[1], &[-1]),
                ];
                assert_near(&run(nodes, constants, &x, &[]), &expected, &what);
            }
        }
    }
}

/// Y of these nodes for X, in FP16, with scalar constants A and B.
fn run_narrow(nodes: Vec<NodeProto>, x: &[f16], constants: [f16; 2]) -> Vec<f16> {
    let bytes = |values: &[f16]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let constant = |(name, value): (&str, f16)| TensorProto {
        name: name.into(),
        data_type: Element::Float16 as i32,
        raw_data: bytes(&[value]),
        ..TensorProto::default()
    };
    let dims = [x.len() as i64];
    let constants = ["A", "B"].into_iter().zip(constants).map(constant).collect();
    let (inputs, outputs) =
        (vec![port("X", Element::Float16, &dims)], vec![port("Y", Element::Float16, &dims)]);
    let file = file_of_version(graph(inputs, nodes, outputs, constants), 13);
    let config = config(0, &[("X", DataType::Fp16, &dims)], &[("Y", DataType::Fp16, &dims)]);
    let response =
        serve(&file, config).infer(vec![Tensor::new("X", DataType::Fp16, &dims[..], bytes(x))]).unwrap();
    let contents = response.outputs[0].contiguous().unwrap();
    contents.as_chunks().0.iter().map(|&chunk| f16::from_le_bytes(chunk)).collect()
}

#[test]
fn quotients_and_products_of_fp16_have_all_their_digits() {
    let numbers =
        [0.0, 1.0, -3.0, 0.1, 6e-8, -1e-6, 6e-5, 1e-4, 300.0, 4e4, 65504.0, -65504.0].map(f16::from_f32);
    let narrow = |x: f32| f16::from_f32(x);
    for (one, other) in numbers.iter().zip(numbers.iter().cycle().skip(5)).map(|(one, other)| (*one, *other))
    {
        let (a, b) = (one.to_f32(), other.to_f32());
        let check = |nodes: Vec<NodeProto>, expected: &dyn Fn(f32) -> f16| {
            let found = run_narrow(nodes.clone(), &numbers, [one, other]);
            for (x, found) in numbers.iter().zip(found) {
                let (found, expected) = (found.to_f32(), expected(x.to_f32()).to_f32());
                let is_same = found == expected || found.is_nan() && expected.is_nan();
                let error = (found - expected).abs();
                let what = format!("{x} with {a} and {b} by {} {}", nodes[0].op_type, nodes[1].op_type);
                assert!(
                    is_same || error <= 6e-8 + expected.abs() / 1000.0,
                    "{what}: {found} instead of {expected}"
                );
            }
        };
        let pair = |op, names: &[&str]| vec![node(op, &["X", "A"], &["T"]), node(op, names, &["Y"])];
        check(pair("Mul", &["T", "B"]), &|x| narrow(narrow(x * a).to_f32() * b));
        check(pair("Div", &["T", "B"]), &|x| narrow(narrow(x / a).to_f32() / b));
        check(pair("Div", &["B", "T"]), &|x| narrow(b / narrow(x / a).to_f32()));
        check(pair("Div", &["T", "X"]), &|x| narrow(narrow(x / a).to_f32() / x));
    }
}

#[test]
fn squares_of_integers_are_exact() {
    // Their squares have more digits than FP32 has.
    let numbers = [14981_i64, -46340, 4097, 12345, -1, 0, 30001];
    let sum = |node: NodeProto| with_ints(with_int(node, "keepdims", 1), "axes", &[0]);
    let each: Vec<_> = numbers.iter().map(|number| number * number).collect();
    // The sum fits into 32 bits.
    let few = [14981_i64, -4097, 12345, 3];
    let total = vec![few.iter().map(|number| number * number).sum::<i64>()];
    for element in [Element::Int32, Element::Int64] {
        let data_type = if element == Element::Int32 { DataType::Int32 } else { DataType::Int64 };
        let tensor_of = |numbers: &[i64]| {
            let bytes: Vec<u8> = match data_type {
                DataType::Int32 => numbers.iter().flat_map(|&number| (number as i32).to_le_bytes()).collect(),
                _ => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            };
            Tensor::new("X", data_type, [numbers.len() as i64], bytes)
        };
        let cases = [
            ("product", vec![node("Mul", &["X", "X"], &["Y"])], &numbers[..], &each),
            ("power", vec![node("Pow", &["X", "two"], &["Y"])], &numbers, &each),
            ("sum", vec![sum(node("ReduceSumSquare", &["X"], &["Y"]))], &few, &total),
            (
                "sum of products",
                vec![
                    node("Mul", &["X", "X"], &["S"]),
                    with_int(node("ReduceSum", &["S"], &["Y"]), "keepdims", 1),
                ],
                &few,
                &total,
            ),
            (
                "product of copies",
                vec![node("Identity", &["X"], &["I"]), node("Mul", &["X", "I"], &["Y"])],
                &numbers,
                &each,
            ),
        ];
        for (name, nodes, x, expected) in cases {
            let dims = [x.len() as i64];
            let outputs = vec![port("Y", element, &[expected.len() as i64])];
            let constants = if name == "power" { vec![ints("two", &[], &[2])] } else { vec![] };
            let file = file_of_version(graph(vec![port("X", element, &dims)], nodes, outputs, constants), 13);
            let declared =
                config(0, &[("X", data_type, &dims)], &[("Y", data_type, &[expected.len() as i64])]);
            let response = serve(&file, declared).infer(vec![tensor_of(x)]).unwrap();
            let found = response.outputs[0].contiguous().unwrap().to_vec();
            let expected = tensor_of(expected).contiguous().unwrap().to_vec();
            assert_eq!(found, expected, "{name} of {data_type}");
        }
    }
}
