//! FP16 in FP32: operators that round within compute with FP32, and only their results are rounded.
//!
//! The engine adds up FP16 in FP16, so that sums lose most digits, and squares and powers overflow. ONNX Runtime computes with
//! FP32 on processors, too.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::LazyLock;

use tract_hir::internal::*;
use tract_hir::tract_core::ops::cast::cast;
use tract_onnx::model::{OnnxOpRegister, ParsingContext};
use tract_onnx::onnx;
use tract_onnx::pb::NodeProto;

use crate::{
    algebra, clip, deconvolution, elementwise, functions, indexing, learning, one_hot, quantisation,
    quantised_lstm, repairs, slices,
};

/// Operators whose results in FP16 would differ from rounded ones in FP32.
const OPERATORS: [&str; 68] = [
    "Acos",
    "Acosh",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "CumSum",
    "Div",
    "Einsum",
    "Elu",
    "Erf",
    "Exp",
    "GRU",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GridSample",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "InstanceNormalization",
    "LRN",
    "LSTM",
    "LayerNormalization",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "MatMul",
    "Mean",
    "MeanVarianceNormalization",
    "Mish",
    "Mod",
    "Mul",
    "PRelu",
    "Pow",
    "RMSNormalization",
    "RNN",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMean",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Resize",
    "RotaryEmbedding",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
];

/// Operators that compute with FP16 and are exchanged by `exact`.
const EXACT: [&str; 12] = [
    "ArgMax",
    "ArgMin",
    "Clip",
    "GlobalMaxPool",
    "Hardmax",
    "Max",
    "MaxPool",
    "Min",
    "ReduceMax",
    "ReduceMin",
    "Relu",
    "TopK",
];

/// Functions that are exchanged by `exact` or `repairs`, or consist of such.
const FUNCTIONS: [&str; 10] =
    ["Acosh", "Asinh", "Erf", "Gelu", "HardSwish", "Mish", "ReduceLogSumExp", "Sigmoid", "Swish", "Tanh"];

/// The engine computes with constants of fewer elements as soon as it has an operator, before `exact` exchanges it.
const EAGER: usize = 16;

/// The builders of all operators, the engine's or those in their place.
pub(crate) fn operators() -> OnnxOpRegister {
    let mut operators = NARROW.clone();
    for name in OPERATORS {
        operators.insert(name, |context, node| widened(context, node, true));
    }
    for name in EXACT {
        operators.insert(name, |context, node| widened(context, node, false));
    }
    operators
}

/// The builders of operators that compute with the types of their inputs.
static NARROW: LazyLock<OnnxOpRegister> = LazyLock::new(|| {
    let mut operators = onnx().op_register;
    clip::register(&mut operators);
    deconvolution::register(&mut operators);
    elementwise::register(&mut operators);
    functions::register(&mut operators);
    indexing::register(&mut operators);
    learning::register(&mut operators);
    one_hot::register(&mut operators);
    quantisation::register(&mut operators);
    quantised_lstm::register(&mut operators);
    repairs::register(&mut operators);
    slices::register(&mut operators);
    operators
});

fn widened(
    context: &ParsingContext<'_>,
    node: &NodeProto,
    widens: bool,
) -> TractResult<(Box<dyn InferenceOp>, Vec<String>)> {
    let builder = NARROW.0.get(&node.op_type).context("the operator is known")?;
    let (operator, closure) = builder(context, node)?;
    let is_function = FUNCTIONS.contains(&node.op_type.as_str());
    Ok((Box::new(Widened { operator, widens, is_function }), closure))
}

/// An operator whose constants are not folded where the engine would compute a wrong result.
#[derive(Clone, Debug)]
struct Widened {
    operator: Box<dyn InferenceOp>,
    /// Whether FP16 inputs are widened to FP32.
    widens: bool,
    is_function: bool,
}

impl Widened {
    fn is_inexact(&self, input: &Tensor) -> bool {
        input.datum_type().is_float() && (self.is_function || !algebra::all(input, f64::is_finite))
    }
}

impl PartialEq for Widened {
    fn eq(&self, _: &Self) -> bool {
        false
    }
}

impl Eq for Widened {}

impl Op for Widened {
    fn name(&self) -> StaticName {
        self.operator.name()
    }

    not_a_typed_op!();
}

impl EvalOp for Widened {
    fn eval_out_of_plan(&self, inputs: TVec<TValue>) -> TractResult<Option<TVec<TValue>>> {
        if inputs.iter().any(|input| self.is_inexact(input)) {
            return Ok(None);
        }
        if !self.widens || inputs.iter().all(|input| input.datum_type() != DatumType::F16) {
            return self.operator.eval_out_of_plan(inputs);
        }
        let wide = inputs.iter().map(|input| change(input, DatumType::F16, DatumType::F32));
        let Some(outputs) = self.operator.eval_out_of_plan(wide.collect::<TractResult<_>>()?)? else {
            return Ok(None);
        };
        let narrow = outputs.iter().map(|output| change(output, DatumType::F32, DatumType::F16));
        narrow.collect::<TractResult<_>>().map(Some)
    }
}

