//! Embeddings and scores by models of tokens, whose tokenizer is a file.

use std::fs;

use tempfile::TempDir;

use super::*;

const PAD: i64 = 0;
/// A folder with a tokenizer and further files.
fn folder(files: &[(&str, Value)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), nereid_testkit::TOKENIZER).unwrap();
    for (name, contents) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents.to_string()).unwrap();
    }
    folder
}

/// A configuration with these inputs and one output.
fn config_of(inputs: &[&str], dims: &str, output: &str, output_dims: &str, more: &str) -> String {
    let inputs: Vec<_> = inputs
        .iter()
        .map(|name| format!("{{ name: \"{name}\" data_type: TYPE_INT64 dims: [{dims}] }}"))
        .collect();
    format!(
        "input [{}] output [{{ name: \"{output}\" data_type: TYPE_FP32 dims: [{output_dims}] }}] {more}",
        inputs.join(",")
    )
}

const BOTH: [&str; 2] = ["input_ids", "attention_mask"];

fn encoder(more: &str) -> String {
    config_of(&BOTH, "-1, -1", "last_hidden_state", "-1, -1, 2", more)
}

fn numbers(request: &Request, name: &str) -> Vec<i64> {
    let input = request.inputs.iter().find(|input| input.name == name).unwrap();
    input.contiguous().unwrap().as_chunks().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
}

fn reply(request: Request, output: &str, shape: &[i64], values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    request.answer(Ok(Response::new(vec![Tensor::new(output, DataType::Fp32, shape, bytes)])));
}

