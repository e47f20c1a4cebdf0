//! Keeps the optimiser from rules of algebra that hold for real numbers only.
//!
//! The optimiser divides by a multiplication with the reciprocal, which is infinite for the smallest numbers and has few digits
//! for the largest. It joins factors, whose product may be 0 or infinite, takes 0 times anything for 0, and the square of a
//! root for the number, although a negative one has no root. It squares integers in FP32.

use std::collections::HashSet;

use tract_hir::internal::tract_linalg::BinOp;
use tract_hir::internal::*;
use tract_hir::tract_core::ops::array::MultiBroadcastTo;
use tract_hir::tract_core::ops::binary::{BinMiniOp, TypedBinOp};
use tract_hir::tract_core::ops::element_wise::ElementWiseOp;
use tract_hir::tract_core::ops::konst::Const;
use tract_hir::tract_core::ops::math::{Div, Mul, Pow, Sqrt, Square};
use tract_hir::tract_core::ops::scan::Scan;

use crate::pairs;
use crate::repairs::Opaque;

/// The exponents of 2 between which factors may be joined, and divisors replaced by reciprocals: products of several are far from the
/// ends of FP32.
const FACTORS: i32 = 30;

/// Changes quotients, products and squares that the optimiser would make something else of.
pub(crate) fn protect(model: &mut TypedModel) -> TractResult<()> {
    protect_behind(model, HashSet::new())
}

/// Protects the graph, some of whose inputs are `constants`.
fn protect_behind(model: &mut TypedModel, mut constants: HashSet<usize>) -> TractResult<()> {
    for id in model.eval_order()? {
        let node = &model.nodes[id];
        let is_constant = |input: &OutletId| constants.contains(&input.node);
        if let Some(scan) = node.op_as::<Scan>() {
            // The optimiser puts the body of a loop with one step into the graph.
            let mut scan = scan.clone();
            let inputs = node.inputs.iter().zip(&scan.body.inputs);
            let known = inputs.filter(|(outer, _)| is_constant(outer)).map(|(_, inner)| inner.node).collect();
            protect_behind(&mut scan.body, known)?;
            model.nodes[id].op = Box::new(scan);
            continue;
        }
        if node.op_as::<ElementWiseOp>().is_some_and(|op| op.0.is::<Square>()) && has_integers(node) {
            let input = node.inputs[0];
            model.nodes[id].op = Box::new(TypedBinOp(Box::new(Product), None));
            model.add_edge(input, InletId::new(id, 1))?;
            continue;
        }
        let op: Box<dyn TypedOp> = if let Some(TypedBinOp(_, datum_type)) = product(node)
            && has_integers(node)
        {
            // Its factors may turn out to be the same.
            Box::new(TypedBinOp(Box::new(Product), *datum_type))
        } else if is_square(model, node) && (has_integers(node) || is_root(model, node.inputs[0])) {
            Box::new(Opaque(node.op.clone()))
        } else if is_division(model, node)? {
            Box::new(TypedBinOp(Box::new(Quotient), None))
        } else if let Some(TypedBinOp(_, datum_type)) = product(node)
            && node.outputs[0].fact.datum_type.is_float()
            && let Some(factor) = node.inputs.iter().find(|input| is_constant(input))
            && !is_factor(model.outlet_fact(*factor)?)
        {
            Box::new(TypedBinOp(Box::new(Product), *datum_type))
        } else {
            if node.op_is::<Const>() || !node.inputs.is_empty() && node.inputs.iter().all(is_constant) {
                constants.insert(id);
            }
            continue;
        };
        model.nodes[id].op = op;
    }
    Ok(())
}

/// Whether a quotient of floating-point numbers may differ from a product with the reciprocal.
fn is_division(model: &TypedModel, node: &TypedNode) -> TractResult<bool> {
    if !node.op_as::<TypedBinOp>().is_some_and(|op| op.0.is::<Div>()) {
        return Ok(false);
    }
    let (dividend, divisor) = (model.outlet_fact(node.inputs[0])?, model.outlet_fact(node.inputs[1])?);
    let is_one = |one: &Arc<Tensor>| one.cast_to_scalar::<f64>().is_ok_and(|one| one == 1.0);
    let is_reciprocal = dividend.uniform.as_ref().is_some_and(is_one);
    Ok(node.outputs[0].fact.datum_type.is_float() && !is_reciprocal && !is_factor(divisor))
}

/// Whether a constant may be joined with other factors.
fn is_factor(constant: &TypedFact) -> bool {
    let known = constant.konst.as_ref().or(constant.uniform.as_ref());
    known.is_some_and(|known| all(known, |factor| is_between(factor, FACTORS)))
}

fn product(node: &TypedNode) -> Option<&TypedBinOp> {
    node.op_as::<TypedBinOp>().filter(|op| op.0.is::<Mul>())
}

