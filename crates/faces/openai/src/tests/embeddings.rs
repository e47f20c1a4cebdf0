//! Embeddings by vLLM's contract, and from tensors.

use super::*;

const VLLM_EMBEDDINGS: &str = r#"
    input [
        { name: "text_input" data_type: TYPE_STRING dims: 1 },
        { name: "embedding_request" data_type: TYPE_STRING dims: 1 optional: true },
        { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: 1 optional: true }
    ]
    output [
        { name: "text_output" data_type: TYPE_STRING dims: -1 },
        { name: "num_input_tokens" data_type: TYPE_UINT32 dims: 1 }
    ]
"#;

fn tensors(more: &str, dims: &str) -> String {
    format!(
        r#"input [{{ name: "text" data_type: TYPE_STRING dims: 1 }}]
        output [{{ name: "embedding" data_type: TYPE_FP32 dims: [{dims}] }}] {more}"#
    )
}

/// Answers each text with one row, or a row for each of its characters: the number of characters, and the row's own number from 1 on.
fn rows(by_character: bool) -> impl Fn(Request) + Send + Sync + 'static {
    move |request| {
        let contents = request.inputs[0].contiguous().unwrap().into_owned();
        let (mut numbers, mut texts, mut tokens) = (Vec::new(), 0, 1);
        for text in BytesElements::new(&contents) {
            let length = text.unwrap().len();
            texts += 1;
            tokens = if by_character { length } else { 1 };
            for row in 1..=tokens {
                numbers.extend([length as f32, row as f32]);
            }
        }
        let mut shape: Vec<i64> = if request.inputs[0].shape.len() == 2 { vec![texts] } else { Vec::new() };
        if by_character {
            shape.push(tokens as i64);
        }
        shape.push(2);
        let bytes: Vec<u8> = numbers.iter().flat_map(|number: &f32| number.to_le_bytes()).collect();
        request.answer(Ok(Response::new(vec![Tensor::new("embedding", DataType::Fp32, &shape[..], bytes)])));
    }
}

async fn embed(site: &Site, fields: Value) -> Answer {
    let mut request = json!({"model": "bare"});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    site.post("/v1/embeddings", &request).await
}

fn vectors(answer: &Answer) -> Value {
    let json = answer.json();
    assert_eq!(json["object"], "list", "{json}");
    json["data"].as_array().unwrap().iter().map(|entry| entry["embedding"].clone()).collect()
}

#[tokio::test]
async fn vllm_gets_a_request_for_each_text() {
    let site = site(VLLM_EMBEDDINGS, |request| {
        let input = inputs_of(&request)["embedding_request"]["input"].clone();
        let first = input.as_str().map_or_else(|| input[0].as_f64().unwrap(), |text| text.len() as f64);
        let mut response = text_response(&format!("[{first}, 0.5]"), []);
        response.outputs.push(count("num_input_tokens", 3));
        request.answer(Ok(response));
    })
    .await;
    let answer = embed(&site, json!({"input": ["a", "bcd"], "dimensions": 2})).await;
    assert_eq!(vectors(&answer), json!([[1.0, 0.5], [3.0, 0.5]]));
    assert_eq!(answer.json()["usage"], json!({"prompt_tokens": 6, "total_tokens": 6}));
    assert_eq!(
        site.last_seen()["embedding_request"],
        json!({"input": "bcd", "pooling_params": {"dimensions": [2]}})
    );
    // A required prompt is empty.
    assert_eq!(site.last_seen()["text_input"], "");
    assert_eq!(
        vectors(&embed(&site, json!({"input": [[7, 8], [9]]})).await),
        json!([[7.0, 0.5], [9.0, 0.5]])
    );
    assert_eq!(vectors(&embed(&site, json!({"input": [7, 8]})).await), json!([[7.0, 0.5]]));
    // 3.0 and 0.5 as little-endian FP32.
    let encoded = embed(&site, json!({"input": "abc", "encoding_format": "base64"})).await;
    assert_eq!(vectors(&encoded), json!(["AABAQAAAAD8="]));
}