/// The vector of a token is its number, and the place in its row. Padding has vectors that would be noticed.
fn vectors_of_tokens(request: Request) {
    let shape = request.inputs[0].shape.clone();
    let (ids, mask) = (numbers(&request, "input_ids"), numbers(&request, "attention_mask"));
    let columns = shape[1];
    let values: Vec<f32> = ids
        .iter()
        .zip(mask)
        .zip(0..)
        .flat_map(|((id, mask), place)| match mask {
            0 => [1e9, -1e9],
            _ => [*id as f32, (place % columns) as f32],
        })
        .collect();
    reply(request, "last_hidden_state", &[shape[0], columns, 2], &values);
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
async fn texts_and_tokens_become_vectors_in_the_order_of_the_request() {
    let files = folder(&[]);
    for (config, requests) in [
        (encoder(""), 1),
        (config_of(&BOTH, "-1", "last_hidden_state", "-1, 2", "max_batch_size: 2"), 2),
        (config_of(&BOTH, "-1", "last_hidden_state", "-1, 2", "max_batch_size: 2 dynamic_batching {}"), 2),
        (config_of(&BOTH, "1, -1", "last_hidden_state", "1, -1, 2", ""), 3),
        (config_of(&BOTH, "-1, 8", "last_hidden_state", "-1, 8, 2", ""), 1),
    ] {
        let site = site_in(files.path(), &config, vectors_of_tokens).await;
        let answer = embed(&site, json!({"input": ["a", "a b c", "b b"]})).await;
        assert_eq!(vectors(&answer), json!([[3.0, 1.0], [4.0, 2.0], [3.75, 1.5]]), "{config}");
        assert_eq!(answer.json()["usage"], json!({"prompt_tokens": 12, "total_tokens": 12}));
        assert_eq!(site.seen.lock().unwrap().len(), requests, "{config}");
        assert_eq!(vectors(&embed(&site, json!({"input": [4, 6]})).await), json!([[5.0, 0.5]]));
        assert_eq!(
            vectors(&embed(&site, json!({"input": [[4], [6, 6]]})).await),
            json!([[4.0, 0.0], [6.0, 0.5]])
        );
        let list = site.ask("GET", "/v1/models", "").await.json();
        assert_eq!(list["data"].as_array().unwrap().len(), 2, "{list}");
        assert_eq!(list["data"][0]["capabilities"], json!(["embeddings"]));
    }
}

#[tokio::test]
async fn only_inputs_that_the_model_has_are_sent() {
    let all = ["position_ids", "token_type_ids", "attention_mask", "input_ids"];
    let files = folder(&[("tokenizer_config.json", json!({"padding_side": "left"}))]);
    let config = config_of(&all, "-1, -1", "last_hidden_state", "-1, -1, 2", "");
    let site = site_in(files.path(), &config, vectors_of_tokens).await;
    let answer = embed(&site, json!({"input": ["a", "a b c"]})).await;
    assert_eq!(vectors(&answer), json!([[3.0, 3.0], [4.0, 2.0]]));
    assert_eq!(
        site.last_seen(),
        json!({
            "input_ids": [2, 4, 5, 6, 3, PAD, PAD, 2, 4, 3], "attention_mask": [1, 1, 1, 1, 1, 0, 0, 1, 1, 1],
            "token_type_ids": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "position_ids": [0, 1, 2, 3, 4, 0, 0, 0, 1, 2]
        })
    );
    // Rows of a model without a mask cannot be filled, so each has a request of its own.
    let script = |request: Request| {
        let sum = numbers(&request, "input_ids").iter().sum::<i64>();
        reply(request, "sentence_embedding", &[1, 1], &[sum as f32]);
    };
    let config = config_of(&["input_ids"], "-1, -1", "sentence_embedding", "-1, 1", "");
    let site = site_in(files.path(), &config, script).await;
    assert_eq!(vectors(&embed(&site, json!({"input": ["a", "a b c"]})).await), json!([[9.0], [20.0]]));
    assert_eq!(site.seen.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn rows_are_rounded_up_where_other_requests_may_join() {
    let files = folder(&[]);
    let config =
        config_of(&BOTH, "-1", "last_hidden_state", "-1, 2", "max_batch_size: 8 dynamic_batching {}");
    let site = site_in(files.path(), &config, vectors_of_tokens).await;
    assert_eq!(vectors(&embed(&site, json!({"input": "a"})).await), json!([[3.0, 1.0]]));
    assert_eq!(site.last_seen()["attention_mask"].as_array().unwrap().len(), 16);
}

#[tokio::test]
async fn files_and_parameters_say_what_becomes_of_the_vectors() {
    let modules = json!([
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}
    ]);
    let prompts = json!({"prompts": {"query": "query: ", "text": ""}, "default_prompt_name": "query"});
    let files = folder(&[
        ("modules.json", modules),
        ("1_Pooling/config.json", json!({"pooling_mode_cls_token": true, "include_prompt": false})),
        ("config_sentence_transformers.json", prompts),
    ]);
    let site = site_in(files.path(), &encoder(""), vectors_of_tokens).await;
    let shared = &site;
    let embedding = |fields: Value| async move {
        let answer = embed(shared, fields).await;
        vectors(&answer)[0].clone()
    };
    // The first token behind "[CLS] query :" has the number 4 and the place 3.
    assert_eq!(embedding(json!({"input": "a"})).await, json!([0.8, 0.6]));
    assert_eq!(embedding(json!({"input": "a", "prompt_name": "text"})).await, json!([1.0, 0.0]));
    assert_eq!(embedding(json!({"input": [4, 5]})).await, json!([1.0, 0.0]));
    let unknown = embed(&site, json!({"input": "a", "prompt_name": "x"})).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (400, &json!("prompt_name")));
    let parameters = r#"parameters { key: "pooling" value { string_value: "last" } }
        parameters { key: "normalize" value { string_value: "false" } }
        parameters { key: "matryoshka" value { string_value: "true" } }"#;
    let site = site_in(files.path(), &encoder(parameters), vectors_of_tokens).await;
    let request = json!({"input": "a", "prompt_name": "text"});
    assert_eq!(vectors(&embed(&site, request).await), json!([[3.0, 2.0]]));
    let shorter = embed(&site, json!({"input": "a", "dimensions": 1, "encoding_format": "base64"})).await;
    assert_eq!(vectors(&shorter), json!(["AACAPw=="]));
    let longer = embed(&site, json!({"input": "a", "dimensions": 3})).await;
    assert_eq!((longer.status, &longer.json()["error"]["param"]), (400, &json!("dimensions")));
}

#[tokio::test]
async fn long_texts_are_refused_or_cut() {
    let files = folder(&[("sentence_bert_config.json", json!({"max_seq_length": 4}))]);
    let site = site_in(files.path(), &encoder(""), vectors_of_tokens).await;
    let answer = embed(&site, json!({"input": ["a", "a b c"]})).await;
    assert_eq!(answer.status, 400);
    let error = &answer.json()["error"];
    assert_eq!(
        error["message"],
        "'input[1]' has 5 tokens, but the model takes 4 at most; with 'truncate_prompt_tokens': -1 it is cut"
    );
    assert_eq!((&error["param"], &error["code"]), (&json!("input"), &json!("context_length_exceeded")));
    for (field, value, ids) in [
        ("truncate_prompt_tokens", json!(-1), vec![2, 4, 5, 3]),
        ("truncate_prompt_tokens", json!(3), vec![2, 4, 3]),
        ("truncate_prompt_tokens", json!(100), vec![2, 4, 5, 3]),
        ("truncate", json!(true), vec![2, 4, 5, 3]),
    ] {
        let answer = embed(&site, json!({"input": "a b c", field: value})).await;
        assert_eq!(answer.json()["usage"]["total_tokens"], ids.len(), "{field} {value}");
        assert_eq!(site.last_seen()["input_ids"], json!(ids), "{field} {value}");
    }
    let parameter = r#"parameters { key: "truncate" value { string_value: "true" } }"#;
    let site = site_in(files.path(), &encoder(parameter), vectors_of_tokens).await;
    assert_eq!(embed(&site, json!({"input": "a b c"})).await.status, 200);
    assert_eq!(embed(&site, json!({"input": "a b c", "truncate": false})).await.status, 400);
}

#[tokio::test]
async fn wrong_requests_are_refused_by_name() {
    let files = folder(&[]);
    let site = site_in(files.path(), &encoder(""), vectors_of_tokens).await;
    let huge = "a ".repeat(1 << 19);
    for (fields, param) in [
        (json!({"input": ""}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": [[]]}), "input"),
        (json!({"input": [[4], []]}), "input"),
        (json!({"input": [10]}), "input"),
        (json!({"input": [-1]}), "input"),
        (json!({"input": [[4], [4_000_000_000_u32]]}), "input"),
        (json!({"input": vec!["a"; 2049]}), "input"),
        (json!({"input": vec!["a"; 100_000]}), "input"),
        (json!({"input": huge}), "input"),
        (json!({"input": "a", "dimensions": 1}), "dimensions"),
        (json!({"input": "a", "truncate_prompt_tokens": 0}), "truncate_prompt_tokens"),
        (json!({"input": "a", "truncate_prompt_tokens": -2}), "truncate_prompt_tokens"),
        (json!({"input": "a", "truncate": "END"}), "truncate"),
        (json!({"input": "a", "task": "query"}), "task"),
    ] {
        let answer = embed(&site, fields).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{}",
            answer.body
        );
    }
    assert_eq!(embed(&site, json!({"input": "a"})).await.status, 200);
    let rerank = json!({"model": "bare", "query": "a", "documents": ["b"]});
    assert_eq!(site.post("/v1/rerank", &rerank).await.json()["error"]["param"], "model");
}

#[tokio::test]
async fn faults_of_files_and_models_are_their_own() {
    let damaged = folder(&[]);
    fs::write(damaged.path().join("tokenizer.json"), "{\"version\":").unwrap();
    let site = site_in(damaged.path(), &encoder(""), vectors_of_tokens).await;
    let answer = embed(&site, json!({"input": "a"})).await;
    assert!(answer.status == 500 && answer.body.contains("tokenizer.json: EOF"), "{}", answer.body);

    let files =
        folder(&[("modules.json", json!([{"path": "1_CNN", "type": "sentence_transformers.models.CNN"}]))]);
    let site = site_in(files.path(), &encoder(""), vectors_of_tokens).await;
    let answer = embed(&site, json!({"input": "a"})).await;
    assert!(
        answer.status == 500 && answer.body.contains("the module 'CNN' is not supported"),
        "{}",
        answer.body
    );

    let files = folder(&[]);
    for shape in [vec![1, 3], vec![1, 2, 2], vec![2, 3, 2], vec![1, 3, 0], vec![1]] {
        let script = move |request| {
            let count = shape.iter().product::<i64>() as usize;
            let rank_two = shape.len() == 2;
            let shape = if rank_two { vec![3, 1] } else { shape.clone() };
            reply(request, "last_hidden_state", &shape, &vec![1.0; count]);
        };
        let site = site_in(files.path(), &encoder(""), script).await;
        let answer = embed(&site, json!({"input": "a"})).await;
        assert!(answer.status == 500, "{}", answer.body);
    }
    let unfit = config_of(&BOTH, "-1, -1", "scores_of_tokens", "-1, -1, 2", "");
    let site = site_in(files.path(), &unfit, vectors_of_tokens).await;
    assert_eq!(embed(&site, json!({"input": "a"})).await.json()["error"]["param"], "model");
}

/// The logits of a pair: the number of its tokens, without padding, and with two classes a zero before it.
fn lengths(classes: usize) -> impl Fn(Request) + Send + Sync + 'static {
    move |request| {
        let columns = request.inputs[0].shape[1] as usize;
        let mask = numbers(&request, "attention_mask");
        let lengths = mask.chunks(columns).map(|row| row.iter().sum::<i64>() as f32);
        let values: Vec<f32> = match classes {
            1 => lengths.collect(),
            _ => lengths.flat_map(|length| [0.0, length]).collect(),
        };
        let shape = [request.inputs[0].shape[0], classes as i64];
        reply(request, "logits", &shape, &values);
    }
}

#[tokio::test]
async fn cross_encoders_order_documents() {
    let identity = json!({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}});
    let files = folder(&[("config.json", identity)]);
    let all = ["input_ids", "attention_mask", "token_type_ids"];
    let config = config_of(&all, "-1, -1", "logits", "-1, 1", "");
    let site = site_in(files.path(), &config, lengths(1)).await;
    let request =
        json!({"model": "bare", "query": "a b", "documents": ["a", {"text": "b c a"}, ""], "top_n": 2});
    let json = site.post("/v1/rerank", &request).await.json();
    assert_eq!(
        json["results"],
        json!([{"index": 1, "document": {"text": "b c a"}, "relevance_score": 8.0},
            {"index": 0, "document": {"text": "a"}, "relevance_score": 6.0}]),
        "{json}"
    );
    assert_eq!(json["usage"]["total_tokens"], 19);
    assert_eq!(
        site.last_seen()["input_ids"].as_array().unwrap()[..8],
        json!([2, 4, 5, 3, 5, 6, 4, 3]).as_array().unwrap()[..]
    );
    assert_eq!(
        site.last_seen()["token_type_ids"].as_array().unwrap()[..8],
        json!([0, 0, 0, 0, 1, 1, 1, 1]).as_array().unwrap()[..]
    );
    let request = json!({"model": "bare", "text_1": ["a", "b c"], "text_2": ["b", "a"]});
    let json = site.post("/v1/score", &request).await.json();
    assert_eq!(
        json["data"],
        json!([{"index": 0, "object": "score", "score": 5.0}, {"index": 1, "object": "score", "score": 6.0}])
    );
    let model = site.ask("GET", "/v1/models/bare", "").await.json();
    assert_eq!(model["capabilities"], json!(["rerank"]));
    let embeddings = embed(&site, json!({"input": "a"})).await;
    assert_eq!((embeddings.status, &embeddings.json()["error"]["param"]), (400, &json!("model")));
}