/// The tensor in another type, if it has the first one.
fn change(tensor: &TValue, from: DatumType, to: DatumType) -> TractResult<TValue> {
    if tensor.datum_type() != from {
        return Ok(tensor.clone());
    }
    Ok(tensor.cast_to_dt(to)?.into_owned().into_tvalue())
}

impl InferenceOp for Widened {
    fn infer_facts(
        &mut self,
        inputs: TVec<&InferenceFact>,
        outputs: TVec<&InferenceFact>,
        observed: TVec<&InferenceFact>,
    ) -> TractResult<(TVec<InferenceFact>, TVec<InferenceFact>, TVec<InferenceFact>)> {
        self.operator.infer_facts(inputs, outputs, observed)
    }

    fn observe_outlets(&self, model: &InferenceModel, node: &InferenceNode) -> TractResult<Vec<OutletId>> {
        self.operator.observe_outlets(model, node)
    }

    fn nboutputs(&self) -> TractResult<usize> {
        self.operator.nboutputs()
    }

    fn to_typed(
        &self,
        source: &InferenceModel,
        node: &InferenceNode,
        target: &mut TypedModel,
        mapping: &std::collections::HashMap<OutletId, OutletId>,
    ) -> TractResult<TVec<OutletId>> {
        let mut inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        let facts = inputs.iter().map(|input| target.outlet_fact(*input).cloned());
        let facts = facts.collect::<TractResult<TVec<_>>>()?;
        let mut hidden = None;
        let small = facts.iter().map(|fact| fact.konst.as_ref().filter(|constant| constant.len() < EAGER));
        if let Some(constants) = small.collect::<Option<TVec<_>>>()
            && let Some(at) = constants.iter().position(|constant| self.is_inexact(constant))
        {
            let constant = target.wire_node(format!("{}.constant", node.name), Hidden, &[inputs[at]])?[0];
            let mut mapping = mapping.clone();
            mapping.insert(node.inputs[at], constant);
            inputs = node.inputs.iter().map(|input| mapping[input]).collect();
            hidden = Some(mapping);
        }
        let mapping = hidden.as_ref().unwrap_or(mapping);
        if !self.widens || facts.iter().all(|fact| fact.datum_type != DatumType::F16) {
            return self.operator.to_typed(source, node, target, mapping);
        }

        // The operator by itself, on inputs of FP32.
        let mut alone = InferenceModel::default();
        let (mut sources, mut given) = (TVec::new(), TVec::new());
        for (at, (input, fact)) in inputs.iter().zip(&facts).enumerate() {
            let name = format!("{}.wide{at}", node.name);
            let datum_type = if fact.datum_type == DatumType::F16 { DatumType::F32 } else { fact.datum_type };
            if let Some(constant) = &fact.konst {
                sources.push(alone.add_const(name, constant.cast_to_dt(datum_type)?.into_owned())?);
                continue;
            }
            sources.push(alone.add_source(&name, InferenceFact::dt_shape(datum_type, fact.shape.to_tvec()))?);
            given.push(if datum_type == fact.datum_type {
                *input
            } else {
                target.wire_node(name, cast(datum_type), &[*input])?[0]
            });
        }
        let outputs = alone.wire_node(&node.name, self.operator.clone(), &sources)?;
        alone.select_output_outlets(&outputs)?;
        let alone = alone.into_typed()?;

        // Its parts, in the graph.
        let mut parts: HashMap<OutletId, OutletId> =
            alone.input_outlets()?.iter().copied().zip(given).collect();
        for id in alone.eval_order()? {
            let part = alone.node(id);
            if parts.contains_key(&OutletId::new(id, 0)) {
                continue;
            }
            let inputs: TVec<OutletId> = part.inputs.iter().map(|input| parts[input]).collect();
            let made = target.wire_node(&part.name, part.op.clone(), &inputs)?;
            parts
                .extend(made.into_iter().enumerate().map(|(slot, outlet)| (OutletId::new(id, slot), outlet)));
        }
        let narrow = |(at, output): (usize, &OutletId)| {
            let outlet = parts[output];
            if target.outlet_fact(outlet)?.datum_type != DatumType::F32 {
                return Ok(outlet);
            }
            Ok(target.wire_node(format!("{}.narrow{at}", node.name), cast(DatumType::F16), &[outlet])?[0])
        };
        alone.output_outlets()?.iter().enumerate().map(narrow).collect()
    }

    as_op!();
}

/// A small constant that the engine does not know as one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hidden;

impl Op for Hidden {
    fn name(&self) -> StaticName {
        "Hidden".into()
    }

    op_as_typed_op!();
}

impl EvalOp for Hidden {
    not_out_of_plan!();

    fn eval(&self, _: &EvalContext<'_>, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        Ok(inputs)
    }
}

impl TypedOp for Hidden {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        Ok(tvec!(inputs[0].datum_type.fact(inputs[0].shape.clone())))
    }

    as_op!();
}
