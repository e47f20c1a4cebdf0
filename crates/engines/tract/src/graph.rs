//! Reads an ONNX file into the engine's graph, and makes that graph executable for given input shapes.
//!
//! Knows nothing of requests, nor of the tensors in the model's configuration.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Error, Result, Shape};
use nereid_graph_executor::Signature;
use nereid_model_files::{self as model_files, PROTOBUF_LIMIT};
use prost::Message;
use tract_onnx::model::ParseResult;
use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Dimension;
use tract_onnx::pb::type_proto::Value as Type;
use tract_onnx::pb::{AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto};
use tract_onnx::prelude::{
    DatumType, InferenceFact, InferenceModel, InferenceModelExt, IntoRunnable, TVec, Tensor as EngineTensor,
    TractResult, TypedRunnableModel,
};
use tract_onnx::tensor::load_tensor;
use tract_onnx::tract_core::internal::{anyhow, ensure};
use tract_onnx::{Onnx, onnx};

use crate::DEFAULT_FILENAME;
use crate::conditional::{Conditional, Step};
use crate::external_data::RegularFiles;
use crate::guard::guarded;
use crate::rules::Rules;
use crate::symbols::{self, Symbols};
use crate::values::ValueChecks;
use crate::{algebra, analysis, conditions, exact, operators, repairs, signature, verify, widening};

/// The advice for models that the embedded engine does not serve.
const HINT: &str = "install ONNX Runtime, which runs them (pip install onnxruntime)";

/// An ONNX file as read, not yet parsed by the engine.
pub(crate) struct OnnxFile {
    proto: ModelProto,
    graph: GraphProto,
    path: PathBuf,
}

impl OnnxFile {
    /// Reads the file of this name in a version's folder, or `model.onnx` in it if it is a folder, which is how a model
    /// with external data comes.
    pub(crate) fn read(version: &Path, name: &str) -> Result<Self> {
        let path = model_files::model_file(version, name, DEFAULT_FILENAME)
            .map_err(|error| Error::cannot_read(&version.join(name), &error))?;
        let contents =
            model_files::read(&path, PROTOBUF_LIMIT).map_err(|error| Error::cannot_read(&path, &error))?;
        Self::decode(&contents, path)
    }

    /// Reads the contents of a file, or what another format was turned into.
    pub(crate) fn decode(contents: &[u8], path: PathBuf) -> Result<Self> {
        let not_onnx =
            |why: &str| Error::invalid_arg(format!("{} is not a complete ONNX file: {why}", path.display()));
        let mut proto = ModelProto::decode(contents).map_err(|error| not_onnx(&error.to_string()))?;
        let graph = proto.graph.take().ok_or_else(|| not_onnx("it holds no graph"))?;
        Ok(Self { proto, graph, path })
    }

    /// Turns initializers that are inputs both in the file and in `names` into inputs: ONNX lets a caller override them.
    pub(crate) fn free_inputs<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        for name in names {
            if self.graph.input.iter().any(|input| input.name == name) {
                self.graph.initializer.retain(|initializer| initializer.name != name);
            }
        }
    }

    /// The file's value for an input: the initializer of its name, if the file lists that as an input too.
    pub(crate) fn initial_value(&self, name: &str) -> Result<Option<EngineTensor>> {
        let listed = self.graph.input.iter().any(|input| input.name == name);
        let Some(initializer) = self.graph.initializer.iter().find(|it| listed && it.name == name) else {
            return Ok(None);
        };
        let value = guarded(|| load_tensor(&RegularFiles, initializer, self.directory()));
        value.map(Some).map_err(|why| {
            let path = self.path.display();
            Error::invalid_arg(format!(
                "the embedded engine cannot read the value of '{name}' in {path}: {why}"
            ))
        })
    }

    /// The directory of external data.
    fn directory(&self) -> Option<&str> {
        self.path.parent().and_then(Path::to_str)
    }

    pub(crate) fn signature(&self) -> Result<Signature> {
        signature::of_graph(&self.graph)
    }

    /// The size of the file's constants in memory, in bytes.
    pub(crate) fn weights(&self) -> usize {
        let size = |tensor: &TensorProto| {
            let element = DatumType::try_from(Element::try_from(tensor.data_type).ok()?).ok()?.size_of();
            tensor.dims.iter().try_fold(element, |size, &dim| size.checked_mul(usize::try_from(dim).ok()?))
        };
        self.graph.initializer.iter().filter_map(size).fold(0, usize::saturating_add)
    }

    /// Converts the graph into the engine's, pruned to what `outputs` need, in that order.
    pub(crate) fn into_graph(mut self, outputs: &[String]) -> Result<Graph> {
        self.check_operators()?;
        self.check_names()?;
        let symbols = symbols::of_graph(&self.graph);
        let directory = self.directory().map(str::to_owned);
        let source = Source { header: self.proto, directory };
        let templates = match conditions::any(&self.graph) {
            true => Templates::Conditional(Box::new(Conditional::new(source, self.graph, outputs.to_vec()))),
            false => {
                let template = guarded(|| source.template(self.graph, outputs)).map_err(|why| {
                    let path = self.path.display();
                    Error::invalid_arg(format!("the embedded engine cannot load {path}: {why}"))
                })?;
                Templates::One(Box::new(template))
            }
        };
        Ok(Graph { templates, symbols })
    }

    /// Checks that the engine has the operators and opsets of the file.
    ///
    /// # Errors
    /// The operators and opsets that it lacks.
    pub(crate) fn check_operators(&mut self) -> Result<()> {
        conditions::resolve(&mut self.graph, &HashMap::new())
            .map_err(|error| error.context(self.path.display()))?;
        let unsupported = operators::unsupported(&self.proto, &self.graph);
        if unsupported.is_empty() {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "{} uses what the embedded engine does not serve: {}; {HINT}",
            self.path.display(),
            Vec::from_iter(unsupported).join(", ")
        )))
    }

    /// Checks that each tensor has one origin, which the engine takes for granted.
    fn check_names(&self) -> Result<()> {
        match repeated_name(&self.graph) {
            Some(name) => Err(Error::invalid_arg(format!(
                "{} makes the tensor '{name}' more than once",
                self.path.display()
            ))),
            None => Ok(()),
        }
    }
}