/// Whether the results of a node are integers that are not quantised numbers.
fn has_integers(node: &TypedNode) -> bool {
    let datum_type = node.outputs[0].fact.datum_type;
    datum_type.is_integer() && !datum_type.is_quantized()
}

/// Whether the optimiser takes the node for the square of its first input.
fn is_square(model: &TypedModel, node: &TypedNode) -> bool {
    let binary = node.op_as::<TypedBinOp>();
    binary.is_some_and(|op| op.0.is::<Mul>() && node.inputs[0] == node.inputs[1])
        || binary.is_some_and(|op| op.0.is::<Pow>()) && raises_to(model, node, 2.0)
        || node.op_as::<ElementWiseOp>().is_some_and(|op| op.0.is::<Square>())
}

/// Whether a tensor has square roots. The optimiser moves functions of elements to the front of operators that move elements.
fn is_root(model: &TypedModel, mut outlet: OutletId) -> bool {
    loop {
        let node = &model.nodes[outlet.node];
        if node.op_is::<AxisOp>() || node.op_is::<MultiBroadcastTo>() || node.op_is::<IntoShape>() {
            outlet = node.inputs[0];
            continue;
        }
        return node.op_as::<ElementWiseOp>().is_some_and(|op| op.0.is::<Sqrt>())
            || node.op_as::<TypedBinOp>().is_some_and(|op| op.0.is::<Pow>()) && raises_to(model, node, 0.5);
    }
}

fn raises_to(model: &TypedModel, node: &TypedNode, exponent: f64) -> bool {
    let fact = model.outlet_fact(node.inputs[1]).ok();
    let uniform = fact.and_then(|fact| fact.uniform.as_ref()?.cast_to_scalar::<f64>().ok());
    uniform == Some(exponent)
}

/// Whether the size of a number is between these powers of 2.
fn is_between(number: f64, exponent: i32) -> bool {
    (2_f64.powi(-exponent)..=2_f64.powi(exponent)).contains(&number.abs())
}

pub(crate) fn all(tensor: &Tensor, holds: impl Fn(f64) -> bool) -> bool {
    let wide = tensor.cast_to::<f64>();
    wide.is_ok_and(|wide| {
        let wide = wide.try_as_plain_ram();
        wide.is_ok_and(|wide| wide.as_slice::<f64>().is_ok_and(|numbers| numbers.iter().all(|it| holds(*it))))
    })
}

/// A quotient, which the optimiser leaves a division.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Quotient;

/// A product whose factors the optimiser leaves as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Product;

impl BinMiniOp for Quotient {
    fn name(&self) -> &'static str {
        "Quotient"
    }

    fn result_datum_type(&self, one: DatumType, other: DatumType) -> TractResult<DatumType> {
        self.operating_datum_type(one, other)
    }

    fn eval_in_a(&self, one: &mut Tensor, other: &Tensor) -> TractResult<()> {
        match one.datum_type() {
            DatumType::F16 => pairs::combine_in_place::<f16>(one, other, |one, other| one / other),
            DatumType::F32 => pairs::combine_in_place::<f32>(one, other, |one, other| one / other),
            DatumType::F64 => pairs::combine_in_place::<f64>(one, other, |one, other| one / other),
            datum_type => bail!("no quotients of {datum_type:?}"),
        }
    }

    fn eval_out_of_place(&self, result: &mut Tensor, one: &Tensor, other: &Tensor) -> TractResult<()> {
        match result.datum_type() {
            DatumType::F16 => pairs::combine::<f16>(result, one, other, |one, other| one / other),
            DatumType::F32 => pairs::combine::<f32>(result, one, other, |one, other| one / other),
            DatumType::F64 => pairs::combine::<f64>(result, one, other, |one, other| one / other),
            datum_type => bail!("no quotients of {datum_type:?}"),
        }
    }

    fn is_commutative(&self) -> bool {
        false
    }

    fn neutral_element(&self) -> Option<i64> {
        Some(1)
    }
}

impl BinMiniOp for Product {
    fn name(&self) -> &'static str {
        "Product"
    }

    fn validation(&self) -> Validation {
        Mul.validation()
    }

    fn result_datum_type(&self, one: DatumType, other: DatumType) -> TractResult<DatumType> {
        Mul.result_datum_type(one, other)
    }

    fn eval_in_a(&self, one: &mut Tensor, other: &Tensor) -> TractResult<()> {
        Mul.eval_in_a(one, other)
    }

    fn eval_out_of_place(&self, result: &mut Tensor, one: &Tensor, other: &Tensor) -> TractResult<()> {
        Mul.eval_out_of_place(result, one, other)
    }

    fn as_linalg_binop(&self) -> Option<BinOp> {
        Some(BinOp::Mul)
    }
}
