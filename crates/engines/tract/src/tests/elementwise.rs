//! Functions of elements that the engine computes otherwise, against their definitions.

use nereid_backend_api::{DataType, Result, Tensor};
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{file_of_version, floats, graph, node, port, with_int};
use super::server::{config, try_serve};
use super::{fp32, fp32_output};

/// An integer type, with the bytes of a number of it and back.
struct Integers {
    element: Element,
    data_type: DataType,
    encode: fn(i64) -> Vec<u8>,
    decode: fn(&[u8]) -> i64,
}

const INTEGERS: [Integers; 4] = [
    Integers {
        element: Element::Int64,
        data_type: DataType::Int64,
        encode: |number| number.to_le_bytes().to_vec(),
        decode: |bytes| i64::from_le_bytes(bytes.try_into().unwrap()),
    },
    Integers {
        element: Element::Int32,
        data_type: DataType::Int32,
        encode: |number| (number as i32).to_le_bytes().to_vec(),
        decode: |bytes| i32::from_le_bytes(bytes.try_into().unwrap()).into(),
    },
    Integers {
        element: Element::Int8,
        data_type: DataType::Int8,
        encode: |number| vec![number as u8],
        decode: |bytes| (bytes[0] as i8).into(),
    },
    Integers {
        element: Element::Uint64,
        data_type: DataType::Uint64,
        encode: |number| number.to_le_bytes().to_vec(),
        decode: |bytes| i64::from_le_bytes(bytes.try_into().unwrap()),
    },
];

impl Integers {
    fn tensor(&self, name: &str, shape: &[i64], numbers: &[i64]) -> Tensor {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| (self.encode)(*number)).collect();
        Tensor::new(name, self.data_type, shape, bytes)
    }

    fn is_signed(&self) -> bool {
        self.element != Element::Uint64
    }

    /// An operator on each two of the numbers: a column with a row.
    fn run(&self, operator: &str, fmod: bool, column: &[i64], row: &[i64]) -> Result<Vec<i64>> {
        let operation = node(operator, &["A", "B"], &["Y"]);
        let operation = if fmod { with_int(operation, "fmod", 1) } else { operation };
        let (rows, columns) = (column.len() as i64, row.len() as i64);
        let inputs = vec![port("A", self.element, &[rows, 1]), port("B", self.element, &[columns])];
        let outputs = vec![port("Y", self.element, &[rows, columns])];
        let file = file_of_version(graph(inputs, vec![operation], outputs, vec![]), 14);
        let declared = [("A", self.data_type, &[rows, 1][..]), ("B", self.data_type, &[columns])];
        let config = config(0, &declared, &[("Y", self.data_type, &[rows, columns])]);
        let inputs = vec![self.tensor("A", &[rows, 1], column), self.tensor("B", &[columns], row)];
        let response = try_serve(&file, config)?.infer(inputs)?;
        let bytes = response.outputs[0].contiguous()?;
        let size = self.data_type.byte_size().unwrap();
        Ok(bytes.chunks(size).map(self.decode).collect())
    }
}

#[test]
fn integers_are_divided_and_raised_as_defined() {
    for integers in INTEGERS {
        let signs: &[i64] = if integers.is_signed() { &[1, -1] } else { &[1] };
        let signed = |numbers: &[i64]| -> Vec<i64> {
            signs.iter().flat_map(|sign| numbers.iter().map(move |number| sign * number)).collect()
        };
        let (column, row) = (signed(&[0, 1, 2, 5, 7]), signed(&[1, 2, 3, 7]));
        let pairs = || column.iter().flat_map(|&one| row.iter().map(move |&other| (one, other)));
        let floor = |(one, other): (i64, i64)| one - other * (one as f64 / other as f64).floor() as i64;
        for (operator, fmod, expected) in [
            ("Div", false, pairs().map(|(one, other)| one / other).collect::<Vec<_>>()),
            ("Mod", true, pairs().map(|(one, other)| one % other).collect()),
            ("Mod", false, pairs().map(floor).collect()),
        ] {
            let found = integers.run(operator, fmod, &column, &row).unwrap();
            assert_eq!(found, expected, "{operator} {fmod} {:?}", integers.data_type);
            let error = integers.run(operator, fmod, &column, &[0]).unwrap_err();
            assert!(error.message().contains("is divided by 0"), "{operator}: {error}");
        }
        let bases: Vec<_> = column.iter().copied().filter(|base| *base != 0).collect();
        let exponents = signed(&[0, 1, 2]);
        let power = |base: i64, exponent: i64| (base as f64).powi(exponent as i32) as i64;
        let expected: Vec<_> = bases
            .iter()
            .flat_map(|base| exponents.iter().map(move |exponent| power(*base, *exponent)))
            .collect();
        assert_eq!(
            integers.run("Pow", false, &bases, &exponents).unwrap(),
            expected,
            "{:?}",
            integers.data_type
        );
        if integers.is_signed() {
            let error = integers.run("Pow", false, &[0], &[-1]).unwrap_err();
            assert!(error.message().contains("0 has no power of -1"), "{error}");
        }
    }
}

