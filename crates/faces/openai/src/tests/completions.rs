//! Completions, as documents and as streams.

use super::*;

fn with(fields: Value) -> Value {
    let mut request = json!({"model": "bare", "prompt": "Once"});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

#[tokio::test]
async fn each_prompt_has_its_choices() {
    let site = site(VLLM, |request| {
        let prompt = inputs_of(&request)["text_input"].as_str().unwrap().to_owned();
        let counts = [count("num_input_tokens", 5), count("num_output_tokens", 2)];
        request.responder().finish_with(Ok(text_response(&format!(" after {prompt}"), counts)));
    })
    .await;
    let answer =
        site.post("/v1/completions", &with(json!({"prompt": ["A", "B"], "n": 2, "echo": true}))).await;
    let json = answer.json();
    assert_eq!(json["object"], "text_completion", "{json}");
    let choice = |index: usize, text: &str| json!({"index": index, "text": text, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(
        json["choices"],
        json!([
            choice(0, "A after A"),
            choice(1, "A after A"),
            choice(2, "B after B"),
            choice(3, "B after B")
        ])
    );
    assert_eq!(json["usage"], json!({"prompt_tokens": 10, "completion_tokens": 8, "total_tokens": 18}));
    let plain = site.post("/v1/completions", &with(json!({}))).await.json();
    assert_eq!(plain["choices"][0]["text"], " after Once");
}

#[tokio::test]
async fn stream_has_the_prompt_first_if_wanted_and_the_reason_last() {
    let site = site(VLLM, words(&[" upon", " a", " time"])).await;
    for (echo, first) in [(false, " upon"), (true, "Once upon")] {
        let fields = json!({"stream": true, "echo": echo, "stream_options": {"include_usage": true}});
        let answer = site.post("/v1/completions", &with(fields)).await;
        assert!(answer.head.contains("content-type: text/event-stream"), "{}", answer.head);
        let events = answer.events();
        let texts: Vec<_> = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(texts, [first, " a", " time", ""]);
        assert_eq!(events[2]["choices"][0]["finish_reason"], json!(null));
        assert_eq!(events[3]["choices"][0]["finish_reason"], "stop");
        assert_eq!(events[4]["choices"], json!([]));
        assert_eq!(events[4]["usage"]["completion_tokens"], 3);
        assert!(events[0].get("usage").is_none());
    }
}

#[tokio::test]
async fn probabilities_count_characters_across_chunks() {
    let site = site(VLLM, |request| {
        for token in ["é", "bc"] {
            let logprobs =
                format!(r#"[{{"5": {{"logprob": -0.5, "rank": 1, "decoded_token": "{token}"}}}}]"#);
            request.responder().send(Ok(text_response(token, [bytes("logprobs", &logprobs)])));
        }
        request.responder().finish();
    })
    .await;
    let json = site.post("/v1/completions", &with(json!({"logprobs": 1}))).await.json();
    assert_eq!(json["choices"][0]["logprobs"]["text_offset"], json!([0, 1]));
    let events = site.post("/v1/completions", &with(json!({"logprobs": 1, "stream": true}))).await.events();
    assert_eq!(events[1]["choices"][0]["logprobs"]["text_offset"], json!([1]));
    assert_eq!(events[1]["choices"][0]["logprobs"]["tokens"], json!(["bc"]));
}

#[tokio::test]
async fn adapter_of_a_model_is_named_in_its_sampling_parameters() {
    let site = site(VLLM, words(&["a"])).await;
    let json = site.post("/v1/completions", &with(json!({"model": "bare:french"}))).await.json();
    assert_eq!(json["model"], "bare:french");
    assert_eq!(site.last_seen()["sampling_parameters"]["lora_name"], "french");
    let unknown = site.post("/v1/completions", &with(json!({"model": "unknown:french"}))).await;
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[tokio::test]
async fn adapters_that_a_model_lists_are_models_and_others_are_unknown() {
    let parameter = r#" parameters { key: "lora_adapters" value { string_value: "french, b:c" } }"#;
    let site = site(&format!("{VLLM}{parameter}"), words(&["a"])).await;
    let list = site.ask("GET", "/v1/models", "").await.json();
    let names: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    for name in ["m", "m:b:c", "m:french"] {
        assert!(names.contains(&name), "{names:?}");
        let answer = site.post("/v1/completions", &with(json!({"model": name}))).await;
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(name)));
        assert_eq!(site.last_seen()["sampling_parameters"]["lora_name"].as_str(), name.strip_prefix("m:"));
        assert_eq!(site.ask("GET", &format!("/v1/models/{name}"), "").await.json()["id"], name);
    }
    for name in ["m:", "m:b", "m:german", "m:french,b:c"] {
        let answer = site.post("/v1/completions", &with(json!({"model": name}))).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (404, &json!("model_not_found")),
            "{name}"
        );
        assert_eq!(site.ask("GET", &format!("/v1/models/{name}"), "").await.status, 404, "{name}");
    }
}

#[tokio::test]
async fn long_parameters_are_not_copied_for_any_number_of_choices() {
    let site = site(VLLM, words(&["a"])).await;
    let long = "x".repeat(3 << 20);
    let refused =
        site.post("/v1/completions", &with(json!({"n": 128, "seed": 1, "guided_regex": long}))).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("n")));
    assert!(site.seen.lock().unwrap().is_empty());
    // Without seeds of their own, the choices share one text.
    let shared = site.post("/v1/completions", &with(json!({"n": 128, "guided_regex": long}))).await;
    assert_eq!((shared.status, site.seen.lock().unwrap().len()), (200, 128));
}

#[tokio::test]
async fn wrong_prompts_are_refused() {
    let site = site(VLLM, words(&["a"])).await;
    for (fields, param) in [
        (json!({"prompt": ""}), "prompt"),
        (json!({"prompt": []}), "prompt"),
        (json!({"prompt": ["a", ""]}), "prompt"),
        (json!({"prompt": [1, 2]}), "prompt"),
        (json!({"prompt": [[1], [2]]}), "prompt"),
        (json!({"prompt": null}), "prompt"),
        (json!({"suffix": "x"}), "suffix"),
        (json!({"best_of": 2}), "best_of"),
        (json!({"logprobs": 21}), "logprobs"),
        (json!({"prompt": vec!["a"; 64], "n": 128}), "n"),
    ] {
        let answer = site.post("/v1/completions", &with(fields.clone())).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{fields}: {}",
            answer.body
        );
    }
    assert!(site.seen.lock().unwrap().is_empty());
}
