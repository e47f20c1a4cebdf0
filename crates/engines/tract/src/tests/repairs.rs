//! Operators of the engine that are put right.

use nereid_backend_api::DataType;
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{file, file_of_version, graph, ints, node, port, with_int, with_ints};
use super::server::{config, serve};
use super::{fp32, fp32_output};

#[test]
fn log_of_sum_of_exponentials_stays_finite_far_from_zero() {
    let rows: [[f32; 3]; 6] = [
        [-200.0, -201.0, -203.5],
        [200.0, 201.0, 203.5],
        [1e30, 1.0, -1e30],
        [0.0, 0.0, 0.0],
        [f32::NEG_INFINITY; 3],
        [f32::INFINITY, 0.0, 1.0],
    ];
    let x: Vec<f32> = rows.concat();
    for keeps in [false, true] {
        let dims: &[i64] = if keeps { &[6, 1] } else { &[6] };
        let reduce = with_ints(node("ReduceLogSumExp", &["X"], &["Y"]), "axes", &[1]);
        let reduce = with_int(reduce, "keepdims", keeps.into());
        let outputs = vec![port("Y", Element::Float, dims)];
        let file = file(graph(vec![port("X", Element::Float, &[6, 3])], vec![reduce], outputs, vec![]));
        let config = config(0, &[("X", DataType::Fp32, &[6, 3])], &[("Y", DataType::Fp32, dims)]);
        let response = serve(&file, config).infer(vec![fp32("X", &[6, 3], &x)]).unwrap();
        for (found, row) in fp32_output(&response).1.into_iter().zip(rows) {
            let greatest = row.into_iter().fold(f32::NEG_INFINITY, f32::max);
            let expected = match greatest.is_finite() {
                true => greatest + row.iter().map(|x| (x - greatest).exp()).sum::<f32>().ln(),
                false => greatest,
            };
            let error = (found - expected).abs();
            assert!(found == expected || error <= expected.abs() * 1e-5, "{row:?}: {found}, not {expected}");
        }
    }
}

#[test]
fn squeeze_without_axes_removes_all_dimensions_of_one_in_every_version() {
    for version in [11, 12, 13, 17] {
        let nodes = vec![node("Squeeze", &["X"], &["Y"])];
        let outputs = vec![port("Y", Element::Float, &[2, 3])];
        let graph = graph(vec![port("X", Element::Float, &[1, 2, 1, 3])], nodes, outputs, vec![]);
        let config = config(0, &[("X", DataType::Fp32, &[1, 2, 1, 3])], &[("Y", DataType::Fp32, &[2, 3])]);
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut model = serve(&file_of_version(graph, version), config);
        let response = model.infer(vec![fp32("X", &[1, 2, 1, 3], &x)]).unwrap();
        assert_eq!(fp32_output(&response), (vec![2, 3], x.to_vec()), "version {version}");
    }
}

#[test]
fn squeeze_with_axes_keeps_the_other_dimensions_of_one() {
    for version in [11, 13] {
        let (squeeze, axes) = match version {
            11 => (with_ints(node("Squeeze", &["X"], &["Y"]), "axes", &[0]), vec![]),
            _ => (node("Squeeze", &["X", "axes"], &["Y"]), vec![ints("axes", &[1], &[0])]),
        };
        let outputs = vec![port("Y", Element::Float, &[1, 3])];
        let graph = graph(vec![port("X", Element::Float, &[1, 1, 3])], vec![squeeze], outputs, axes);
        let config = config(0, &[("X", DataType::Fp32, &[1, 1, 3])], &[("Y", DataType::Fp32, &[1, 3])]);
        let mut model = serve(&file_of_version(graph, version), config);
        let response = model.infer(vec![fp32("X", &[1, 1, 3], &[1.0, 2.0, 3.0])]).unwrap();
        assert_eq!(fp32_output(&response), (vec![1, 3], vec![1.0, 2.0, 3.0]), "version {version}");
    }
}