/// Y of one operator on X, of this shape.
fn function(version: i64, operator: &str, axis: Option<i64>, shape: &[i64], x: &[f32]) -> Vec<f32> {
    let operation = node(operator, &["X"], &["Y"]);
    let operation = match axis {
        Some(axis) => with_int(operation, "axis", axis),
        None => operation,
    };
    let (inputs, outputs) = (vec![port("X", Element::Float, shape)], vec![port("Y", Element::Float, shape)]);
    let file = file_of_version(graph(inputs, vec![operation], outputs, vec![]), version);
    let config = config(0, &[("X", DataType::Fp32, shape)], &[("Y", DataType::Fp32, shape)]);
    let response = try_serve(&file, config).unwrap().infer(vec![fp32("X", shape, x)]).unwrap();
    fp32_output(&response).1
}

fn assert_near(found: &[f32], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (&found, &expected) in found.iter().zip(expected) {
        let error = (f64::from(found) - expected).abs();
        assert!(error <= 1e-6 + 2e-6 * expected.abs(), "{what}: {found} instead of {expected}");
    }
}

#[test]
fn softplus_of_large_numbers_is_finite() {
    let x = [-1e30, -200.0, -20.0, -1.0, 0.0, 1.0, 20.0, 88.0, 200.0, 1e30_f32];
    let expected = x.map(|x| f64::from(x).max(0.0) + (-f64::from(x).abs()).exp().ln_1p());
    assert_near(&function(11, "Softplus", None, &[10], &x), &expected, "Softplus");
}

#[test]
fn a_remainder_has_its_dividend_on_the_left_whatever_is_broadcast() {
    // One number and many, on either side.
    let many = [0.5, -2.5, 3.0, 7.25, -0.75, 1.0, 100.5, -9.0_f32];
    for (one, one_is_first, truncates) in [-1.3125_f32, 2.5]
        .into_iter()
        .flat_map(|one| [(one, true, true), (one, true, false), (one, false, true), (one, false, false)])
    {
        let names = if one_is_first { ["C", "X"] } else { ["X", "C"] };
        let operation = with_int(node("Mod", &names, &["Y"]), "fmod", truncates.into());
        let (inputs, outputs) =
            (vec![port("X", Element::Float, &[8])], vec![port("Y", Element::Float, &[8])]);
        let constant = floats("C", &[], &[one]);
        let file = file_of_version(graph(inputs, vec![operation], outputs, vec![constant]), 13);
        let config = config(0, &[("X", DataType::Fp32, &[8])], &[("Y", DataType::Fp32, &[8])]);
        let response = try_serve(&file, config).unwrap().infer(vec![fp32("X", &[8], &many)]).unwrap();
        let rest = |one: f32, other: f32| match truncates {
            true => one - other * (one / other).trunc(),
            false => one - other * (one / other).floor(),
        };
        let expected = many.map(|it| f64::from(if one_is_first { rest(one, it) } else { rest(it, one) }));
        assert_near(&fp32_output(&response).1, &expected, &format!("{one} {one_is_first} {truncates}"));
    }
}

#[test]
fn the_logarithm_of_a_softmax_is_finite_where_the_softmax_is_zero() {
    let shape = [2, 2, 3];
    let x = [0.0, -300.0, 2.0, 1e4, -1e4, 1.0, 5.0, 5.0, 5.0, -80.0, 90.0, 3.5_f32];
    for (version, axis) in [(13, -1), (13, 0), (13, 1), (11, 1), (11, 2), (11, 0), (11, -1)] {
        let axis_from_start = if axis < 0 { axis + 3 } else { axis } as usize;
        // Before 13, all axes from this one on count as one.
        let end = if version < 13 { 3 } else { axis_from_start + 1 };
        let key = |at: usize| {
            let coordinates = [at / 6, at / 3 % 2, at % 3];
            let group: Vec<_> =
                (0..3).filter(|it| !(axis_from_start..end).contains(it)).map(|it| coordinates[it]).collect();
            group
        };
        let expected: Vec<f64> = (0..12)
            .map(|at| {
                let group: Vec<f64> =
                    (0..12).filter(|&it| key(it) == key(at)).map(|it| f64::from(x[it])).collect();
                let largest = group.iter().copied().fold(f64::MIN, f64::max);
                f64::from(x[at]) - largest - group.iter().map(|x| (x - largest).exp()).sum::<f64>().ln()
            })
            .collect();
        let found = function(version, "LogSoftmax", Some(axis), &shape, &x);
        assert_near(&found, &expected, &format!("axis {axis} at {version}"));
    }
}
