//! Checks the files that an ONNX file keeps weights in, before the library opens them.
//!
//! The library opens every location without a check: it waits for a FIFO, reads a device without an end, and takes one location
//! for an address in its own memory. So a location has to name a regular file in the folder of the ONNX file.

use std::collections::BTreeSet;
use std::path::Path;

use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_model_files::{self as model_files, FileError};

use crate::onnx::{self, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto};

/// Checks every location in an ONNX file that is in this folder.
///
/// # Errors
/// The first location that is not a regular file in the folder.
pub(crate) fn check(model: &ModelProto, folder: &Path) -> Result<()> {
    let mut last = None;
    for location in locations(model) {
        // Usually all tensors are in one file.
        if last != Some(location) {
            check_location(&String::from_utf8_lossy(location), folder)?;
            last = Some(location);
        }
    }
    Ok(())
}

/// The files that an ONNX file keeps weights in, relative to its folder, sorted.
///
/// # Errors
/// The file cannot be read or is not ONNX's protobuf, or a location is not a regular file in its folder.
pub fn external_data(path: &Path) -> Result<Vec<String>> {
    let Some(model) = onnx::read(path, &ModelConfig::default())? else { return Ok(Vec::new()) };
    let files: BTreeSet<_> =
        locations(&model).map(|location| String::from_utf8_lossy(location).into_owned()).collect();
    let folder = path.parent().unwrap_or(Path::new(""));
    files.iter().try_for_each(|file| check_location(file, folder))?;
    Ok(files.into_iter().collect())
}

/// The locations of all tensors outside of the file.
fn locations(model: &ModelProto) -> impl Iterator<Item = &Vec<u8>> {
    let functions = model.functions.iter().flat_map(|function| of_nodes(&function.node));
    let tensors = model.graph.iter().flat_map(of_graph).chain(functions);
    let entries = tensors.flat_map(|tensor| &tensor.external_data);
    entries.filter(|entry| entry.key == b"location").map(|entry| &entry.value)
}

fn check_location(location: &str, folder: &Path) -> Result<()> {
    let checked = model_files::inside(folder, location).and_then(|path| model_files::check(&path));
    checked.map_err(|error| {
        let message = format!("cannot read the external data '{location}' of the model: {error}");
        match error {
            FileError::Outside => Error::invalid_arg(format!(
                "the external data '{location}' of the model is outside its folder: locations must be relative paths \
                 without '..'"
            )),
            FileError::NotRegular(_) | FileError::TooLarge(_) | FileError::Io(_) => Error::invalid_arg(message),
        }
    })
}

/// All tensors of a graph, also those in the bodies of loops and conditions.
fn of_graph(graph: &GraphProto) -> Vec<&TensorProto> {
    let sparse = graph.sparse_initializer.iter().flat_map(of_sparse);
    graph.initializer.iter().chain(sparse).chain(of_nodes(&graph.node)).collect()
}

fn of_nodes(nodes: &[NodeProto]) -> Vec<&TensorProto> {
    let mut found = Vec::new();
    for attribute in nodes.iter().flat_map(|node| &node.attribute) {
        found.extend(attribute.t.iter().chain(&attribute.tensors));
        found.extend(attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors).flat_map(of_sparse));
        found.extend(attribute.bodies().flat_map(of_graph));
    }
    found
}

fn of_sparse(tensor: &SparseTensorProto) -> impl Iterator<Item = &TensorProto> {
    tensor.values.iter().chain(&tensor.indices)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::onnx::{AttributeProto, Entry, FunctionProto};

    fn tensor(location: &str) -> TensorProto {
        let entry = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        TensorProto { external_data: vec![entry("offset", "0"), entry("location", location)] }
    }

    /// A model with a location in each place where there may be one.
    fn everywhere(location: &str) -> Vec<ModelProto> {
        let sparse = || SparseTensorProto { values: None, indices: Some(tensor(location)) };
        let body = || GraphProto { initializer: vec![tensor(location)], ..GraphProto::default() };
        let attributes = [
            AttributeProto { t: Some(tensor(location)), ..AttributeProto::default() },
            AttributeProto { tensors: vec![tensor("good"), tensor(location)], ..AttributeProto::default() },
            AttributeProto { sparse_tensor: Some(sparse()), ..AttributeProto::default() },
            AttributeProto { sparse_tensors: vec![sparse()], ..AttributeProto::default() },
            AttributeProto { g: Some(body()), ..AttributeProto::default() },
            AttributeProto { graphs: vec![GraphProto::default(), body()], ..AttributeProto::default() },
        ];
        let nodes =
            || attributes.iter().map(|it| NodeProto { attribute: vec![it.clone()], ..NodeProto::default() });
        let of_graph = |graph| ModelProto { graph: Some(graph), functions: Vec::new() };
        let graphs = [body(), GraphProto { sparse_initializer: vec![sparse()], ..GraphProto::default() }];
        let in_nodes = nodes().map(|node| of_graph(GraphProto { node: vec![node], ..GraphProto::default() }));
        let in_functions = nodes()
            .map(|node| ModelProto { graph: None, functions: vec![FunctionProto { node: vec![node] }] });
        graphs.into_iter().map(of_graph).chain(in_nodes).chain(in_functions).collect()
    }

    #[test]
    fn locations_have_to_be_regular_files_in_the_folder_wherever_they_are() {
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(folder.path().join("good"), "w").unwrap();
        fs::create_dir(folder.path().join("deep")).unwrap();
        fs::write(folder.path().join("deep/weights"), "w").unwrap();
        fs::write(elsewhere.path().join("weights"), "w").unwrap();
        symlink(elsewhere.path().join("weights"), folder.path().join("link")).unwrap();
        symlink("/dev/zero", folder.path().join("zero")).unwrap();
        for (location, refusal) in [
            ("good", None),
            ("./good", None),
            ("deep/weights", None),
            ("link", None),
            ("/dev/zero", Some("outside")),
            ("../good", Some("outside")),
            ("deep/../good", Some("outside")),
            ("", Some("outside")),
            ("zero", Some("a character device")),
            ("deep", Some("a directory")),
            ("missing", Some("No such file")),
            // ONNX Runtime takes it for an address in memory.
            ("*/_ORT_MEM_ADDR_/*", Some("No such file")),
        ] {
            for model in everywhere(location) {
                let checked = check(&model, folder.path()).map_err(|error| error.message().to_owned());
                match (refusal, &checked) {
                    (None, Ok(())) => {}
                    (Some(refusal), Err(message))
                        if message.contains(refusal) && message.contains(location) => {}
                    _ => panic!("'{location}' in {model:?}: {checked:?}"),
                }
            }
        }
    }
}