#[tokio::test]
async fn tensors_become_vectors_by_the_configuration() {
    let parameter = |name: &str, value: &str| {
        format!(r#"parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}"#)
    };
    for (more, dims, by_character, input, expected, requests) in [
        (String::new(), "2", false, json!(["a", "bc"]), json!([[1.0, 1.0], [2.0, 1.0]]), 2),
        (
            "max_batch_size: 2".to_owned(),
            "2",
            false,
            json!(["a", "bc", "d"]),
            json!([[1.0, 1.0], [2.0, 1.0], [1.0, 1.0]]),
            2,
        ),
        (String::new(), "-1, 2", true, json!("abc"), json!([[3.0, 2.0]]), 1),
        (
            "max_batch_size: 4".to_owned(),
            "-1, 2",
            true,
            json!(["ab", "cd"]),
            json!([[2.0, 1.5], [2.0, 1.5]]),
            1,
        ),
        (parameter("pooling", "cls"), "-1, 2", true, json!("abc"), json!([[3.0, 1.0]]), 1),
        (parameter("pooling", "last"), "-1, 2", true, json!("abc"), json!([[3.0, 3.0]]), 1),
        (
            format!("{} {}", parameter("pooling", "last"), parameter("normalize", "true")),
            "-1, 2",
            true,
            json!("abcd"),
            json!([[0.70710677, 0.70710677]]),
            1,
        ),
    ] {
        let site = site(&tensors(&more, dims), rows(by_character)).await;
        let answer = embed(&site, json!({"input": input})).await;
        assert_eq!(vectors(&answer), expected, "{more}");
        assert_eq!(answer.json()["usage"], json!(null));
        assert_eq!(site.seen.lock().unwrap().len(), requests, "{more}");
    }
}

#[tokio::test]
async fn shorter_vectors_are_beginnings_where_the_model_is_made_for_it() {
    let nested = r#"parameters { key: "matryoshka" value { string_value: "true" } }"#;
    let site = site(&tensors(nested, "2"), rows(false)).await;
    assert_eq!(vectors(&embed(&site, json!({"input": "abc", "dimensions": 1})).await), json!([[1.0]]));
    let answer = embed(&site, json!({"input": "abc", "dimensions": 3})).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("dimensions")));
}

#[tokio::test]
async fn wrong_requests_and_models_are_refused_by_name() {
    let site = site(&tensors("", "2"), rows(false)).await;
    for (fields, param) in [
        (json!({}), "input"),
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ["a", ""]}), "input"),
        (json!({"input": [1, 2]}), "input"),
        (json!({"input": {"text": "a"}}), "input"),
        (json!({"input": vec!["a"; 2049]}), "input"),
        (json!({"input": "a", "dimensions": 1}), "dimensions"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "encoding_format": "hex"}), "encoding_format"),
        (json!({"input": "a", "task": "query"}), "task"),
        (json!({"input": "a", "model": "plain"}), "model"),
    ] {
        let answer = embed(&site, fields.clone()).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{fields}: {}",
            answer.body
        );
    }
    let chat = site.post("/v1/completions", &json!({"model": "bare", "prompt": "a"})).await;
    assert_eq!(chat.json()["error"]["param"], "model");
    let list = site.ask("GET", "/v1/models", "").await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn faults_of_a_model_are_its_own() {
    let broken = site(VLLM_EMBEDDINGS, |request| request.answer(Ok(text_response("[1, \"a\"]", [])))).await;
    assert_eq!(embed(&broken, json!({"input": "a"})).await.status, 500);
    let empty = site(&tensors("", "2"), |request| request.answer(Ok(Response::default()))).await;
    assert_eq!(embed(&empty, json!({"input": "a"})).await.status, 500);
    let unknown = r#"parameters { key: "pooling" value { string_value: "median" } }"#;
    let unknown = site(&tensors(unknown, "2"), rows(false)).await;
    let answer = embed(&unknown, json!({"input": "a"})).await;
    assert!(
        answer.status == 500 && answer.body.contains("pooling: unknown value 'median'"),
        "{}",
        answer.body
    );
}