/// The name of a tensor that a graph, or the body of a node, makes more than once.
fn repeated_name(graph: &GraphProto) -> Option<&str> {
    let nodes = graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty());
    let constants = graph.initializer.iter().map(|constant| &constant.name);
    let mut names = HashSet::new();
    let repeated = nodes.chain(constants).find(|name| !names.insert(name.as_str()));
    repeated.map(String::as_str).or_else(|| operators::bodies(graph).find_map(repeated_name))
}

/// A file without its graph.
pub(crate) struct Source {
    /// The file's message, without the graph.
    header: ModelProto,
    /// The directory of external data.
    directory: Option<String>,
}

impl Source {
    /// The engine's form of a graph without conditions, pruned to what `outputs` need, in that order.
    pub(crate) fn template(&self, mut graph: GraphProto, outputs: &[String]) -> TractResult<Template> {
        let engine = Onnx {
            op_register: widening::operators(),
            provider: Arc::new(RegularFiles),
            // Exporters leave stale shapes of inner tensors behind; the engine infers them itself.
            ignore_value_info: true,
            ..onnx()
        };
        forget_dimension_names(&mut graph);
        graph.node.iter_mut().for_each(complete);
        prune(&mut graph, outputs);
        let proto = ModelProto { graph: Some(graph), ..self.header.clone() };
        let ParseResult { mut model, unresolved_inputs, outlets_by_name } =
            engine.parse(&proto, self.directory.as_deref())?;
        ensure!(unresolved_inputs.is_empty(), "nothing produces the tensors {unresolved_inputs:?}");
        let outlets = outputs.iter().map(|name| {
            outlets_by_name.get(name).copied().ok_or_else(|| anyhow!("nothing produces the output '{name}'"))
        });
        let outlets = outlets.collect::<TractResult<Vec<_>>>()?;
        model.select_output_outlets(&outlets)?;
        let rules = proto.graph.as_ref().map(|graph| Rules::new(graph, &outlets_by_name));
        Ok(Template { model, rules: rules.unwrap_or_default() })
    }
}

/// A graph as the engine parsed it.
pub(crate) struct Template {
    model: InferenceModel,
    rules: Rules,
}

impl Template {
    /// The graph with what the engine infers for inputs of these types and shapes, which come in the file's order. No tensor may take
    /// more than `memory` bytes.
    pub(crate) fn analyse(&self, inputs: &[(DatumType, Shape)], memory: u64) -> TractResult<InferenceModel> {
        let mut model = self.model.clone();
        for (index, (datum_type, shape)) in inputs.iter().enumerate() {
            let dims = shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<TVec<_>, _>>()?;
            model.set_input_fact(index, InferenceFact::dt_shape(*datum_type, &dims))?;
        }
        analysis::analyse(&mut model, &self.rules, memory)?;
        Ok(model)
    }
}

/// The forms of a file's graph: several if it has conditions.
enum Templates {
    One(Box<Template>),
    Conditional(Box<Conditional>),
}

