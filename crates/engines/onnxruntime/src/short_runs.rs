//! Which requests run as briefly as earlier ones, so that the thread that received one may run it.
//!
//! Knows what bounds the work of a model, and how long runs took; not who runs them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::onnx::{GraphProto, ModelProto};

/// A run that is over before another thread would have begun it.
const SHORT: Duration = Duration::from_micros(20);

/// Operators whose work depends on input values, not only on shapes: a few numbers can ask for any number of iterations or elements.
const BY_VALUE: [&str; 22] = [
    "AffineGrid",
    "BlackmanWindow",
    "CenterCropPad",
    "ConstantOfShape",
    "DFT",
    "Expand",
    "HammingWindow",
    "HannWindow",
    "If",
    "ImageDecoder",
    "Loop",
    "MaxUnpool",
    "MelWeightMatrix",
    "OneHot",
    "Pad",
    "Range",
    "Resize",
    "STFT",
    "Scan",
    "SequenceMap",
    "Tile",
    "Upsample",
];

/// The domains of known operators. Other operators may do anything.
const DOMAINS: [&[u8]; 3] = [b"", b"ai.onnx", b"ai.onnx.ml"];

/// Whether the sizes of its inputs bound the work of a model.
pub(crate) fn work_follows_sizes(model: &ModelProto) -> bool {
    model.functions.is_empty() && model.graph.as_ref().is_some_and(is_bounded)
}

fn is_bounded(graph: &GraphProto) -> bool {
    graph.node.iter().all(|node| {
        DOMAINS.contains(&node.domain.as_slice())
            && !BY_VALUE.iter().any(|operator| operator.as_bytes() == node.op_type)
            && node.attribute.iter().all(|attribute| attribute.bodies().next().is_none())
    })
}

/// The runs of a model so far.
#[derive(Debug, Default)]
pub(crate) struct ShortRuns {
    /// The most elements in the inputs of a short run.
    most: AtomicUsize,
}

impl ShortRuns {
    /// Counts a run.
    pub(crate) fn add(&self, elements: usize, took: Duration) {
        // Mostly nothing changes, and then nothing is written that threads share.
        if took < SHORT && elements > self.most.load(Ordering::Relaxed) {
            self.most.fetch_max(elements, Ordering::Relaxed);
        }
    }

    /// Whether some short run had at least this many input elements.
    pub(crate) fn cover(&self, elements: usize) -> bool {
        elements <= self.most.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::{AttributeProto, FunctionProto, NodeProto};

    fn node(domain: &str, operator: &str) -> NodeProto {
        NodeProto { domain: domain.into(), op_type: operator.into(), ..NodeProto::default() }
    }

    fn model(nodes: Vec<NodeProto>) -> ModelProto {
        let graph = GraphProto { node: nodes, ..GraphProto::default() };
        ModelProto { graph: Some(graph), functions: Vec::new() }
    }

    #[test]
    fn work_of_known_operators_follows_sizes() {
        for (domain, operator) in
            [("", "MatMul"), ("ai.onnx", "Conv"), ("ai.onnx.ml", "TreeEnsembleClassifier")]
        {
            assert!(work_follows_sizes(&model(vec![node(domain, operator), node("", "Relu")])), "{operator}");
        }
        assert!(work_follows_sizes(&model(Vec::new())));
    }

    #[test]
    fn values_functions_and_unknown_operators_bound_nothing() {
        for operator in BY_VALUE {
            assert!(!work_follows_sizes(&model(vec![node("", "Relu"), node("", operator)])), "{operator}");
        }
        assert!(!work_follows_sizes(&model(vec![node("com.microsoft", "MatMul")])));
        // An operator of a later release that has a body.
        let body = AttributeProto { g: Some(GraphProto::default()), ..AttributeProto::default() };
        let newer = NodeProto { attribute: vec![body], ..node("", "Newer") };
        assert!(!work_follows_sizes(&model(vec![newer])));
        let functions = vec![FunctionProto::default()];
        assert!(!work_follows_sizes(&ModelProto { functions, ..model(vec![node("", "Relu")]) }));
        assert!(!work_follows_sizes(&ModelProto::default()));
    }

    #[test]
    fn only_sizes_that_ran_briefly_are_covered() {
        let runs = ShortRuns::default();
        assert!(!runs.cover(1));
        runs.add(16, SHORT);
        assert!(!runs.cover(16));
        runs.add(16, SHORT - Duration::from_nanos(1));
        assert!(runs.cover(16) && runs.cover(0) && !runs.cover(17));
        // A shorter input or a disturbed run takes nothing back: the server watches the mean of all runs.
        runs.add(4, Duration::ZERO);
        runs.add(16, Duration::from_secs(1));
        assert!(runs.cover(16) && !runs.cover(17));
    }
}