#[tokio::test]
async fn scores_are_probabilities_unless_raw_ones_are_wanted() {
    let sigmoid = |value: f32| 1.0 / (1.0 + (-value).exp());
    let files = folder(&[]);
    for (classes, raw) in [(1, 5.0), (2, 5.0)] {
        let config = config_of(&BOTH, "-1", "logits", &classes.to_string(), "max_batch_size: 4");
        let site = site_in(files.path(), &config, lengths(classes)).await;
        let shared = &site;
        let score = |more: Value| async move {
            let mut request = json!({"model": "bare", "query": "a", "documents": ["b"]});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let json = shared.post("/v1/rerank", &request).await.json();
            json["results"][0]["relevance_score"].as_f64().unwrap_or_else(|| panic!("{json}")) as f32
        };
        assert!((score(json!({})).await - sigmoid(raw)).abs() < 1e-6);
        assert_eq!(score(json!({"raw_scores": true})).await, raw);
    }
    let config = config_of(&BOTH, "-1, -1", "logits", "-1, -1", "");
    let site = site_in(files.path(), &config, lengths_of_three).await;
    let answer = site.post("/v1/rerank", &json!({"model": "bare", "query": "a", "documents": ["b"]})).await;
    assert!(answer.status == 500 && answer.body.contains("has 3 classes"), "{}", answer.body);
}