/// Drops the nodes that these outputs do not need: the engine infers with all that it has, but our rules are only checked
/// on the way to the outputs.
pub(crate) fn prune(graph: &mut GraphProto, outputs: &[String]) {
    let makers =
        graph.node.iter().enumerate().flat_map(|(at, node)| node.output.iter().map(move |name| (name, at)));
    let makers: HashMap<_, _> = makers.collect();
    let mut needed = vec![false; graph.node.len()];
    let mut open: Vec<_> = outputs.iter().collect();
    while let Some(name) = open.pop() {
        let Some(&at) = makers.get(name) else { continue };
        if !std::mem::replace(&mut needed[at], true) {
            open.extend(graph.node[at].input.iter().filter(|name| !name.is_empty()));
        }
    }
    let mut needed = needed.into_iter();
    graph.node.retain(|_| needed.next().unwrap_or_default());
    graph.output.retain(|output| outputs.contains(&output.name));
}

/// Adds a default that the engine takes for another one, and drops an input that it takes for more than it is, and the names of
/// outputs that are left out, which it counts.
fn complete(node: &mut NodeProto) {
    while node.output.last().is_some_and(String::is_empty) {
        node.output.pop();
    }
    let is_constant = |mode: &AttributeProto| mode.name == "mode" && mode.s == b"constant";
    let has_mode = node.attribute.iter().any(|attribute| attribute.name == "mode");
    if node.op_type == "Pad" && has_mode && !node.attribute.iter().any(is_constant) && node.input.len() == 3 {
        // The engine pads with the value, if it has one, in every mode.
        node.input.truncate(2);
    }
    if node.op_type == "ConstantOfShape" && node.attribute.is_empty() {
        let zero = TensorProto {
            dims: vec![1],
            data_type: Element::Float as i32,
            float_data: vec![0.0],
            ..TensorProto::default()
        };
        let r#type = AttributeType::Tensor as i32;
        node.attribute.push(AttributeProto {
            name: "value".into(),
            r#type,
            t: Some(zero),
            ..AttributeProto::default()
        });
    }
}

/// The engine's graph, from which plans are made for concrete input shapes.
pub(crate) struct Graph {
    templates: Templates,
    pub(crate) symbols: Symbols,
}

/// The graph, optimised for input shapes, and what to check while it runs.
pub(crate) struct OptimisedGraph {
    pub(crate) runnable: Arc<TypedRunnableModel>,
    pub(crate) checks: ValueChecks,
    /// The conditions that are its outputs, if the graph depends on what they are.
    pub(crate) conditions: Vec<String>,
}

impl Graph {
    /// The graph optimised for inputs of these types and shapes, which come in the file's order, and for conditions that were computed
    /// before. The tensors of a run may take `memory` bytes.
    pub(crate) fn optimise(
        &self,
        inputs: &[(DatumType, Shape)],
        computed: &[bool],
        memory: u64,
    ) -> TractResult<OptimisedGraph> {
        let (model, conditions) = match &self.templates {
            Templates::One(template) => (template.analyse(inputs, memory)?, vec![]),
            Templates::Conditional(graph) => match graph.step(inputs, computed, memory)? {
                Step::Decide(model, conditions) => (model, conditions),
                Step::Last(model) => (model, vec![]),
            },
        };
        let mut typed = model.into_typed()?;
        repairs::stabilise(&mut typed)?;
        repairs::protect(&mut typed)?;
        algebra::protect(&mut typed)?;
        exact::prepare(&mut typed)?;
        verify::verify(&typed, memory)?;
        // Shapes that no longer fit show an optimisation that is wrong.
        let mut typed = typed.into_decluttered()?;
        verify::verify(&typed, memory)?;
        exact::exchange_in_loops(&mut typed)?;
        let mut optimised = typed.into_optimized()?;
        exact::exchange(&mut optimised)?;
        verify::check_memory(&optimised, memory)?;
        let checks = ValueChecks::new(&optimised);
        Ok(OptimisedGraph { runnable: optimised.into_runnable()?, checks, conditions })
    }
}

/// Makes dimensions that have a name nameless, also in the bodies of loops and conditions. A plan's shapes are numbers,
/// which the engine would not take for the dimensions that a body names.
fn forget_dimension_names(graph: &mut GraphProto) {
    for info in graph.input.iter_mut().chain(&mut graph.output) {
        if let Some(Type::TensorType(tensor)) = info.r#type.as_mut().and_then(|it| it.value.as_mut()) {
            for dim in tensor.shape.iter_mut().flat_map(|shape| &mut shape.dim) {
                if let Some(Dimension::DimParam(_)) = dim.value {
                    dim.value = None;
                }
            }
        }
    }
    for attribute in graph.node.iter_mut().flat_map(|node| &mut node.attribute) {
        attribute.g.iter_mut().chain(&mut attribute.graphs).for_each(forget_dimension_names);
    }
}
