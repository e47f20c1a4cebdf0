//! Replaces each If whose condition is known by the nodes of its branch.
//!
//! Exporters write them for arguments of a function that were fixed at the export, which are constants of the file, for dimensions that
//! may have to be dropped, which the shapes of a request decide, and for arguments of a request, such as a sampling rate.

use std::collections::{HashMap, HashSet};

use nereid_backend_api::{Error, Result};
use tract_onnx::pb::{AttributeProto, GraphProto, NodeProto, TensorProto};

/// Replaces the conditions in `graph` that are constants or in `known`, also those in branches that take their place.
///
/// # Errors
/// A branch lacks an output.
pub(crate) fn resolve(graph: &mut GraphProto, known: &HashMap<String, bool>) -> Result<()> {
    if !any(graph) {
        return Ok(());
    }
    let mut names: HashSet<String> = tensors(graph).map(str::to_owned).collect();
    let mut constants = constants(graph);
    constants.extend(known.iter().map(|(name, value)| (name.clone(), *value)));
    // The last node first, so that a branch's nodes are looked at in its place.
    let mut open: Vec<NodeProto> = std::mem::take(&mut graph.node).into_iter().rev().collect();
    while let Some(mut node) = open.pop() {
        if let Some(name) = node.output.first()
            && let Some(value) = constant(&node)
        {
            constants.insert(name.clone(), value);
        }
        let Some(branch) = branch(&mut node, &constants) else {
            graph.node.push(node);
            continue;
        };
        let renamed = Branch::new(branch, &node, &mut names)?;
        constants.extend(renamed.initializers.iter().filter_map(|it| Some((it.name.clone(), truth(it)?))));
        graph.initializer.extend(renamed.initializers);
        open.extend(renamed.nodes.into_iter().rev());
    }
    Ok(())
}

/// Whether a graph has conditions.
pub(crate) fn any(graph: &GraphProto) -> bool {
    graph.node.iter().any(is_condition)
}

/// The conditions of a graph that need no outputs of others.
pub(crate) fn first(graph: &GraphProto) -> Vec<String> {
    let mut behind: HashSet<&str> = HashSet::new();
    let mut first = Vec::new();
    for node in &graph.node {
        let condition = node.input.first().filter(|_| is_condition(node));
        if let Some(name) = condition
            && !behind.contains(name.as_str())
        {
            first.push(name.clone());
        }
        if condition.is_some() || node.input.iter().any(|name| behind.contains(name.as_str())) {
            behind.extend(node.output.iter().map(String::as_str));
        }
    }
    first
}

fn is_condition(node: &NodeProto) -> bool {
    node.op_type == "If" && matches!(node.domain.as_str(), "" | "ai.onnx")
}

/// The branch that the condition of an If chooses, if that is known.
fn branch(node: &mut NodeProto, constants: &HashMap<String, bool>) -> Option<GraphProto> {
    let name = match is_condition(node).then(|| constants.get(node.input.first()?)).flatten()? {
        true => "then_branch",
        false => "else_branch",
    };
    node.attribute.iter_mut().find(|attribute| attribute.name == name)?.g.take()
}

/// The truth values that are constants of a graph. An initializer that is also an input may be overridden.
fn constants(graph: &GraphProto) -> HashMap<String, bool> {
    let is_input = |name: &str| graph.input.iter().any(|input| input.name == name);
    let fixed = graph.initializer.iter().filter(|constant| !is_input(&constant.name));
    fixed.filter_map(|constant| Some((constant.name.clone(), truth(constant)?))).collect()
}

/// The truth value that a node always makes.
fn constant(node: &NodeProto) -> Option<bool> {
    if node.op_type != "Constant" {
        return None;
    }
    truth(node.attribute.iter().find(|attribute| attribute.name == "value")?.t.as_ref()?)
}

/// The value of a tensor that is one truth value.
fn truth(tensor: &TensorProto) -> Option<bool> {
    const BOOL: i32 = tract_onnx::pb::tensor_proto::DataType::Bool as i32;
    if tensor.data_type != BOOL || tensor.dims.iter().any(|&size| size != 1) {
        return None;
    }
    match (tensor.raw_data.as_slice(), tensor.int32_data.as_slice()) {
        ([byte], []) => Some(*byte != 0),
        ([], [number]) => Some(*number != 0),
        _ => None,
    }
}

/// The nodes and initializers of a branch, with names of their own.
struct Branch {
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
}

impl Branch {
    /// Renames the tensors of the branch. The branch's outputs take the names of the outputs of the If `node`.
    fn new(mut graph: GraphProto, node: &NodeProto, names: &mut HashSet<String>) -> Result<Self> {
        if graph.output.len() != node.output.len() {
            return Err(Error::invalid_arg(format!(
                "a branch of '{}' has {} outputs instead of {}",
                node.name,
                graph.output.len(),
                node.output.len()
            )));
        }
        let own: Vec<_> = tensors(&graph).map(str::to_owned).collect();
        let mut renamed = HashMap::new();
        for name in own {
            let mut fresh = format!("{}/{name}", node.output.first().map_or("", String::as_str));
            while !names.insert(fresh.clone()) {
                fresh.push('_');
            }
            renamed.insert(name, fresh);
        }
        rename(&mut graph, &renamed);
        let outputs = graph.output.iter().zip(&node.output).filter(|(_, output)| !output.is_empty());
        let identities = outputs.map(|(inner, output)| NodeProto {
            op_type: "Identity".into(),
            name: format!("{output}/result"),
            input: vec![inner.name.clone()],
            output: vec![output.clone()],
            ..NodeProto::default()
        });
        let identities: Vec<_> = identities.collect();
        Ok(Self { nodes: [graph.node, identities].concat(), initializers: graph.initializer })
    }
}

/// The tensors that a graph makes or has, without those in the bodies of its nodes.
fn tensors(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let made = graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty());
    let constants = graph.initializer.iter().map(|constant| &constant.name);
    made.chain(constants).map(String::as_str)
}

/// Renames tensors of a graph, also where the bodies of its nodes read them. A body may have a tensor of that name itself.
fn rename(graph: &mut GraphProto, renamed: &HashMap<String, String>) {
    let change = |name: &mut String| {
        if let Some(fresh) = renamed.get(name) {
            name.clone_from(fresh);
        }
    };
    for node in &mut graph.node {
        node.input.iter_mut().chain(&mut node.output).for_each(change);
        // The engine identifies nodes by their names.
        if let Some(output) = node.output.first() {
            node.name.clone_from(output);
        }
        for body in node.attribute.iter_mut().flat_map(bodies) {
            let hidden: HashSet<_> = tensors(body).map(str::to_owned).collect();
            let inputs: HashSet<_> = body.input.iter().map(|input| input.name.clone()).collect();
            let visible =
                renamed.iter().filter(|(name, _)| !hidden.contains(*name) && !inputs.contains(*name));
            rename(body, &visible.map(|(name, fresh)| (name.clone(), fresh.clone())).collect());
        }
    }
    graph.initializer.iter_mut().map(|constant| &mut constant.name).for_each(change);
    graph.output.iter_mut().map(|output| &mut output.name).for_each(change);
}

fn bodies(attribute: &mut AttributeProto) -> impl Iterator<Item = &mut GraphProto> {
    attribute.g.iter_mut().chain(&mut attribute.graphs)
}