fn lengths_of_three(request: Request) {
    reply(request, "logits", &[1, 3], &[1.0, 2.0, 3.0]);
}

#[tokio::test]
async fn long_pairs_are_refused_or_cut_at_the_document() {
    let files = folder(&[("sentence_bert_config.json", json!({"max_seq_length": 6}))]);
    let config = config_of(&BOTH, "-1, -1", "logits", "-1, 1", "");
    let site = site_in(files.path(), &config, lengths(1)).await;
    let request = json!({"model": "bare", "query": "a", "documents": ["b", "b b b b"]});
    let answer = site.post("/v1/rerank", &request).await;
    assert!(answer.status == 400 && answer.body.contains("'documents[1]' has 8 tokens"), "{}", answer.body);
    let request =
        json!({"model": "bare", "query": "a", "documents": ["b b b b"], "truncate_prompt_tokens": -1});
    assert_eq!(site.post("/v1/rerank", &request).await.status, 200);
    assert_eq!(site.last_seen()["input_ids"], json!([2, 4, 3, 5, 5, 3]));
    for (field, value) in [("max_tokens_per_doc", json!(3)), ("raw_scores", json!("x"))] {
        let request = json!({"model": "bare", "query": "a", "documents": ["b"], field: value});
        assert_eq!(site.post("/v1/rerank", &request).await.json()["error"]["param"], field);
    }
}

