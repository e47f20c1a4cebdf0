//! GatherElements, GatherND, ScatterElements and ScatterND against ONNX's definition of them.

use nereid_backend_api::{DataType, Result, Tensor};
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::{AttributeProto, NodeProto, type_proto};

use super::onnx::{file_of_version, floats, graph, ints, node, port, with_int};
use super::server::{config, refusal, try_serve};
use super::{fp32, fp32_output};

/// An operator, and the shapes of its inputs.
#[derive(Clone, Debug)]
struct Case {
    operator: &'static str,
    attribute: i64,
    reduction: &'static str,
    data: &'static [i64],
    indices: &'static [i64],
}

const REDUCTIONS: [&str; 5] = ["none", "add", "mul", "max", "min"];

impl Case {
    fn is_scatter(&self) -> bool {
        self.operator.starts_with("Scatter")
    }

    fn by_element(&self) -> bool {
        !self.operator.ends_with("ND")
    }

    fn batch(&self) -> usize {
        if self.operator == "GatherND" { self.attribute as usize } else { 0 }
    }

    fn axis(&self) -> usize {
        (if self.attribute < 0 { self.attribute + self.data.len() as i64 } else { self.attribute }) as usize
    }

    fn depth(&self) -> usize {
        self.indices[self.indices.len() - 1] as usize
    }

    /// The dimension that the index at this place is for.
    fn dim(&self, place: usize) -> i64 {
        match self.by_element() {
            true => self.data[self.axis()],
            false => self.data[self.batch() + place % self.depth()],
        }
    }

    /// The shape of what is gathered, or of the updates.
    fn selected(&self) -> Vec<i64> {
        match self.by_element() {
            true => self.indices.to_vec(),
            false => {
                let behind = &self.data[self.batch() + self.depth()..];
                [&self.indices[..self.indices.len() - 1], behind].concat()
            }
        }
    }

    fn node(&self) -> NodeProto {
        let inputs: &[&str] = if self.is_scatter() { &["D", "I", "U"] } else { &["D", "I"] };
        let mut node = node(self.operator, inputs, &["Y"]);
        match self.operator {
            "GatherND" => node = with_int(node, "batch_dims", self.attribute),
            "ScatterND" => {}
            _ => node = with_int(node, "axis", self.attribute),
        }
        if self.reduction != "none" {
            node.attribute.push(AttributeProto {
                name: "reduction".into(),
                r#type: AttributeType::String as i32,
                s: self.reduction.into(),
                ..AttributeProto::default()
            });
        }
        node
    }

    /// The elements of the data that each element of what is selected stands for.
    fn places(&self, indices: &[i64]) -> Vec<usize> {
        let resolve = |place: usize| {
            let index = indices[place];
            (if index < 0 { index + self.dim(place) } else { index }) as usize
        };
        let selected = self.selected();
        let place = |at: usize| {
            let coordinates = coordinates(at, &selected);
            if self.by_element() {
                let mut of_data = coordinates.clone();
                of_data[self.axis()] = resolve(offset(&coordinates, self.indices));
                return offset(&of_data, self.data);
            }
            let leading = self.indices.len() - 1;
            let first = offset(&coordinates[..leading], &self.indices[..leading]) * self.depth();
            let tuple = (first..first + self.depth()).map(resolve);
            let batch = coordinates[..self.batch()].iter().copied();
            let behind = coordinates[leading..].iter().copied();
            offset(&batch.chain(tuple).chain(behind).collect::<Vec<_>>(), self.data)
        };
        (0..count(&selected)).map(place).collect()
    }

    fn expected(&self, data: &[f32], indices: &[i64], updates: &[f32]) -> Vec<f32> {
        let places = self.places(indices);
        if !self.is_scatter() {
            return places.into_iter().map(|place| data[place]).collect();
        }
        let mut data = data.to_vec();
        for (place, &update) in places.into_iter().zip(updates) {
            let element = &mut data[place];
            *element = match self.reduction {
                "add" => *element + update,
                "mul" => *element * update,
                "max" => element.max(update),
                "min" => element.min(update),
                _ => update,
            };
        }
        data
    }

