//! Kept JSON parts decode to the same requests and the same errors as new ones.

use bytes::Bytes;
use nereid_core::Signature;
use nereid_core::backend_api::Error;
use nereid_http::Limit;
use nereid_shared_memory::Regions;
use nereid_testkit::config;
use proptest::prelude::*;

use super::*;
use crate::infer::decode::json;

const MODEL: &str = r#"
    input { name: "A" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
    input { name: "B" data_type: TYPE_STRING dims: [ -1 ] optional: true }
    output { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "Y" data_type: TYPE_STRING dims: [ -1 ] }
"#;

/// The fields of a decoded request, as text.
fn decoded(text: &str, binary: &[u8]) -> Result<String, Error> {
    let signature = Signature::new(&config("m", MODEL)).unwrap();
    let mut body = RequestBody::from(Bytes::from([text.as_bytes(), binary].concat()));
    let limit = Limit { bytes: 1 << 16, option: "" };
    let decoded = json(&mut body, text.len(), "m", &signature, limit, &Regions::default())?;
    let DecodedRequest { request, format, .. } = decoded;
    let inputs: Vec<_> = request
        .inputs
        .iter()
        .map(|input| (&input.name, input.data_type, &input.shape, input.contiguous().map(|it| it.to_vec())))
        .collect();
    let InferRequest { id, outputs, parameters, correlation_id, sequence, priority, timeout, .. } = &request;
    let parameters: Vec<_> = parameters.iter().collect();
    Ok(format!(
        "{id} {inputs:?} {outputs:?} {parameters:?} {correlation_id:?} {sequence:?} {priority} {timeout:?} {format:?}"
    ))
}

/// Whether a JSON part is kept in parsed form.
fn is_kept(text: &str) -> bool {
    SEEN.with_borrow(|seen| {
        let seen = &seen[place(text.as_bytes())];
        seen.json == text.as_bytes() && seen.parsed.is_some()
    })
}

fn input(name: &str, rest: &str) -> String {
    format!(r#"{{"name":"{name}","shape":[1],"datatype":"FP32",{rest}}}"#)
}

#[test]
fn only_what_depends_on_nothing_else_is_kept() {
    let binary = r#""parameters":{"binary_data_size":4}"#;
    let output = |rest: &str| format!(r#"{{"name":"X","parameters":{{{rest}}}}}"#);
    for (inputs, outputs, size, expected) in [
        (input("A", binary), String::new(), 4, true),
        (input("A", binary), output(r#""binary_data":true"#), 4, true),
        (input("A", binary), output(r#""classification":2"#), 4, true),
        (format!("{},{}", input("A", binary), input("B", binary)), String::new(), 8, true),
        (String::new(), String::new(), 0, false),
        (input("A", r#""data":[1]"#), String::new(), 0, false),
        (input("A", r#""data":[1]"#), String::new(), 4, false),
        (format!("{},{}", input("A", binary), input("B", r#""data":[1]"#)), String::new(), 4, false),
        (
            input("A", r#""parameters":{"shared_memory_region":"r","shared_memory_byte_size":4}"#),
            String::new(),
            0,
            false,
        ),
        (input("A", binary), output(r#""shared_memory_region":"r","shared_memory_byte_size":4"#), 4, false),
        (input("A", binary), format!("{},{}", output(""), output("")), 4, false),
    ] {
        let text = format!(r#"{{"inputs":[{inputs}],"outputs":[{outputs}]}}"#);
        let first = decoded(&text, &vec![7; size]);
        for time in 2..6 {
            assert!(!is_kept(&text) || time > 2, "{text}");
            assert_eq!(decoded(&text, &vec![7; size]), first, "{text}");
            assert_eq!(is_kept(&text), expected, "{text}");
        }
    }
    for text in [
        format!("\u{feff}{{\"inputs\":[{}]}}", input("A", binary)),
        format!(r#"{{"id":"{}","inputs":[]}}"#, "i".repeat(LONGEST)),
    ] {
        let first = decoded(&text, &[7; 4]);
        assert!((2..6).all(|_| decoded(&text, &[7; 4]) == first && !is_kept(&text)), "{text}");
    }
}

#[test]
fn a_kept_json_part_is_checked_against_each_model_and_body() {
    let text = format!(r#"{{"inputs":[{}]}}"#, input("A", r#""parameters":{"binary_data_size":4}"#));
    let all = |sizes: &[usize]| {
        sizes.iter().map(|size| decoded(&text, &vec![7; *size]).is_ok()).collect::<Vec<_>>()
    };
    assert_eq!(all(&[4, 4, 4, 3, 5, 0, 4]), [true, true, true, false, false, false, true]);
    let few =
        Signature::new(&config("m", r#"output { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }"#)).unwrap();
    let many = vec![input("A", r#""parameters":{"binary_data_size":1}"#); 12].join(",");
    let text = format!(r#"{{"inputs":[{many}]}}"#);
    let ask = |signature: &Signature| {
        let mut body = RequestBody::from(Bytes::from([text.as_bytes(), &[7; 12]].concat()));
        let limit = Limit { bytes: 1 << 16, option: "" };
        let decoded = json(&mut body, text.len(), "m", signature, limit, &Regions::default());
        decoded.map(|decoded| decoded.request.inputs.len()).map_err(|error| error.to_string())
    };
    let first = ask(&few);
    assert!((0..4).all(|_| ask(&few) == first));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn repetitions_decode_as_the_first_time(
        texts in proptest::collection::vec(
            (0..4_u8, proptest::option::of("[a-c]{0,2}"), 0..3_usize, 0..3_u64, proptest::option::of(0..3_u8)),
            1..6,
        ),
        order in proptest::collection::vec((0..6_usize, 0..12_usize), 1..60),
    ) {
        let text = |(form, id, inputs, size, parameter): &(u8, Option<String>, usize, u64, Option<u8>)| {
            let id = id.as_ref().map_or_else(String::new, |id| format!(r#""id":"{id}","#));
            let parameters = parameter.map_or_else(String::new, |value| {
                format!(r#""parameters":{{"priority":{value},"sequence_id":{value},"sequence_start":true,"p":"{value}"}},"#)
            });
            let form = match form {
                0 => r#""data":[1]"#.to_owned(),
                _ => format!(r#""parameters":{{"binary_data_size":{}}}"#, size * 2),
            };
            let inputs: Vec<_> = ["A", "B", "A"].iter().take(*inputs).map(|name| input(name, &form)).collect();
            format!(r#"{{{id}{parameters}"inputs":[{}]}}"#, inputs.join(","))
        };
        let texts: Vec<_> = texts.iter().map(text).collect();
        for (index, size) in order {
            let text = &texts[index % texts.len()];
            let body = vec![9; size];
            let repeated = decoded(text, &body).map_err(|error| error.to_string());
            // Another thread has seen none.
            let (text, body) = (text.clone(), body.clone());
            let first = std::thread::spawn(move || decoded(&text, &body).map_err(|error| error.to_string()));
            prop_assert_eq!(repeated, first.join().unwrap());
        }
    }
}