#[tokio::test]
async fn many_texts_are_sent_in_pieces_of_which_few_are_under_way() {
    let files = folder(&[]);
    let site = site_in(files.path(), &encoder(""), vectors_of_tokens).await;
    let texts: Vec<String> = (0..2048).map(|count| "a ".repeat(1 + count * 7 % 500)).collect();
    let answer = embed(&site, json!({"input": texts})).await;
    let found = vectors(&answer);
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), 2048);
    for (text, vector) in texts.iter().zip(found) {
        let words = text.len() as f64 / 2.0;
        let mean = (words + 1.0) / 2.0;
        assert!((vector[1].as_f64().unwrap() - mean).abs() < 1e-3, "{vector} {words}");
    }
    let seen = site.seen.lock().unwrap();
    let largest = seen.iter().map(|request| request["input_ids"].as_array().unwrap().len()).max().unwrap();
    assert!(seen.len() >= 64 && largest <= 8192, "{} {largest}", seen.len());
}

#[tokio::test]
async fn tokens_are_those_of_the_tokenizer_beside_the_model() {
    let files = folder(&[("sentence_bert_config.json", json!({"max_seq_length": 4}))]);
    let site = site_in(files.path(), &encoder(""), vectors_of_tokens).await;
    let tokens = async |fields: Value| {
        let mut request = json!({"model": "bare"});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        site.post("/tokenize", &request).await
    };
    // Also of a text that is too long for the model.
    for (fields, ids, texts) in [
        (json!({"prompt": "a bx a"}), json!([2, 4, 5, 9, 4, 3]), json!(null)),
        (
            json!({"prompt": "a z", "add_special_tokens": false, "return_token_strs": true}),
            json!([4, 1]),
            json!(["a", "[UNK]"]),
        ),
        (json!({"prompt": "", "add_special_tokens": false}), json!([]), json!(null)),
    ] {
        let answer = tokens(fields).await;
        let count = ids.as_array().unwrap().len();
        assert_eq!(
            answer.json(),
            json!({"count": count, "max_model_len": 4, "tokens": ids, "token_strs": texts})
        );
    }
    for (ids, text) in [(json!([2, 4, 5, 9, 3]), "[CLS] a bx [SEP]"), (json!([]), "")] {
        let answer = site.post("/detokenize", &json!({"model": "bare", "tokens": ids})).await;
        assert_eq!(answer.json(), json!({"prompt": text}), "{ids}");
    }
    assert_eq!(site.seen.lock().unwrap().len(), 0);
    for (fields, param) in [
        (json!({}), "prompt"),
        (json!({"prompt": ["a"]}), "prompt"),
        (json!({"prompt": "a".repeat((1 << 20) + 1)}), "prompt"),
        (json!({"messages": [{"role": "user", "content": "a"}]}), "model"),
        (json!({"prompt": "a", "other": 1}), "other"),
    ] {
        let answer = tokens(fields).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{}",
            answer.body
        );
    }
    for ids in [json!([10]), json!([-1]), json!("a"), json!([4_294_967_296_u64])] {
        let answer = site.post("/detokenize", &json!({"model": "bare", "tokens": ids})).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("tokens")), "{ids}");
    }
    fs::write(files.path().join("tokenizer.json"), "{").unwrap();
    let site = site_in(files.path(), &encoder(""), vectors_of_tokens).await;
    let answer = site.post("/tokenize", &json!({"model": "bare", "prompt": "a"})).await;
    assert!(answer.status == 500 && answer.body.contains("tokenizer.json: EOF"), "{}", answer.body);
}
