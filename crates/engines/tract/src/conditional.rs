//! A graph with conditions: for each set of decisions, the graph with the nodes of the chosen branches.
//!
//! The shapes of a plan's inputs are numbers, so that the engine infers many conditions as constants. The contents of a request decide
//! the others: a graph of its own computes them, and what it computes is one of the decisions from which the next graph follows.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use nereid_backend_api::Shape;
use tract_onnx::pb::{GraphProto, ValueInfoProto};
use tract_onnx::prelude::{DatumType, InferenceModel, TractResult};
use tract_onnx::tract_core::internal::{anyhow, ensure};
use tract_onnx::tract_hir::infer::Factoid;

use crate::conditions;
use crate::graph::{Source, Template, prune};

/// Templates hold the weights. Most models have two, for one item in a batch and for several.
const MOST_TEMPLATES: NonZeroUsize = NonZeroUsize::new(4).unwrap();
/// A graph is planned and run for each condition that depends on contents that an earlier one decided.
const MOST_ROUNDS: usize = 16;

pub(crate) struct Conditional {
    source: Source,
    graph: GraphProto,
    outputs: Vec<String>,
    /// The templates last used, by the decisions in the order in which they were made.
    templates: Mutex<LruCache<Vec<bool>, Arc<Template>>>,
}

/// The next graph to run, for inputs of known shapes.
pub(crate) enum Step {
    /// A graph whose outputs are conditions, with their names.
    Decide(InferenceModel, Vec<String>),
    /// The graph without conditions.
    Last(InferenceModel),
}

impl Conditional {
    pub(crate) fn new(source: Source, graph: GraphProto, outputs: Vec<String>) -> Self {
        Self { source, graph, outputs, templates: Mutex::new(LruCache::new(MOST_TEMPLATES)) }
    }

    /// The next graph to run on inputs of these types and shapes, after earlier ones decided `computed`.
    pub(crate) fn step(
        &self,
        inputs: &[(DatumType, Shape)],
        mut computed: &[bool],
        memory: u64,
    ) -> TractResult<Step> {
        let mut graph = self.graph.clone();
        let (mut decisions, mut rounds) = (Vec::new(), 0);
        while conditions::any(&graph) {
            let names = conditions::first(&graph);
            ensure!(!names.is_empty(), "a condition needs its own result");
            let mut known = self.inferred(&graph, &names, inputs, memory)?;
            let open: Vec<_> = names.iter().filter(|name| !known.contains_key(*name)).cloned().collect();
            if !open.is_empty() {
                rounds += 1;
                ensure!(rounds <= MOST_ROUNDS, "more than {MOST_ROUNDS} conditions depend on one another");
                let Some((values, later)) = computed.split_at_checked(open.len()) else {
                    return Ok(Step::Decide(self.part(&graph, &open, inputs, memory)?, open));
                };
                known.extend(open.into_iter().zip(values.iter().copied()));
                computed = later;
            }
            decisions.extend(names.iter().map(|name| known[name]));
            conditions::resolve(&mut graph, &known).map_err(|error| anyhow!("{error}"))?;
        }
        Ok(Step::Last(self.template(graph, decisions)?.analyse(inputs, memory)?))
    }

    /// The template of a graph that these decisions led to.
    fn template(&self, graph: GraphProto, decisions: Vec<bool>) -> TractResult<Arc<Template>> {
        let mut templates = self.templates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = templates.get(&decisions) {
            return Ok(Arc::clone(template));
        }
        let template = Arc::new(self.source.template(graph, &self.outputs)?);
        templates.put(decisions, Arc::clone(&template));
        Ok(template)
    }

    /// The values of the conditions that shapes decide.
    fn inferred(
        &self,
        graph: &GraphProto,
        names: &[String],
        inputs: &[(DatumType, Shape)],
        memory: u64,
    ) -> TractResult<HashMap<String, bool>> {
        let model = self.part(graph, names, inputs, memory)?;
        let mut values = HashMap::new();
        for (name, outlet) in names.iter().zip(model.output_outlets()?) {
            let fact = model.outlet_fact(*outlet)?;
            let datum_type = fact.datum_type.concretize();
            let is_truth = datum_type.is_none_or(|datum_type| datum_type == DatumType::Bool);
            ensure!(is_truth, "the condition '{name}' is {datum_type:?}");
            if let Some(value) = fact.value.concretize() {
                ensure!(value.len() == 1, "the condition '{name}' has {} elements", value.len());
                values.insert(name.clone(), *value.try_as_plain_ram()?.to_scalar::<bool>()?);
            }
        }
        Ok(values)
    }

    /// The part of a graph that makes these conditions.
    fn part(
        &self,
        graph: &GraphProto,
        names: &[String],
        inputs: &[(DatumType, Shape)],
        memory: u64,
    ) -> TractResult<InferenceModel> {
        let output = |name: &String| ValueInfoProto { name: name.clone(), ..ValueInfoProto::default() };
        let mut part = GraphProto { output: names.iter().map(output).collect(), ..graph.clone() };
        prune(&mut part, names);
        self.source.template(part, names)?.analyse(inputs, memory)
    }
}