    /// The engine's answer, with the operator's inputs as inputs or as constants of the file.
    fn run(&self, data: &[f32], indices: &[i64], updates: &[f32], constant: [bool; 3]) -> Result<Vec<f32>> {
        let selected = self.selected();
        let output = if self.is_scatter() { self.data } else { &selected };
        let mut initializers = Vec::new();
        let (mut ports, mut declared, mut given) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |tensor: Tensor, element: Element, is_constant: bool, constant| {
            if is_constant {
                initializers.push(constant);
                return;
            }
            ports.push(port(&tensor.name, element, &tensor.shape));
            declared.push((tensor.name.clone(), tensor.data_type, tensor.shape.to_vec()));
            given.push(tensor);
        };
        add(fp32("D", self.data, data), Element::Float, constant[0], floats("D", self.data, data));
        let bytes: Vec<u8> = indices.iter().flat_map(|index| index.to_le_bytes()).collect();
        let tensor = Tensor::new("I", DataType::Int64, self.indices, bytes);
        add(tensor, Element::Int64, constant[1], ints("I", self.indices, indices));
        if self.is_scatter() {
            let shape = &selected;
            add(fp32("U", shape, updates), Element::Float, constant[2], floats("U", shape, updates));
        }
        // A model needs an input, even if all of the operator's are constant.
        add(fp32("X", &[1], &[0.0]), Element::Float, false, floats("X", &[1], &[0.0]));
        let nodes = vec![self.node(), node("Add", &["Y", "X"], &["Z"])];
        let outputs = vec![port("Z", Element::Float, output)];
        let file = file_of_version(graph(ports, nodes, outputs, initializers), 18);
        let declared: Vec<_> = declared
            .iter()
            .map(|(name, data_type, dims)| (name.as_str(), *data_type, dims.as_slice()))
            .collect();
        let config = config(0, &declared, &[("Z", DataType::Fp32, output)]);
        let response = try_serve(&file, config)?.infer(given)?;
        let (shape, values) = fp32_output(&response);
        assert_eq!(shape, output, "{self:?}");
        Ok(values)
    }
}

fn count(shape: &[i64]) -> usize {
    shape.iter().product::<i64>() as usize
}

fn coordinates(mut at: usize, shape: &[i64]) -> Vec<usize> {
    let mut coordinates = vec![0; shape.len()];
    for (coordinate, &size) in coordinates.iter_mut().zip(shape).rev() {
        *coordinate = at % size as usize;
        at /= size as usize;
    }
    coordinates
}

fn offset(coordinates: &[usize], shape: &[i64]) -> usize {
    coordinates.iter().zip(shape).fold(0, |at, (coordinate, &size)| at * size as usize + coordinate)
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |operator, attribute, data, indices| {
        let reductions = if str::starts_with(operator, "Scatter") { &REDUCTIONS[..] } else { &["none"] };
        for reduction in reductions {
            cases.push(Case { operator, attribute, reduction, data, indices });
        }
    };
    for operator in ["GatherElements", "ScatterElements"] {
        for (axis, data, indices) in [
            (0, &[5][..], &[3][..]),
            (-1, &[6], &[4]),
            (0, &[4, 3], &[2, 3]),
            (0, &[4, 3], &[6, 2]),
            (1, &[2, 5], &[2, 4]),
            (-2, &[3, 4, 2], &[3, 2, 1]),
            (2, &[2, 1, 3], &[2, 1, 7]),
        ] {
            add(operator, axis, data, indices);
        }
    }
    for (batch, data, indices) in [
        (0, &[5][..], &[3, 1][..]),
        (0, &[4, 3], &[1, 2]),
        (0, &[4, 3], &[2, 2, 2]),
        (0, &[2, 3, 4], &[5, 1]),
        (1, &[2, 3, 4], &[2, 1]),
        (1, &[2, 3, 4], &[2, 3, 2]),
        (1, &[1, 3], &[1, 1]),
        (2, &[2, 2, 3], &[2, 2, 1]),
    ] {
        add("GatherND", batch, data, indices);
        if batch == 0 {
            add("ScatterND", 0, data, indices);
        }
    }
    cases
}

