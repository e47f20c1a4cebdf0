//! Answers are the same whether their JSON part is kept or not.

use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::*;
use crate::testing::{echo, http_options, serve, server};

const CONFIG: &str = r#"
    input { name: "IN0" data_type: TYPE_INT32 dims: [ -1 ] optional: true }
    input { name: "IN1" data_type: TYPE_UINT8 dims: [ -1 ] optional: true }
    output { name: "OUT0" data_type: TYPE_INT32 dims: [ -1 ] }
    output { name: "OUT1" data_type: TYPE_UINT8 dims: [ -1 ] }
"#;

/// A request, and the JSON part of its answer.
#[derive(Clone, Debug)]
struct Exchange {
    id: &'static str,
    parameters: &'static str,
    /// The elements of each input, if it is there.
    counts: [Option<usize>; 2],
    is_binary: bool,
}

impl Exchange {
    fn tensors(&self, name: &str, end: impl Fn(usize, usize) -> String) -> String {
        let types = [("INT32", 4), ("UINT8", 1)];
        let tensors =
            self.counts.iter().zip(types).enumerate().filter_map(|(index, (count, (datatype, size)))| {
                let count = (*count)?;
                let end = end(count, size * count);
                Some(format!(r#"{{"name":"{name}{index}","datatype":"{datatype}","shape":[{count}],{end}}}"#))
            });
        tensors.collect::<Vec<_>>().join(",")
    }

    fn id(&self) -> String {
        if self.id.is_empty() { String::new() } else { format!(r#""id":"{}","#, self.id) }
    }

    fn request(&self) -> String {
        let (id, parameters, is_binary) = (self.id(), self.parameters, self.is_binary);
        let comma = if parameters.is_empty() { "" } else { "," };
        let inputs = self.tensors("IN", |_, size| format!(r#""parameters":{{"binary_data_size":{size}}}"#));
        format!(
            r#"{{{id}"parameters":{{"binary_data_output":{is_binary}{comma}{parameters}}},"inputs":[{inputs}]}}"#
        )
    }

    fn answer(&self) -> String {
        let (id, parameters) = (self.id(), self.parameters);
        let parameters = match parameters {
            "" => String::new(),
            parameters => format!(r#""parameters":{{{parameters}}},"#),
        };
        let outputs = self.tensors("OUT", |count, size| match self.is_binary {
            true => format!(r#""parameters":{{"binary_data_size":{size}}}"#),
            false => format!(r#""data":[{}]"#, vec!["0"; count].join(",")),
        });
        format!(r#"{{{id}"model_name":"m","model_version":"1",{parameters}"outputs":[{outputs}]}}"#)
    }
}

fn exchanges() -> impl Strategy<Value = Exchange> {
    let parameters =
        ["", r#""a":1"#, r#""a":true"#, r#""a":0.0"#, r#""a":-0.0"#, r#""a":"x\"y""#, r#""b":1.5,"a":1"#];
    let count = prop::option::weighted(0.8, 0..3_usize);
    (
        prop::sample::select(vec!["", "", "1", "\u{e9}"]),
        prop::sample::select(parameters.to_vec()),
        [count.clone(), count],
        prop::bool::weighted(0.8),
    )
        .prop_map(|(id, parameters, counts, is_binary)| Exchange { id, parameters, counts, is_binary })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn answers_in_any_order_have_their_own_json(exchanges in prop::collection::vec(exchanges(), 1..6), order in prop::collection::vec(any::<prop::sample::Index>(), 40)) {
        Runtime::new().unwrap().block_on(async {
            let serving = serve(server(CONFIG, echo), http_options()).await;
            for index in order {
                let exchange = index.get(&exchanges);
                let request = exchange.request();
                let size: usize = exchange.counts[0].map_or(0, |count| 4 * count) + exchange.counts[1].unwrap_or(0);
                let body = [request.as_bytes(), &vec![0; size]].concat();
                let header = format!("Inference-Header-Content-Length: {}\r\n", request.len());
                let reply = serving.send("POST", "/v2/models/m/infer", &header, &body).await;
                let reply = String::from_utf8(reply).unwrap();
                let json = reply.split_once("\r\n\r\n").unwrap().1.trim_end_matches('\0');
                assert_eq!(json, exchange.answer(), "{request}");
            }
        });
    }
}

#[test]
fn model_whose_answers_differ_is_kept_less_often() {
    let mut place = Place { answer: None, misses: 0 };
    let kept = (0..1000).filter(|_| place.misses_again()).count();
    assert_eq!(kept, usize::from(PATIENCE) + (1000 - usize::from(PATIENCE)) / usize::from(PATIENCE));
    place.misses = 0;
    assert!(place.misses_again());
}
