//! Any file is converted to ONNX or refused: no panic, and no unbounded growth.

use std::sync::LazyLock;

use nereid_netdef::{Element, Input, Nets};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// The nets of `tests/netdef/operators.bin`: for each case, the one that initialises weights and the one that computes.
static NETS: LazyLock<Vec<[Vec<u8>; 2]>> = LazyLock::new(|| {
    let cases = fields(include_bytes!("../../../tests/netdef/operators.bin"));
    cases.into_iter().map(|(_, case)| [2, 3].map(|number| field(case, number))).collect()
});

fn field(message: &[u8], number: u64) -> Vec<u8> {
    let found = fields(message).into_iter().find(|field| field.0 == number);
    found.map_or_else(Vec::new, |field| field.1.to_vec())
}

fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = usize::try_from(varint(&mut message)).unwrap();
        let (field, rest) = message.split_at(length);
        found.push((key >> 3, field));
        message = rest;
    }
    found
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = message.split_first().unwrap();
        *message = rest;
        number |= u64::from(byte & 127) << shift;
        if *byte < 128 {
            break;
        }
    }
    number
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
    fn a_damaged_net_is_refused_or_turned_into_onnx(
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
fn inputs_of_any_shape_are_refused_or_turned_into_onnx() {
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