/// The data, indices and updates of a case. No two indices of a scatter without a reduction select the same place, since ONNX
/// leaves open which of the updates counts; none if that is impossible.
fn values(case: &Case) -> Option<(Vec<f32>, Vec<i64>, Vec<f32>)> {
    let number = |at: usize| (at * 7919 % 23) as f32 / 4.0 - 2.0;
    let data = (0..count(case.data)).map(number).collect();
    let updates = (0..count(&case.selected())).map(|at| number(at + 5)).collect();
    let indices = (0..1000_usize).find_map(|seed| {
        let index = |at: usize| {
            let dim = case.dim(at) as usize;
            ((at + 1) * (7919 + seed * 31) / 3 % (2 * dim)) as i64 - dim as i64
        };
        let indices: Vec<_> = (0..count(case.indices)).map(index).collect();
        let mut places = case.places(&indices);
        places.sort_unstable();
        let repeats = places.windows(2).any(|pair| pair[0] == pair[1]);
        (!case.is_scatter() || case.reduction != "none" || !repeats).then_some(indices)
    });
    Some((data, indices?, updates))
}

/// Which of data, indices and updates are constants of the file.
fn constants(case: &Case) -> impl Iterator<Item = [bool; 3]> {
    (0..if case.is_scatter() { 8 } else { 4 }).map(|bits| [bits & 1 > 0, bits & 2 > 0, bits & 4 > 0])
}

#[test]
fn elements_are_those_of_the_definition() {
    let (mut negative, mut tried) = (0, 0);
    for case in cases() {
        let Some((data, indices, updates)) = values(&case) else { continue };
        tried += 1;
        negative += indices.iter().filter(|index| **index < 0).count();
        let expected = case.expected(&data, &indices, &updates);
        for constant in constants(&case) {
            let found = case.run(&data, &indices, &updates, constant).unwrap();
            assert_eq!(found, expected, "{case:?} {indices:?} {constant:?}");
        }
    }
    assert!(negative > 30 && tried > 50, "{negative} {tried}");
}

