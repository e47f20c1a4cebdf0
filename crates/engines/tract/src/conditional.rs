//! A graph with conditions that shapes decide: for each set of decisions, the graph with the nodes of the chosen branches.
//!
//! The shapes of a plan's inputs are numbers, so that the engine infers the conditions as constants.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use nereid_backend_api::Shape;
use tract_onnx::pb::{GraphProto, ValueInfoProto};
use tract_onnx::prelude::{DatumType, TractResult};
use tract_onnx::tract_core::internal::{anyhow, ensure};
use tract_onnx::tract_hir::infer::Factoid;

use crate::conditions;
use crate::graph::{Source, Template, prune};

/// Templates hold the weights. Most models have two, for one item in a batch and for several.
const MOST_TEMPLATES: NonZeroUsize = NonZeroUsize::new(4).unwrap();

pub(crate) struct Conditional {
    source: Source,
    graph: GraphProto,
    outputs: Vec<String>,
    /// The templates last used, by the decisions in the order in which they were made.
    templates: Mutex<LruCache<Vec<bool>, Arc<Template>>>,
}

impl Conditional {
    pub(crate) fn new(source: Source, graph: GraphProto, outputs: Vec<String>) -> Self {
        Self { source, graph, outputs, templates: Mutex::new(LruCache::new(MOST_TEMPLATES)) }
    }

    /// The graph without conditions for inputs of these types and shapes.
    ///
    /// # Errors
    /// The shapes do not decide a condition.
    pub(crate) fn template(&self, inputs: &[(DatumType, Shape)], memory: u64) -> TractResult<Arc<Template>> {
        let mut graph = self.graph.clone();
        let mut decisions = Vec::new();
        while conditions::any(&graph) {
            let names = conditions::first(&graph);
            ensure!(!names.is_empty(), "a condition needs its own result");
            let known = self.decide(&graph, &names, inputs, memory)?;
            decisions.extend(names.iter().map(|name| known[name]));
            conditions::resolve(&mut graph, &known).map_err(|error| anyhow!("{error}"))?;
        }
        let mut templates = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = templates.get(&decisions) {
            return Ok(Arc::clone(template));
        }
        let template = Arc::new(self.source.template(graph, &self.outputs)?);
        templates.put(decisions, Arc::clone(&template));
        Ok(template)
    }

    /// The values of these conditions.
    fn decide(
        &self,
        graph: &GraphProto,
        names: &[String],
        inputs: &[(DatumType, Shape)],
        memory: u64,
    ) -> TractResult<HashMap<String, bool>> {
        let output = |name: &String| ValueInfoProto { name: name.clone(), ..ValueInfoProto::default() };
        let mut part = GraphProto { output: names.iter().map(output).collect(), ..graph.clone() };
        prune(&mut part, names);
        let model = self.source.template(part, names)?.analyse(inputs, memory)?;
        let values = names.iter().zip(model.output_outlets()?).map(|(name, outlet)| {
            let value = model.outlet_fact(*outlet)?.value.concretize();
            let value = value.filter(|value| value.datum_type() == DatumType::Bool && value.len() == 1);
            let value = value.ok_or_else(|| anyhow!("the shapes do not decide the condition '{name}'"))?;
            Ok((name.clone(), *value.try_as_plain_ram()?.to_scalar::<bool>()?))
        });
        values.collect()
    }
}
