//! Slice against ONNX's definition of it, with bounds as attributes and as constants.

use nereid_backend_api::DataType;
use tract_onnx::pb::tensor_proto::DataType as Element;

use super::onnx::{file_of_version, graph, ints, node, port, with_ints};
use super::server::{config, try_serve};
use super::{fp32, fp32_output};

/// The places of the elements that a slice of a dimension has, as ONNX defines them.
fn places(size: i64, start: i64, end: i64, step: i64) -> Vec<i64> {
    let from_end = |bound: i64| if bound < 0 { bound.saturating_add(size) } else { bound };
    let (low, high) = if step > 0 { (0, size) } else { (-1, size - 1) };
    let (start, end) = (from_end(start).clamp(low.max(0), high), from_end(end).clamp(low, high));
    let mut places = Vec::new();
    let mut place = start;
    while if step > 0 { place < end } else { place > end } {
        places.push(place);
        place += step;
    }
    places
}

/// The shape and the numbers of a Slice of X, which has this shape.
fn run(version: i64, shape: &[i64], slices: [&[i64]; 4]) -> Result<(Vec<i64>, Vec<f32>), String> {
    let [starts, ends, axes, _] = slices;
    let names = ["starts", "ends", "axes", "steps"];
    let (slice, constants) = match version {
        ..10 => {
            let slice = names.iter().zip([starts, ends, axes]);
            (slice.fold(node("Slice", &["X"], &["Y"]), |node, (name, it)| with_ints(node, name, it)), vec![])
        }
        _ => {
            let constants = names.iter().zip(slices).map(|(name, it)| ints(name, &[it.len() as i64], it));
            (node("Slice", &["X", "starts", "ends", "axes", "steps"], &["Y"]), constants.collect())
        }
    };
    let open = vec![-1; shape.len()];
    let outputs = vec![port("Y", Element::Float, &open)];
    let file = graph(vec![port("X", Element::Float, &open)], vec![slice], outputs, constants);
    let config = config(0, &[("X", DataType::Fp32, &open)], &[("Y", DataType::Fp32, &open)]);
    let values: Vec<f32> = (0..shape.iter().product::<i64>()).map(|at| at as f32).collect();
    let model = try_serve(&file_of_version(file, version), config);
    let response = model.and_then(|mut model| model.infer(vec![fp32("X", shape, &values)]));
    response.map(|response| fp32_output(&response)).map_err(|error| error.message().to_owned())
}

#[test]
fn each_slice_of_a_dimension_has_the_elements_of_the_definition() {
    const BOUNDS: [i64; 9] = [i64::MIN, -5, -3, -1, 0, 1, 2, 5, i64::MAX];
    let mut empty = 0;
    for size in [1, 3, 4] {
        for (start, end) in BOUNDS.iter().flat_map(|start| BOUNDS.map(|end| (*start, end))) {
            for step in [1, 2, 7, -1, -2, -7] {
                let expected = places(size, start, end, step);
                empty += usize::from(expected.is_empty());
                let found = run(13, &[2, size], [&[start], &[end], &[-1], &[step]]).unwrap();
                let row = |row: i64| expected.iter().map(move |place| (row * size + place) as f32);
                let values: Vec<f32> = row(0).chain(row(1)).collect();
                let what = format!("{start}..{end} in steps of {step} of {size}");
                assert_eq!(found, (vec![2, expected.len() as i64], values), "{what}");
            }
        }
    }
    assert!(empty > 100);
}

#[test]
fn slices_of_several_axes_apply_to_each() {
    for version in [9, 10, 13] {
        let steps = if version == 9 { [1, 1] } else { [-1, 2] };
        let (shape, values) = run(version, &[3, 2, 4], [&[-1, 0], &[-9, 4], &[0, 2], &steps]).unwrap();
        let (first, last) = (places(3, -1, -9, steps[0]), places(4, 0, 4, steps[1]));
        assert_eq!(shape, [first.len() as i64, 2, last.len() as i64], "{version}");
        let expected = first.iter().flat_map(|one| {
            let last = &last;
            (0..2).flat_map(move |two| last.iter().map(move |three| ((one * 2 + two) * 4 + three) as f32))
        });
        assert_eq!(values, expected.collect::<Vec<_>>(), "{version}");
    }
}

#[test]
fn a_slice_that_onnx_does_not_allow_is_refused() {
    for (slices, reason) in [
        ([&[0][..], &[1][..], &[0][..], &[0][..]], "a step of 0"),
        ([&[0], &[1], &[0], &[1 << 40]], "too large"),
        ([&[0], &[1, 2], &[0], &[1]], "1 starts, 2 ends"),
        ([&[0, 0], &[1, 1], &[0, -2], &[1, 1]], "name one twice"),
        ([&[0], &[1], &[2], &[1]], "out of range"),
    ] {
        let error = run(13, &[2, 3], slices).unwrap_err();
        assert!(error.contains(reason) && !error.contains("panicked"), "{slices:?}: {error}");
    }
}
