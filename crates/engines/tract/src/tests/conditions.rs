//! Conditions that are constants of the file, or that the shapes or the contents of a request decide.

use nereid_backend_api::{DataType, ErrorCode, Tensor};
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto};

use super::onnx::{file, file_of_version, floats, graph, ints, node, port, with_graph, with_int};
use super::server::{Served, config, refusal, serve, try_serve};
use super::{fp32, fp32_output};

fn truth(name: &str, value: bool) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: Element::Bool as i32,
        raw_data: vec![value.into()],
        ..TensorProto::default()
    }
}

/// A node that makes a truth value.
fn constant(name: &str, value: bool) -> NodeProto {
    let mut constant = node("Constant", &[], &[name]);
    constant.attribute.push(AttributeProto {
        name: "value".into(),
        r#type: AttributeType::Tensor as i32,
        t: Some(truth("", value)),
        ..AttributeProto::default()
    });
    constant
}

/// A branch that makes X times a number of its own. All branches have the same names within.
fn branch(factor: f32) -> GraphProto {
    let nodes = vec![node("Mul", &["X", "factor"], &["product"])];
    graph(vec![], nodes, vec![port("product", Element::Float, &[2])], vec![floats("factor", &[], &[factor])])
}

/// A branch that returns the result of another condition.
fn nested(condition: &str, then: GraphProto, r#else: GraphProto) -> GraphProto {
    let nodes = vec![condition_on(condition, "product", then, r#else)];
    graph(vec![], nodes, vec![port("product", Element::Float, &[2])], vec![])
}

fn condition_on(condition: &str, output: &str, then: GraphProto, r#else: GraphProto) -> NodeProto {
    with_graph(with_graph(node("If", &[condition], &[output]), "then_branch", then), "else_branch", r#else)
}

/// Y of a model with these nodes, for X = [1, -2].
fn run(nodes: Vec<NodeProto>, constants: Vec<TensorProto>) -> Vec<f32> {
    let (inputs, outputs) = (vec![port("X", Element::Float, &[2])], vec![port("Y", Element::Float, &[2])]);
    let config = config(0, &[("X", DataType::Fp32, &[2])], &[("Y", DataType::Fp32, &[2])]);
    let response = serve(&file(graph(inputs, nodes, outputs, constants)), config).infer(vec![fp32(
        "X",
        &[2],
        &[1.0, -2.0],
    )]);
    fp32_output(&response.unwrap()).1
}

#[test]
fn the_branch_of_a_constant_condition_is_run() {
    for value in [false, true] {
        let factor = if value { 3.0 } else { 5.0 };
        let condition = || condition_on("C", "Y", branch(3.0), branch(5.0));
        let expected = [factor, -2.0 * factor];
        assert_eq!(run(vec![condition()], vec![truth("C", value)]), expected);
        assert_eq!(run(vec![constant("C", value), condition()], vec![]), expected);
    }
}

#[test]
fn conditions_within_branches_and_one_after_the_other_are_resolved() {
    for bits in 0..8 {
        let [a, b, c] = [1, 2, 4].map(|bit| bits & bit > 0);
        let inner = nested("B", branch(2.0), branch(3.0));
        let nodes = vec![
            condition_on("A", "Z", inner, branch(5.0)),
            condition_on("C", "F", branch(7.0), branch(11.0)),
            node("Add", &["Z", "F"], &["Y"]),
        ];
        let found = run(nodes, vec![truth("A", a), truth("B", b), truth("C", c)]);
        let first = if a { if b { 2.0 } else { 3.0 } } else { 5.0 };
        let factor = first + if c { 7.0 } else { 11.0 };
        assert_eq!(found, [factor, -2.0 * factor], "{a} {b} {c}");
    }
}

fn bool_input(name: &str, dims: &[i64], values: &[bool]) -> Tensor {
    let bytes: Vec<u8> = values.iter().map(|&value| value.into()).collect();
    Tensor::new(name, DataType::Bool, dims, bytes)
}

#[test]
fn a_condition_may_be_an_input() {
    for dims in [&[][..], &[1], &[1, 1]] {
        let ports = [("X", DataType::Fp32, &[2][..]), ("C", DataType::Bool, dims)];
        let config = config(0, &ports, &[("Y", DataType::Fp32, &[2])]);
        let inputs = vec![port("X", Element::Float, &[2]), port("C", Element::Bool, dims)];
        let outputs = vec![port("Y", Element::Float, &[2])];
        // The file may have a value for it, which a request overrides.
        for constants in [vec![], vec![TensorProto { dims: dims.to_vec(), ..truth("C", true) }]] {
            let nodes = vec![condition_on("C", "Y", branch(3.0), branch(5.0))];
            let mut model =
                serve(&file(graph(inputs.clone(), nodes, outputs.clone(), constants)), config.clone());
            for value in [true, false, false, true, false] {
                let request = vec![fp32("X", &[2], &[1.0, -2.0]), bool_input("C", dims, &[value])];
                let (_, found) = fp32_output(&model.infer(request).unwrap());
                let factor = if value { 3.0 } else { 5.0 };
                assert_eq!(found, [factor, -2.0 * factor], "{dims:?} {value}");
            }
        }
    }
}

#[test]
fn a_condition_has_one_element() {
    let ports = [("X", DataType::Fp32, &[2][..]), ("C", DataType::Bool, &[-1])];
    let config = config(0, &ports, &[("Y", DataType::Fp32, &[2])]);
    let inputs = vec![port("X", Element::Float, &[2]), port("C", Element::Bool, &[-1])];
    let outputs = vec![port("Y", Element::Float, &[2])];
    let nodes = vec![condition_on("C", "Y", branch(3.0), branch(5.0))];
    let mut model = serve(&file(graph(inputs, nodes, outputs, vec![])), config);
    for count in [0, 2, 3, 1] {
        let values = vec![true; count];
        let request = vec![fp32("X", &[2], &[1.0, -2.0]), bool_input("C", &[count as i64], &values)];
        match model.infer(request) {
            Ok(response) => assert_eq!((count, fp32_output(&response).1), (1, vec![3.0, -6.0])),
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::InvalidArg, "{error}");
                assert!(error.message().contains("the condition 'C'"), "{error}");
                assert_ne!(count, 1);
            }
        }
    }
}

#[test]
fn a_branch_without_an_output_of_the_condition_is_refused() {
    let config = config(0, &[("X", DataType::Fp32, &[2])], &[("Y", DataType::Fp32, &[2])]);
    let (inputs, outputs) = (vec![port("X", Element::Float, &[2])], vec![port("Y", Element::Float, &[2])]);
    let empty = graph(vec![], vec![], vec![], vec![]);
    let nodes = vec![condition_on("C", "Y", empty, branch(5.0))];
    let message = refusal(&file(graph(inputs, nodes, outputs, vec![truth("C", true)])), config);
    assert!(message.contains("has 0 outputs instead of 1"), "{message}");
}

/// A branch that makes a tensor times a number, of any shape.
fn times(input: &str, factor: f32) -> GraphProto {
    let nodes = vec![node("Mul", &[input, "factor"], &["product"])];
    graph(
        vec![],
        nodes,
        vec![port("product", Element::Float, &[-1, -1])],
        vec![floats("factor", &[], &[factor])],
    )
}

/// The nodes that compare the first dimension of a tensor with a constant, as exporters write them.
fn compare(operator: &str, tensor: &str, constant: &str, result: &str) -> Vec<NodeProto> {
    let [shape, size] = ["shape", "size"].map(|part| format!("{result}_{part}"));
    vec![
        node("Shape", &[tensor], &[&shape]),
        node("Gather", &[&shape, "zero"], &[&size]),
        node(operator, &[&size, constant], &[result]),
    ]
}

/// Y of X, with the constants that comparisons need.
fn of_shapes(nodes: Vec<NodeProto>, output: &[i64]) -> Served {
    let (inputs, outputs) =
        (vec![port("X", Element::Float, &[-1, -1])], vec![port("Y", Element::Float, output)]);
    let numbers = [("zero", 0), ("one", 1), ("two", 2)].map(|(name, value)| ints(name, &[1], &[value]));
    let constants = numbers.into_iter().chain([floats("four", &[], &[4.0])]).collect();
    let config = config(0, &[("X", DataType::Fp32, &[-1, -1])], &[("Y", DataType::Fp32, output)]);
    serve(&file(graph(inputs, nodes, outputs, constants)), config)
}

fn ones(rows: i64, columns: i64) -> Tensor {
    fp32("X", &[rows, columns], &vec![1.0; (rows * columns) as usize])
}

type Comparison = fn(&i64, &i64) -> bool;

#[test]
fn shapes_decide_conditions_request_by_request() {
    let comparisons: [(&str, Comparison); 3] = [("Equal", i64::eq), ("Greater", i64::gt), ("Less", i64::lt)];
    for (operator, holds) in comparisons {
        let mut nodes = compare(operator, "X", "two", "C");
        nodes.push(condition_on("C", "Y", times("X", 3.0), times("X", 5.0)));
        let mut model = of_shapes(nodes, &[-1, -1]);
        for rows in [1, 2, 3, 2, 1, 4] {
            let (shape, values) = fp32_output(&model.infer(vec![ones(rows, 2)]).unwrap());
            let factor = if holds(&rows, &2) { 3.0 } else { 5.0 };
            assert_eq!(
                (shape, values),
                (vec![rows, 2], vec![factor; 2 * rows as usize]),
                "{operator} {rows}"
            );
        }
    }
}

#[test]
fn conditions_on_shapes_may_follow_and_contain_others() {
    // The first condition doubles the rows or not, so that the second one depends on its result.
    let doubled = || {
        let nodes = vec![with_int(node("Concat", &["X", "X"], &["rows"]), "axis", 0)];
        graph(vec![], nodes, vec![port("rows", Element::Float, &[-1, -1])], vec![])
    };
    let inner = || {
        let mut nodes = compare("Greater", "Z", "two", "C");
        nodes.push(condition_on("C", "product", times("Z", 7.0), times("Z", 11.0)));
        graph(vec![], nodes, vec![port("product", Element::Float, &[-1, -1])], vec![])
    };
    let nodes = [
        compare("Equal", "X", "one", "A"),
        vec![condition_on("A", "Z", doubled(), times("X", 1.0))],
        compare("Equal", "Z", "two", "B"),
        vec![condition_on("B", "Y", times("Z", 5.0), inner())],
    ];
    let mut model = of_shapes(nodes.concat(), &[-1, -1]);
    for (rows, results, factor) in [(1, 2, 5.0), (2, 2, 5.0), (3, 3, 7.0), (1, 2, 5.0), (4, 4, 7.0)] {
        let (shape, values) = fp32_output(&model.infer(vec![ones(rows, 3)]).unwrap());
        assert_eq!((shape, values), (vec![results, 3], vec![factor; 3 * results as usize]), "{rows}");
    }
}

#[test]
fn a_dimension_of_one_is_dropped_and_others_are_kept() {
    let branch = |operator| {
        let inputs: &[&str] = if operator == "Squeeze" { &["X", "zero"] } else { &["X"] };
        let nodes = vec![node(operator, inputs, &["kept"])];
        graph(vec![], nodes, vec![port("kept", Element::Float, &[])], vec![])
    };
    let mut nodes = compare("Equal", "X", "one", "C");
    nodes.push(condition_on("C", "Z", branch("Squeeze"), branch("Identity")));
    nodes.extend([node("Shape", &["Z"], &["S"]), with_int(node("Cast", &["S"], &["Y"]), "to", 1)]);
    let mut model = of_shapes(nodes, &[-1]);
    for (rows, columns) in [(1, 4), (3, 4), (1, 1), (2, 1)] {
        let (_, shape) = fp32_output(&model.infer(vec![ones(rows, columns)]).unwrap());
        let expected = if rows == 1 { vec![columns as f32] } else { vec![rows as f32, columns as f32] };
        assert_eq!(shape, expected, "{rows} {columns}");
    }
}

/// The nodes of D, which is true for a sum of X other than 0.
fn sum_differs_from_zero() -> Vec<NodeProto> {
    let sum = with_int(node("ReduceSum", &["X"], &["total"]), "keepdims", 0);
    vec![sum, with_int(node("Cast", &["total"], &["D"]), "to", 9)]
}

#[test]
fn contents_and_shapes_decide_conditions_that_follow_and_contain_one_another() {
    let on_contents =
        || [sum_differs_from_zero(), vec![condition_on("D", "Z", times("X", 3.0), times("X", 5.0))]].concat();
    let within = || {
        let nodes = [on_contents(), vec![node("Identity", &["Z"], &["product"])]].concat();
        graph(vec![], nodes, vec![port("product", Element::Float, &[-1, -1])], vec![])
    };
    // Which sizes are compared depends on contents.
    let selected = || {
        let sizes =
            |nodes: Vec<NodeProto>| graph(vec![], nodes, vec![port("sizes", Element::Int64, &[2])], vec![]);
        let turned = vec![node("Transpose", &["X"], &["turned"]), node("Shape", &["turned"], &["sizes"])];
        let upright = vec![node("Shape", &["X"], &["sizes"])];
        let mut nodes = sum_differs_from_zero();
        nodes.push(condition_on("D", "chosen", sizes(upright), sizes(turned)));
        nodes.extend([
            node("Gather", &["chosen", "zero"], &["size"]),
            node("Equal", &["size", "one"], &["C"]),
        ]);
        nodes
    };
    type Factor = fn(bool, bool, bool) -> f32;
    let cases: [(Vec<NodeProto>, Factor); 5] = [
        (
            [on_contents(), vec![node("Identity", &["Z"], &["Y"])]].concat(),
            |some, _, _| {
                if some { 3.0 } else { 5.0 }
            },
        ),
        (
            [compare("Equal", "X", "one", "C"), vec![condition_on("C", "Y", within(), times("X", 1.0))]]
                .concat(),
            |some, row, _| {
                if !row {
                    1.0
                } else if some {
                    3.0
                } else {
                    5.0
                }
            },
        ),
        (
            [compare("Equal", "X", "one", "C"), vec![condition_on("C", "Y", times("X", 1.0), within())]]
                .concat(),
            |some, row, _| {
                if row {
                    1.0
                } else if some {
                    3.0
                } else {
                    5.0
                }
            },
        ),
        (
            [selected(), vec![condition_on("C", "Y", times("X", 1.0), times("X", 2.0))]].concat(),
            |some, row, column| if (some && row) || (!some && column) { 1.0 } else { 2.0 },
        ),
        (
            // The second one needs the result of the first one.
            [
                on_contents(),
                vec![
                    with_int(node("ReduceMax", &["Z"], &["most"]), "keepdims", 0),
                    node("Greater", &["most", "four"], &["E"]),
                    condition_on("E", "Y", times("Z", 7.0), times("Z", 11.0)),
                ],
            ]
            .concat(),
            |some, _, _| if some { 3.0 * 11.0 } else { 5.0 * 7.0 },
        ),
    ];
    for (case, (nodes, factor)) in cases.into_iter().enumerate() {
        let mut model = of_shapes(nodes, &[-1, -1]);
        for (rows, columns) in [(1, 2), (2, 1), (2, 2), (1, 1), (1, 2)] {
            for some in [true, false, true] {
                let count = (rows * columns) as usize;
                // Their sum is 0 if `some` is false.
                let values: Vec<_> = match some {
                    true => vec![1.0_f32; count],
                    false if count == 1 => vec![0.0],
                    false => (0..count).map(|at| if at % 2 == 0 { 1.0 } else { -1.0 }).collect(),
                };
                let (_, found) =
                    fp32_output(&model.infer(vec![fp32("X", &[rows, columns], &values)]).unwrap());
                let factor = match (case, count, some) {
                    // The largest number is 0.
                    (4, 1, false) => 5.0 * 11.0,
                    _ => factor(some, rows == 1, columns == 1),
                };
                let expected: Vec<_> = values.iter().map(|value| value * factor).collect();
                assert_eq!(found, expected, "case {case}, {rows} x {columns}, {some}");
            }
        }
    }
}

#[test]
fn a_chain_of_conditions_has_a_limit() {
    for (length, is_served) in [(16, true), (17, false)] {
        let mut nodes = vec![node("Identity", &["X"], &["Z0"])];
        for at in 0..length {
            let [from, total, truth] = ["Z", "T", "D"].map(|letter| format!("{letter}{at}"));
            let to = format!("Z{}", at + 1);
            nodes.extend([
                with_int(node("ReduceSum", &[&from], &[&total]), "keepdims", 0),
                with_int(node("Cast", &[&total], &[&truth]), "to", 9),
                condition_on(&truth, &to, times(&from, 2.0), times(&from, 1.0)),
            ]);
        }
        nodes.push(node("Identity", &[&format!("Z{length}")], &["Y"]));
        let outcome = of_shapes(nodes, &[-1, -1]).infer(vec![ones(1, 1)]);
        match outcome {
            Ok(response) => assert_eq!((is_served, fp32_output(&response).1), (true, vec![65536.0])),
            Err(error) => {
                assert!(!is_served && error.message().contains("more than 16 conditions"), "{error}");
            }
        }
    }
}

#[test]
fn a_size_that_depends_on_contents_decides_no_condition() {
    let mut nodes = vec![node("NonZero", &["X"], &["places"]), node("Size", &["places"], &["count"])];
    nodes.extend([
        node("Greater", &["count", "two"], &["C"]),
        condition_on("C", "Y", times("X", 3.0), times("X", 5.0)),
    ]);
    let error = of_shapes(nodes, &[-1, -1]).infer(vec![ones(2, 2)]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg, "{error}");
    assert!(error.message().contains("size"), "{error}");
}

#[test]
fn branches_are_held_to_the_rules_of_graphs() {
    let product = || vec![port("product", Element::Float, &[2])];
    let twice = || {
        let nodes = vec![node("Relu", &["X"], &["product"]), node("Neg", &["X"], &["product"])];
        graph(vec![], nodes, product(), vec![])
    };
    let mask = |last: NodeProto| {
        graph(vec![], vec![node("Dropout", &["X"], &["kept", "mask"]), last], product(), vec![])
    };
    let returned = || mask(with_int(node("Cast", &["mask"], &["product"]), "to", 1));
    let unread = || mask(node("Identity", &["kept"], &["product"]));
    let config = config(0, &[("X", DataType::Fp32, &[2])], &[("Y", DataType::Fp32, &[2])]);
    let cases = [
        (twice(), 17, Some("makes the tensor 'product' more than once")),
        (returned(), 11, Some("the mask of a Dropout before opset 12")),
        (returned(), 12, None),
        (unread(), 11, None),
    ];
    for (body, version, expected) in cases {
        // Also in a branch of a branch.
        let deeper = nested("D", branch(1.0), body.clone());
        for body in [body, deeper] {
            let mut nodes = vec![
                with_int(node("ReduceSum", &["X"], &["total"]), "keepdims", 0),
                with_int(node("Cast", &["total"], &["D"]), "to", 9),
            ];
            nodes.push(condition_on("D", "Y", branch(1.0), body));
            let inputs = vec![port("X", Element::Float, &[2])];
            let outputs = vec![port("Y", Element::Float, &[2])];
            let file = file_of_version(graph(inputs, nodes, outputs, vec![]), version);
            let outcome = try_serve(&file, config.clone()).map(|_| ());
            let message = outcome.err().map(|error| error.message().to_owned());
            match expected {
                Some(expected) => {
                    assert!(message.as_ref().is_some_and(|it| it.contains(expected)), "{message:?}");
                }
                None => assert_eq!(message, None, "opset {version}"),
            }
        }
    }
}
