//! Requests have equal keys exactly if they are equal by a plainly written rule.

use super::*;
use crate::key::KeyMaker;
use nereid_core::Signature;

/// The parts of a request.
#[derive(Clone, Debug)]
pub(super) struct PlainRequest {
    inputs: Vec<(&'static str, Vec<i64>, Vec<u8>)>,
    /// Whether the inputs are in the other order.
    turned: bool,
    /// Where the first input is cut in two.
    cut: usize,
    parameters: Vec<(&'static str, ParameterValue)>,
    sequence: (u64, bool),
    outputs: Vec<&'static str>,
}

impl PlainRequest {
    pub(super) fn build(&self) -> InferRequest {
        let mut inputs: Vec<_> =
            self.inputs.iter().map(|(name, shape, contents)| tensor(name, shape, contents.clone())).collect();
        if let Some(first) = inputs.first_mut() {
            let whole = first.buffers[0].as_host().unwrap().clone();
            let cut = self.cut.min(whole.len());
            first.buffers = [whole.slice(..cut), whole.slice(cut..)].map(Buffer::host).into_iter().collect();
        }
        if self.turned {
            inputs.reverse();
        }
        let mut request = InferRequest { inputs, ..InferRequest::default() };
        for (name, value) in &self.parameters {
            request.parameters.set(*name, value.clone());
        }
        if self.sequence.0 > 0 {
            request.correlation_id = CorrelationId::Number(self.sequence.0);
        }
        request.sequence = SequenceFlags { start: self.sequence.1, end: false };
        request.outputs = self.outputs.iter().map(|name| RequestedOutput::new(*name)).collect();
        request
    }

    pub(super) fn with_all_outputs(&self) -> Self {
        Self { outputs: Vec::new(), ..self.clone() }
    }

    /// Equal for requests that have the same answer.
    pub(super) fn rule(&self) -> String {
        let parameters: BTreeMap<_, _> =
            self.parameters.iter().map(|(name, value)| (name, format!("{value:?}"))).collect();
        let mut outputs: Vec<_> = self.outputs.clone();
        outputs.sort_unstable();
        outputs.dedup();
        if outputs.len() == 2 {
            outputs.clear();
        }
        format!("{:?} {parameters:?} {:?} {outputs:?}", self.inputs, self.sequence)
    }
}

pub(super) fn any_request() -> impl Strategy<Value = PlainRequest> {
    // Few values, so that many requests are equal or nearly equal.
    let bit = || 0..2_u8;
    let first = prop::collection::vec(bit(), 0..3).prop_map(|it| ("A", vec![it.len() as i64], it));
    let shapes = prop_oneof![Just(vec![1, 2]), Just(vec![2, 1])];
    let second = (shapes, bit(), bit()).prop_map(|(shape, one, other)| ("B", shape, vec![one, other]));
    let inputs = (first, prop::option::of(second))
        .prop_map(|(first, second)| [first].into_iter().chain(second).collect::<Vec<_>>());
    let values = prop_oneof![
        any::<bool>().prop_map(ParameterValue::Bool),
        (0..2_i64).prop_map(ParameterValue::Int),
        Just(ParameterValue::Double(1.0)),
        Just(ParameterValue::String("1".into())),
    ];
    let names = prop_oneof![Just("p"), Just("q")];
    let parameters = prop::collection::btree_map(names, values, 0..3)
        .prop_map(|it| it.into_iter().collect::<Vec<_>>())
        .prop_shuffle();
    let outputs = prop_oneof![
        3 => Just(vec![]),
        1 => Just(vec!["Y"]),
        1 => Just(vec!["Z"]),
        1 => Just(vec!["Z", "Y"]),
        1 => Just(vec!["Y", "Y"]),
    ];
    let sequence = prop_oneof![5 => Just((0, false)), 1 => Just((3, false)), 1 => Just((3, true))];
    (inputs, any::<bool>(), 0..3_usize, parameters, sequence, outputs).prop_map(
        |(inputs, turned, cut, parameters, sequence, outputs)| PlainRequest {
            inputs,
            turned,
            cut,
            parameters,
            sequence,
            outputs,
        },
    )
}

fn signature() -> Signature {
    Signature::new(&model_config::parse_text(TENSORS).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn keys_are_equal_exactly_for_equal_requests(one in any_request(), other in any_request()) {
        for scope in [CacheScope::Server, CacheScope::Shared] {
            let keys = KeyMaker::new(scope, 1, &[0; 32]);
            let of = |request: &PlainRequest| keys.keys(&request.build(), &signature(), None).unwrap();
            let (first, second) = (of(&one), of(&other));
            prop_assert_eq!(first.own == second.own, one.rule() == other.rule(), "{:?} {:?}", one, other);
            prop_assert_eq!(of(&one), first);
            // The second key belongs to the same request with all outputs.
            prop_assert_eq!(first.all.unwrap_or(first.own), of(&one.with_all_outputs()).own);
        }
    }

    /// However the contents are cut, small and large.
    #[test]
    fn contents_count_and_not_their_pieces(length in 0..2000_usize, cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5), flip in any::<prop::sample::Index>()) {
        let contents: Vec<u8> = (0..length).map(|place| place as u8).collect();
        let keys = KeyMaker::new(CacheScope::Server, 1, &[0; 32]);
        let whole = keys.keys(&request(&contents), &signature(), None);
        let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(length + 1)).chain([0, length]).collect();
        places.sort_unstable();
        let mut input = tensor("A", &[length as i64], Bytes::new());
        input.buffers =
            places.windows(2).map(|ends| Buffer::host(contents[ends[0]..ends[1]].to_vec())).collect();
        let pieces = InferRequest { inputs: vec![input], ..InferRequest::default() };
        prop_assert_eq!(keys.keys(&pieces, &signature(), None), whole);
        if length > 0 {
            let mut other = contents;
            other[flip.index(length)] ^= 1;
            prop_assert!(keys.keys(&request(&other), &signature(), None) != whole);
        }
    }
}

#[test]
fn keys_tell_loads_identities_and_members_apart() {
    let key = |scope, load, identity, members: Option<&[u8; 32]>| {
        KeyMaker::new(scope, load, &[identity; 32]).keys(&request(b"abc"), &signature(), members).unwrap().own
    };
    for scope in [CacheScope::Server, CacheScope::Shared] {
        let base = *key(scope, 1, 1, None).digest();
        assert_eq!(*key(scope, 1, 1, None).digest(), base);
        assert_ne!(*key(scope, 1, 2, None).digest(), base);
        assert_ne!(*key(scope, 1, 1, Some(&[0; 32])).digest(), base);
        // Other servers, and later loads of the same files, use shared entries.
        assert_eq!(*key(scope, 2, 1, None).digest() == base, scope == CacheScope::Shared);
    }
}
