//! Any file is converted to ONNX or refused: no panic, and no unbounded growth.

#[path = "../../../../tests/netdef/cases.rs"]
mod cases;

use std::sync::LazyLock;

use nereid_caffe2::{Element, Input, Nets};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::cases::{CASES, fields};

/// The nets of `tests/netdef/operators.bin`: for each case, the one that initialises weights and the one that computes.
static NETS: LazyLock<Vec<[Vec<u8>; 2]>> = LazyLock::new(|| {
    let cases = fields(CASES);
    cases.into_iter().map(|(_, case)| [2, 3].map(|number| field(case, number))).collect()
});

fn field(message: &[u8], number: u64) -> Vec<u8> {
    let found = fields(message).into_iter().find(|field| field.0 == number);
    found.map_or_else(Vec::new, |field| field.1.to_vec())
}

fn inputs(dims: Option<Vec<Option<i64>>>) -> Vec<Input> {
    let input = |name: &str| Input { name: name.to_owned(), element: Element::Float, dims: dims.clone() };
    ["x", "y", "z", "like", "c"].map(input).to_vec()
}

fn convert(init: &[u8], net: &[u8], inputs: &[Input]) {
    if let Ok(nets) = Nets::read(init, net) {
        let _ = nets.to_onnx(inputs);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_net_is_refused_or_converted(
        case: Index,
        changes in vec((any::<bool>(), any::<Index>(), any::<u8>()), 1..5),
        cut in proptest::option::of(any::<Index>()),
        dims in proptest::option::of(vec(proptest::option::of(-1_i64..9), 0..6)),
    ) {
        let mut nets = case.get(&NETS).clone();
        for (of_net, at, byte) in changes {
            let contents = &mut nets[usize::from(of_net)];
            if !contents.is_empty() {
                let at = at.index(contents.len());
                contents[at] = byte;
            }
        }
        let [init, net] = &mut nets;
        if let Some(cut) = cut {
            net.truncate(cut.index(net.len() + 1));
        }
        convert(init, net, &inputs(dims));
    }
}

#[test]
fn inputs_of_any_shape_are_refused_or_converted() {
    let shapes = [
        None,
        Some(vec![]),
        Some(vec![None]),
        Some(vec![Some(0); 2]),
        Some(vec![Some(i64::MAX); 4]),
        Some(vec![Some(-1), None, Some(i64::MIN)]),
        Some(vec![Some(1); 70]),
    ];
    for [init, net] in &*NETS {
        for dims in &shapes {
            convert(init, net, &inputs(dims.clone()));
        }
    }
}
