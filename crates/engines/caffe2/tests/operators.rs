//! Every operator, run by the embedded engine, computes Caffe2's results. Nets, inputs and outputs are in
//! `tests/netdef/operators.bin`, generated with Caffe2 itself by `tests/netdef/generate.py`.

#[path = "../../../../tests/netdef/cases.rs"]
mod cases;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use nereid_backend_api::{
    Backend, BackendSettings, DataType, InferRequest, InstanceContext, InstanceKind, Model, Response, Result,
    Tensor,
};
use nereid_caffe2::NetDefBackend;
use nereid_testkit::conformance::{self, Subject};
use nereid_testkit::{Executions, Recorder, context, normalised};
use nereid_tract::TractBackend;
use tempfile::TempDir;

use crate::cases::{CASES, fields};

/// Nets that the embedded engine refuses, with a part of its message. ONNX Runtime runs them.
const REFUSED: &[(&str, &str)] = &[];

/// A net, its inputs, and the outputs that Caffe2 computed.
struct Case {
    name: String,
    init: Vec<u8>,
    net: Vec<u8>,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Case {
    fn all() -> Vec<Self> {
        let case = |(_, case): (u64, &[u8])| {
            let fields = fields(case);
            let all = |number| fields.iter().filter(move |field| field.0 == number).map(|field| field.1);
            let one = |number| all(number).next().unwrap_or_default().to_vec();
            Self {
                name: String::from_utf8(one(1)).unwrap(),
                init: one(2),
                net: one(3),
                inputs: all(4).map(tensor).collect(),
                outputs: all(5).map(tensor).collect(),
            }
        };
        fields(CASES).into_iter().map(case).collect()
    }

    /// A configuration that lists the inputs and outputs with their shapes.
    fn config(&self) -> String {
        let list = |role: &str, tensors: &[Tensor]| {
            let tensors = tensors.iter().map(|tensor| {
                let dims = tensor.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                // A configuration has no scalars.
                let dims = if dims.is_empty() { "1" } else { &dims };
                let data_type = tensor.data_type.config_name();
                format!("{role} {{ name: '{}' data_type: {data_type} dims: [{dims}] }}\n", tensor.name)
            });
            tensors.collect::<String>()
        };
        let (inputs, outputs) = (list("input", &self.inputs), list("output", &self.outputs));
        format!("platform: 'caffe2_netdef'\n{inputs}{outputs}")
    }

    fn write(&self) -> TempDir {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join("1")).unwrap();
        fs::write(folder.path().join("1/init_model.netdef"), &self.init).unwrap();
        fs::write(folder.path().join("1/model.netdef"), &self.net).unwrap();
        folder
    }

    fn run(&self, config: &str) -> Result<Response> {
        let folder = self.write();
        let model = backend().load(context(folder.path(), normalised("m", config)))?;
        infer(&*model, self.inputs.clone())
    }
}

/// The length-delimited fields of a message, with their numbers.
fn tensor(message: &[u8]) -> Tensor {
    let fields = fields(message);
    let one = |number| fields.iter().find(|field| field.0 == number).map_or(&[][..], |field| field.1);
    let text = |number| std::str::from_utf8(one(number)).unwrap();
    let dims = one(3).chunks_exact(8).map(|dim| i64::from_le_bytes(dim.try_into().unwrap()));
    let dims: Vec<_> = dims.collect();
    Tensor::new(text(1), DataType::from_protocol_name(text(2)).unwrap(), dims.as_slice(), one(4).to_vec())
}

fn backend() -> NetDefBackend {
    let tract = TractBackend::new(BackendSettings::default(), "it is under test");
    NetDefBackend::new(Box::new(move |context, onnx, origin| tract.load_onnx(&context, &onnx, origin)), false)
}

fn infer(model: &dyn Model, inputs: Vec<Tensor>) -> Result<Response> {
    let mut instance = model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu))?;
    let (request, recorder) = Recorder::request(InferRequest { inputs, ..InferRequest::default() }, 1);
    instance.execute(Arc::<Executions>::default().batch(vec![request]));
    recorder.answer()
}