#[test]
fn integers_that_overflow_wrap_around() {
    let bytes = |numbers: &[i64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    for (reduction, expected) in [("add", i64::MIN), ("mul", -2)] {
        let case = Case { operator: "ScatterND", attribute: 0, reduction, data: &[2], indices: &[1, 1] };
        let update = if reduction == "add" { 1 } else { 2 };
        let initializers = vec![ints("I", &[1, 1], &[1]), ints("U", &[1], &[update])];
        let (inputs, outputs) =
            (vec![port("D", Element::Int64, &[2])], vec![port("Y", Element::Int64, &[2])]);
        let file = file_of_version(graph(inputs, vec![case.node()], outputs, initializers), 18);
        let config = config(0, &[("D", DataType::Int64, &[2])], &[("Y", DataType::Int64, &[2])]);
        let given = Tensor::new("D", DataType::Int64, [2], bytes(&[5, i64::MAX]));
        let response = try_serve(&file, config).unwrap().infer(vec![given]).unwrap();
        assert_eq!(response.outputs[0].contiguous().unwrap()[..], bytes(&[5, expected]), "{reduction}");
    }
}

#[test]
fn an_index_out_of_range_is_an_error() {
    for case in cases().into_iter().filter(|case| matches!(case.reduction, "none" | "max")) {
        let Some((data, indices, updates)) = values(&case) else { continue };
        for constant in constants(&case) {
            let last = indices.len() - 1;
            let dim = case.dim(last);
            for wrong in [dim, -dim - 1, 1 << 32, i64::MIN] {
                let mut indices = indices.clone();
                indices[last] = wrong;
                let error = case.run(&data, &indices, &updates, constant).unwrap_err();
                let expected = format!("index {wrong} is out of range for a dimension of {dim}");
                assert!(error.message().contains(&expected), "{case:?} {constant:?}: {error}");
            }
        }
    }
}

#[test]
fn indices_that_the_optimiser_computes_are_checked() {
    // The engine infers no constants of more than 4 MiB, and computes them while it optimises.
    const COUNT: i64 = (4 << 20) / 8 + 1;
    for (place, index) in
        [(0, 2), (7, -3), (COUNT - 1, 1), (0, 3), (7, -4), (COUNT - 1, 1 << 40), (5, i64::MIN + 1)]
    {
        let mut indices = vec![0; COUNT as usize];
        indices[place as usize] = -index;
        let constants = vec![ints("minus", &[COUNT], &indices), floats("D", &[3], &[4.0, 5.0, 6.0])];
        let nodes = vec![
            node("Neg", &["minus"], &["I"]),
            node("Gather", &["D", "I"], &["G"]),
            node("Add", &["G", "X"], &["Y"]),
        ];
        let (inputs, outputs) =
            (vec![port("X", Element::Float, &[1])], vec![port("Y", Element::Float, &[COUNT])]);
        let config = config(0, &[("X", DataType::Fp32, &[1])], &[("Y", DataType::Fp32, &[COUNT])]);
        let model = try_serve(&file_of_version(graph(inputs, nodes, outputs, constants), 13), config);
        let answer = model.and_then(|mut model| model.infer(vec![fp32("X", &[1], &[0.0])]));
        if (-3..3).contains(&index) {
            let expected = [4.0, 5.0, 6.0][index.rem_euclid(3) as usize];
            assert_eq!(fp32_output(&answer.unwrap()).1[place as usize], expected, "{index}");
        } else {
            let error = answer.unwrap_err();
            let what = format!("index {index} is out of range for a dimension of 3");
            assert!(error.message().contains(&what) && !error.message().contains("panicked"), "{error}");
        }
    }
}

#[test]
fn indices_that_an_operator_makes_of_an_input_are_checked() {
    // The engine can compute all but the last without X.
    let ways: [(&[i64], Vec<NodeProto>); 4] = [
        (&[0], vec![node("ReduceProd", &["X"], &["one"]), node("Mul", &["one", "c"], &["J"])]),
        (&[1], vec![node("Mul", &["X", "zero"], &["nothing"]), node("Add", &["nothing", "c"], &["J"])]),
        (&[1], vec![node("Sub", &["X", "X"], &["nothing"]), node("Add", &["nothing", "c"], &["J"])]),
        (&[1], vec![node("Mul", &["X", "c"], &["J"])]),
    ];
    let data = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    for (shape, way) in ways {
        for (axis, dim) in [(0, 2_i64), (1, 3)] {
            for index in -dim - 1..=dim + 1 {
                let constants = vec![
                    floats("D", &[2, 3], &data),
                    floats("zero", &[1], &[0.0]),
                    floats("c", &[1], &[index as f32]),
                ];
                let mut nodes = way.clone();
                nodes.push(with_int(node("Cast", &["J"], &["I"]), "to", Element::Int64 as i64));
                nodes.push(with_int(node("Gather", &["D", "I"], &["Y"]), "axis", axis));
                let (inputs, outputs) =
                    (vec![port("X", Element::Float, &[-1])], vec![port("Y", Element::Float, &[-1; 2])]);
                let config = config(0, &[("X", DataType::Fp32, &[-1])], &[("Y", DataType::Fp32, &[-1; 2])]);
                let x = vec![1.0; shape[0] as usize];
                let answer =
                    try_serve(&file_of_version(graph(inputs, nodes, outputs, constants), 13), config)
                        .and_then(|mut model| model.infer(vec![fp32("X", shape, &x)]));
                let what = format!("{} along {axis}: {index}", way[0].op_type);
                if (-dim..dim).contains(&index) {
                    let place = index.rem_euclid(dim) as usize;
                    let expected = if axis == 0 {
                        data[3 * place..][..3].to_vec()
                    } else {
                        vec![data[place], data[3 + place]]
                    };
                    assert_eq!(fp32_output(&answer.unwrap()).1, expected, "{what}");
                } else {
                    let error = answer.unwrap_err();
                    let reason = format!("index {index} is out of range for a dimension of {dim}");
                    assert!(
                        error.message().contains(&reason) && !error.message().contains("panicked"),
                        "{what}: {error}"
                    );
                }
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let case =
        |operator, attribute, data, indices| Case { operator, attribute, reduction: "none", data, indices };
    for (case, updates, reason) in [
        // More updates than indices, fewer, and of another rank.
        (case("ScatterND", 0, &[4, 3], &[2, 1]), &[3, 3][..], "updates [3, 3] should have the shape [2, 3]"),
        (case("ScatterND", 0, &[4, 3], &[2, 1]), &[1, 3], "updates [1, 3] should have the shape [2, 3]"),
        (case("ScatterND", 0, &[4, 3], &[2, 2]), &[2, 3], "updates [2, 3] should have the shape [2]"),
        (case("ScatterND", 0, &[4, 3], &[2, 3]), &[2], "the last dimension of indices [2, 3]"),
        (
            case("ScatterElements", 0, &[4, 3], &[2, 3]),
            &[3, 3],
            "updates [3, 3] should have the shape [2, 3]",
        ),
        (case("ScatterElements", 0, &[4, 3], &[2, 4]), &[2, 4], "indices [2, 4] do not fit data [4, 3]"),
        (case("ScatterElements", 0, &[4, 3], &[3]), &[3], "indices [3] do not fit data [4, 3]"),
        (case("ScatterElements", 2, &[4, 3], &[2, 3]), &[2, 3], "axis 2 is out of range"),
        (case("GatherElements", 1, &[4, 3], &[5, 3]), &[], "indices [5, 3] do not fit data [4, 3]"),
        (case("GatherElements", 0, &[4, 3], &[4]), &[], "indices [4] do not fit data [4, 3]"),
        (case("GatherElements", -3, &[4, 3], &[4, 3]), &[], "axis -3 is out of range"),
        (case("GatherND", 0, &[4, 3], &[2, 3]), &[], "the last dimension of indices [2, 3]"),
        (case("GatherND", 0, &[4, 3], &[2, 0]), &[], "the last dimension of indices [2, 0]"),
        (
            case("GatherND", 1, &[4, 3], &[2, 1]),
            &[],
            "the batch dimensions of data [4, 3] and indices [2, 1]",
        ),
        (case("GatherND", 2, &[4, 3], &[4, 3]), &[], "batch_dims 2 is out of range"),
        (case("GatherND", -1, &[4, 3], &[4, 1]), &[], "batch_dims -1 is out of range"),
    ] {
        let mut inputs = vec![port("D", Element::Float, case.data), port("I", Element::Int64, case.indices)];
        let mut declared = vec![("D", DataType::Fp32, case.data), ("I", DataType::Int64, case.indices)];
        let mut open = vec![port("D", Element::Float, &vec![-1; case.data.len()])];
        open.push(port("I", Element::Int64, &vec![-1; case.indices.len()]));
        if case.is_scatter() {
            inputs.push(port("U", Element::Float, updates));
            declared.push(("U", DataType::Fp32, updates));
            open.push(port("U", Element::Float, &vec![-1; updates.len()]));
        }
        let output = [("Y", DataType::Fp32, &[-1][..])];
        let mut output_port = port("Y", Element::Float, &[]);
        output_port.r#type.as_mut().unwrap().value = Some(shapeless());
        let of =
            |inputs| file_of_version(graph(inputs, vec![case.node()], vec![output_port.clone()], vec![]), 18);
        let error = refusal(&of(inputs), config(0, &declared, &output));
        assert!(error.contains(reason) && !error.contains("panicked"), "{case:?}: {error}");

        // Dimensions that are only known from a request.
        let open_dims: Vec<_> = declared.iter().map(|(.., dims)| vec![-1; dims.len()]).collect();
        let variable: Vec<_> =
            declared.iter().zip(&open_dims).map(|(&(name, kind, _), dims)| (name, kind, &dims[..])).collect();
        let Ok(mut model) = try_serve(&of(open), config(0, &variable, &output)) else { continue };
        let tensors = declared.iter().map(|&(name, kind, dims)| {
            let bytes = vec![0; count(dims) * kind.byte_size().unwrap()];
            Tensor::new(name, kind, dims, bytes)
        });
        let error = model.infer(tensors.collect()).unwrap_err();
        assert!(error.message().contains(reason), "{case:?}: {error}");
        assert!(!error.message().contains("panicked"), "{error}");
    }
}

/// A tensor of FP32 whose rank the file does not declare.
fn shapeless() -> type_proto::Value {
    type_proto::Value::TensorType(type_proto::Tensor { elem_type: Element::Float as i32, shape: None })
}
