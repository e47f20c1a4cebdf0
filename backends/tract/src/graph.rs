//! Reads an ONNX file into the engine's graph, and makes that graph executable for given input shapes.
//!
//! Knows nothing of requests, nor of what the model's configuration says about its tensors.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Error, Result, Shape};
use nereid_graph_executor::Signature;
use nereid_model_files::{self as model_files, FileError, PROTOBUF_LIMIT};
use prost::Message;
use tract_onnx::model::ParseResult;
use tract_onnx::pb::tensor_proto::DataType as Element;
use tract_onnx::pb::tensor_shape_proto::dimension::Value as Dimension;
use tract_onnx::pb::type_proto::Value as Type;
use tract_onnx::pb::{GraphProto, ModelProto, TensorProto};
use tract_onnx::prelude::{
    DatumType, InferenceFact, InferenceModel, InferenceModelExt, IntoRunnable, TVec, Tensor as EngineTensor,
    TractResult, TypedRunnableModel,
};
use tract_onnx::tensor::load_tensor;
use tract_onnx::tract_core::internal::{anyhow, ensure};
use tract_onnx::{Onnx, onnx};

use crate::DEFAULT_FILENAME;
use crate::external_data::RegularFiles;
use crate::guard::guarded;
use crate::{operators, signature};

/// What helps where the embedded engine does not serve a model.
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
            .map_err(|error| cannot_read(&version.join(name), &error))?;
        let contents =
            model_files::read(&path, PROTOBUF_LIMIT).map_err(|error| cannot_read(&path, &error))?;
        let not_onnx =
            |why: &str| Error::invalid_arg(format!("{} is not a complete ONNX file: {why}", path.display()));
        let mut proto =
            ModelProto::decode(contents.as_slice()).map_err(|error| not_onnx(&error.to_string()))?;
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

    /// The value that the file has for an input: that of an initializer which is listed as an input too.
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
    pub(crate) fn into_graph(mut self, outputs: &[&str]) -> Result<Graph> {
        let engine = Onnx {
            provider: Arc::new(RegularFiles),
            // Exporters leave stale shapes of inner tensors behind; the engine infers them itself.
            ignore_value_info: true,
            ..onnx()
        };
        let unsupported = operators::unsupported(&self.proto, &self.graph);
        if !unsupported.is_empty() {
            return Err(Error::unsupported(format!(
                "{} uses what the embedded engine does not serve: {}; {HINT}",
                self.path.display(),
                Vec::from_iter(unsupported).join(", ")
            )));
        }
        forget_dimension_names(&mut self.graph);
        self.proto.graph = Some(std::mem::take(&mut self.graph));
        let template = guarded(|| {
            let ParseResult { mut model, unresolved_inputs, outlets_by_name } =
                engine.parse(&self.proto, self.directory())?;
            ensure!(unresolved_inputs.is_empty(), "nothing produces the tensors {unresolved_inputs:?}");
            let outlets = outputs.iter().map(|&name| {
                outlets_by_name
                    .get(name)
                    .copied()
                    .ok_or_else(|| anyhow!("nothing produces the output '{name}'"))
            });
            let outlets = outlets.collect::<TractResult<Vec<_>>>()?;
            model.select_output_outlets(&outlets)?;
            Ok(model)
        });
        let template = template.map_err(|why| {
            Error::invalid_arg(format!("the embedded engine cannot load {}: {why}", self.path.display()))
        })?;
        Ok(Graph { template })
    }
}

fn cannot_read(path: &Path, error: &FileError) -> Error {
    let message = format!("cannot read {}: {error}", path.display());
    match error {
        _ if error.is_missing() => Error::not_found(message),
        FileError::Io(_) => Error::internal(message),
        FileError::Outside | FileError::NotRegular(_) | FileError::TooLarge(_) => Error::invalid_arg(message),
    }
}

/// The engine's graph, from which plans are made for concrete input shapes.
pub(crate) struct Graph {
    template: InferenceModel,
}

impl Graph {
    /// The graph optimised for inputs of these types and shapes, which come in the file's order.
    pub(crate) fn optimise<'a>(
        &self,
        inputs: impl Iterator<Item = (DatumType, &'a Shape)>,
    ) -> TractResult<Arc<TypedRunnableModel>> {
        let mut model = self.template.clone();
        for (index, (datum_type, shape)) in inputs.enumerate() {
            let dims = shape.iter().map(|&dim| usize::try_from(dim)).collect::<Result<TVec<_>, _>>()?;
            model.set_input_fact(index, InferenceFact::dt_shape(datum_type, &dims))?;
        }
        model.into_optimized()?.into_runnable()
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