/// The elements of a tensor as numbers.
fn numbers(tensor: &Tensor) -> Vec<f64> {
    let bytes = tensor.contiguous().unwrap();
    let each = |size| bytes.chunks_exact(size);
    match tensor.data_type {
        DataType::Fp32 => each(4).map(|it| f32::from_le_bytes(it.try_into().unwrap()).into()).collect(),
        DataType::Fp64 => each(8).map(|it| f64::from_le_bytes(it.try_into().unwrap())).collect(),
        DataType::Int32 => each(4).map(|it| i32::from_le_bytes(it.try_into().unwrap()).into()).collect(),
        DataType::Int64 => each(8).map(|it| i64::from_le_bytes(it.try_into().unwrap()) as f64).collect(),
        _ => each(1).map(|it| it[0].into()).collect(),
    }
}

/// The difference between two tensors, if any.
fn difference(found: &Tensor, expected: &Tensor) -> Option<String> {
    let head = |tensor: &Tensor| {
        // A scalar is sent as [1].
        let shape = if tensor.shape.is_empty() { vec![1] } else { tensor.shape.to_vec() };
        (tensor.name.clone(), tensor.data_type, shape)
    };
    if head(found) != head(expected) {
        return Some(format!("{:?} instead of {:?}", head(found), head(expected)));
    }
    let (found, expected) = (numbers(found), numbers(expected));
    let close = |(one, other): (&f64, &f64)| (one - other).abs() <= 1e-5 * other.abs().max(1.0);
    (!found.iter().zip(&expected).all(close)).then(|| format!("{found:?} instead of {expected:?}"))
}

#[test]
fn operators_match_caffe2() {
    let mut failures = Vec::new();
    let cases = Case::all();
    for case in &cases {
        let refused = REFUSED.iter().find(|(name, _)| *name == case.name).map(|(_, why)| *why);
        let failure = match (case.run(&case.config()), refused) {
            (Err(error), Some(why)) => (!error.message().contains(why)).then(|| error.to_string()),
            (Err(error), None) => Some(error.to_string()),
            (Ok(_), Some(_)) => Some("is not refused any more".to_owned()),
            (Ok(response), None) if response.outputs.len() == case.outputs.len() => {
                let pairs = case.outputs.iter().map(|expected| {
                    let found = response.outputs.iter().find(|output| output.name == expected.name);
                    found.map_or(Some("is missing".to_owned()), |found| difference(found, expected))
                });
                pairs.flatten().next()
            }
            (Ok(response), None) => Some(format!("{} outputs", response.outputs.len())),
        };
        failures.extend(failure.map(|why| format!("{}: {why}", case.name)));
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn backend_conforms() {
    let case = Case::all().into_iter().find(|case| case.name == "sqr").unwrap();
    let (folder, empty) = (case.write(), TempDir::new().unwrap());
    let input = "input { name: 'x' data_type: TYPE_FP32 dims: 3 }";
    let config = |input: &str| {
        let output = "output { name: 'out0' data_type: TYPE_FP32 dims: 3 }";
        normalised("m", &format!("platform: 'caffe2_netdef' max_batch_size: 8 {input} {output}"))
    };
    let described = |folder: &TempDir, input: &str| context(folder.path(), config(input));
    conformance::backend(Subject {
        backend: Arc::new(backend()),
        model: described(&folder, input),
        request: |number| InferRequest {
            inputs: vec![values("x", number.into())],
            ..InferRequest::default()
        },
        outputs: |number| vec![values("out0", f32::from(number) * f32::from(number))],
        max_batch: 8,
        reports_executions: true,
        refused: vec![
            (described(&empty, input), "init_model.netdef"),
            (described(&folder, &input.replace("'x'", "'other'")), "x"),
        ],
        faulty: None,
    });
}

fn values(name: &str, value: f32) -> Tensor {
    Tensor::new(name, DataType::Fp32, [1, 3], value.to_le_bytes().repeat(3))
}

#[test]
fn every_operator_has_a_case() {
    let has = |name: &&str| {
        // The type of an operator is its field 4.
        let field = [&[4 << 3 | 2, name.len() as u8], name.as_bytes()].concat();
        CASES.windows(field.len()).any(|window| window == field)
    };
    let without: BTreeSet<_> = nereid_caffe2::operators().into_iter().filter(|name| !has(name)).collect();
    // They copy between processors, or exist only in Caffe2 builds with GPU support.
    let expected = [
        "CopyCPUToGPU",
        "CopyFromCPUInput",
        "CopyGPUToCPU",
        "EnsureDense",
        "GivenTensorInt16Fill",
        "GivenTensorStringFill",
    ];
    assert_eq!(without, expected.into_iter().collect());
}
