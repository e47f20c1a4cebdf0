//! Checks the files that an ONNX file keeps weights in, before the library opens them.
//!
//! The library opens every location without a check: it waits for a FIFO, reads a device without an end, and takes one location
//! for an address in its own memory. So a location has to name a regular file in the folder of the ONNX file.

use std::path::Path;

use nereid_backend_api::{Error, Result};
use nereid_model_files::{self as model_files, FileError};
use prost::Message;

/// Checks every location in an ONNX file that is in this folder. What is not ONNX's protobuf has none.
///
/// # Errors
/// The first location that is not a regular file in the folder.
pub(crate) fn check(contents: &[u8], folder: &Path) -> Result<()> {
    let Ok(model) = ModelProto::decode(contents) else { return Ok(()) };
    let mut last = None;
    for tensor in model
        .graph
        .iter()
        .flat_map(GraphProto::tensors)
        .chain(model.functions.iter().flat_map(|it| tensors(&it.node)))
    {
        for location in tensor.external_data.iter().filter(|entry| entry.key == b"location") {
            // Usually all tensors are in one file.
            if last == Some(&location.value) {
                continue;
            }
            check_location(&String::from_utf8_lossy(&location.value), folder)?;
            last = Some(&location.value);
        }
    }
    Ok(())
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

fn tensors(nodes: &[NodeProto]) -> Vec<&TensorProto> {
    let mut found = Vec::new();
    for attribute in nodes.iter().flat_map(|node| &node.attribute) {
        found.extend(attribute.t.iter().chain(&attribute.tensors));
        let sparse = attribute.sparse_tensor.iter().chain(&attribute.sparse_tensors);
        found.extend(sparse.flat_map(SparseTensorProto::parts));
        found.extend(attribute.g.iter().chain(&attribute.graphs).flat_map(GraphProto::tensors));
    }
    found
}

// The few fields of onnx.proto that lead to locations; the others, weights above all, are passed over. Recursion ends
// at the decoder's limit, which equals the library's.

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "25")]
    functions: Vec<FunctionProto>,
}

#[derive(Clone, PartialEq, Message)]
struct FunctionProto {
    #[prost(message, repeated, tag = "7")]
    node: Vec<NodeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    node: Vec<NodeProto>,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "15")]
    sparse_initializer: Vec<SparseTensorProto>,
}

impl GraphProto {
    /// All tensors in it, also those in the bodies of loops and conditions.
    fn tensors(&self) -> Vec<&TensorProto> {
        let sparse = self.sparse_initializer.iter().flat_map(SparseTensorProto::parts);
        self.initializer.iter().chain(sparse).chain(tensors(&self.node)).collect()
    }
}

#[derive(Clone, PartialEq, Message)]
struct NodeProto {
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<AttributeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeProto {
    #[prost(message, optional, tag = "5")]
    t: Option<TensorProto>,
    #[prost(message, optional, tag = "6")]
    g: Option<GraphProto>,
    #[prost(message, repeated, tag = "10")]
    tensors: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<GraphProto>,
    #[prost(message, optional, tag = "22")]
    sparse_tensor: Option<SparseTensorProto>,
    #[prost(message, repeated, tag = "23")]
    sparse_tensors: Vec<SparseTensorProto>,
}

#[derive(Clone, PartialEq, Message)]
struct SparseTensorProto {
    #[prost(message, optional, tag = "1")]
    values: Option<TensorProto>,
    #[prost(message, optional, tag = "2")]
    indices: Option<TensorProto>,
}

impl SparseTensorProto {
    fn parts(&self) -> impl Iterator<Item = &TensorProto> {
        self.values.iter().chain(&self.indices)
    }
}

#[derive(Clone, PartialEq, Message)]
struct TensorProto {
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

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
        let nodes = || attributes.iter().map(|it| NodeProto { attribute: vec![it.clone()] });
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
                let checked =
                    check(&model.encode_to_vec(), folder.path()).map_err(|error| error.message().to_owned());
                match (refusal, &checked) {
                    (None, Ok(())) => {}
                    (Some(refusal), Err(message))
                        if message.contains(refusal) && message.contains(location) => {}
                    _ => panic!("'{location}' in {model:?}: {checked:?}"),
                }
            }
        }
    }

    #[test]
    fn file_that_is_not_onnx_has_no_locations() {
        let folder = tempfile::tempdir().unwrap();
        for contents in [b"".as_slice(), b"not a model", &[0xff; 64]] {
            check(contents, folder.path()).unwrap();
        }
    }
}
