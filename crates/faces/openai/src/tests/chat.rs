//! Chat completions as documents.

use super::*;

fn messages() -> Value {
    json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
}

fn with(fields: Value) -> Value {
    let mut request = json!({"model": "m", "messages": messages()});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

#[tokio::test]
async fn answer_has_the_text_the_counts_and_the_reason_for_its_end() {
    let site = site(VLLM, words(&["Hel", "lo", "!"])).await;
    let answer =
        site.post("/v1/chat/completions", &with(json!({"temperature": 0.5, "top_k": 3, "user": "u"}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(answer.head.contains("x-request-id: req_"), "{}", answer.head);
    let json = answer.json();
    assert!(json["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&json["object"], &json["model"]), (&json!("chat.completion"), &json!("m")));
    assert_eq!(json["usage"], json!({"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}));
    assert_eq!(
        json["choices"],
        json!([{"index": 0, "message": {"role": "assistant", "content": "Hello!", "refusal": null},
            "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(
        site.last_seen(),
        json!({"text_input": "[system] Be brief.\n[user] Hi\n>", "stream": false, "exclude_input_in_output": true,
            "return_finish_reason": true, "return_num_input_tokens": true, "return_num_output_tokens": true,
            "sampling_parameters": {"temperature": 0.5, "top_k": 3, "max_tokens": 16}})
    );
}

#[tokio::test]
async fn reason_for_the_end_is_the_models_or_follows_from_the_counts() {
    for (reason, max_tokens, expected) in [
        ("stop", 2, "stop"),
        ("length", 100, "length"),
        ("None", 2, "length"),
        ("None", 3, "stop"),
        ("abort", 1, "stop"),
    ] {
        let site = site(VLLM, move |request| {
            for token in ["a", "b"] {
                let others = [count("num_output_tokens", 1), bytes("finish_reason", reason)];
                request.responder().send(Ok(text_response(token, others)));
            }
            request.responder().finish();
        })
        .await;
        let answer =
            site.post("/v1/chat/completions", &with(json!({"max_completion_tokens": max_tokens}))).await;
        assert_eq!(answer.json()["choices"][0]["finish_reason"], expected, "{reason} {max_tokens}");
        // The prompt is not counted.
        assert_eq!(answer.json()["usage"], json!(null));
    }
}

#[tokio::test]
async fn several_choices_are_several_requests_with_seeds_of_their_own() {
    let site = site(VLLM, |request| {
        let seed = inputs_of(&request)["sampling_parameters"]["seed"].clone();
        let counts = [count("num_input_tokens", 5), count("num_output_tokens", 2)];
        request.responder().finish_with(Ok(text_response(&seed.to_string(), counts)));
    })
    .await;
    let json = site.post("/v1/chat/completions", &with(json!({"n": 3, "seed": 7}))).await.json();
    let texts: Vec<_> = (0..3).map(|index| json["choices"][index]["message"]["content"].clone()).collect();
    assert_eq!(texts, [json!("7"), json!("8"), json!("9")]);
    assert_eq!(json["usage"], json!({"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}));
}

#[tokio::test]
async fn stop_texts_cut_what_the_model_does_not() {
    let site = site(VLLM, words(&["a<", "st", "op>", "b"])).await;
    let json = site.post("/v1/chat/completions", &with(json!({"stop": ["<stop>", "c"]}))).await.json();
    assert_eq!(json["choices"][0]["message"]["content"], "a");
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    assert_eq!(site.last_seen()["sampling_parameters"]["stop"], json!(["<stop>", "c"]));
}

#[tokio::test]
async fn forms_of_the_output_are_passed_on() {
    let site = site(VLLM, words(&["{}"])).await;
    let schema = json!({"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}});
    for (format, expected) in [
        (json!({"type": "text"}), json!(null)),
        (json!({"type": "json_object"}), json!({"json_object": true})),
        (
            json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}),
            json!({"json": schema}),
        ),
    ] {
        let answer = site.post("/v1/chat/completions", &with(json!({"response_format": format}))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(site.last_seen()["sampling_parameters"]["structured_outputs"], expected);
    }
}

#[tokio::test]
async fn probabilities_of_tokens_are_those_of_the_model() {
    let site = site(VLLM, |request| {
        let logprobs = r#"[{"5": {"logprob": -0.5, "rank": 2, "decoded_token": "a"}, "6": {"logprob": -0.1, "rank": 1, "decoded_token": "b"}}]"#;
        request.responder().finish_with(Ok(text_response("a", [bytes("logprobs", logprobs)])));
    })
    .await;
    let json =
        site.post("/v1/chat/completions", &with(json!({"logprobs": true, "top_logprobs": 1}))).await.json();
    assert_eq!(
        json["choices"][0]["logprobs"],
        json!({"content": [{"token": "a", "logprob": -0.5, "bytes": [97],
            "top_logprobs": [{"token": "b", "logprob": -0.1, "bytes": [98]}]}], "refusal": null})
    );
    assert_eq!(site.last_seen()["return_logprobs"], true);
    assert_eq!(site.last_seen()["sampling_parameters"]["logprobs"], 1);
}

#[tokio::test]
async fn what_is_wrong_or_unknown_is_refused_by_name() {
    let site = site(VLLM, words(&["a"])).await;
    for (fields, param) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": null}), "messages"),
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"stream_options": {}}), "stream_options"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": "many"}), "max_tokens"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"stop": [""]}), "stop"),
        (json!({"stop": vec!["x"; 33]}), "stop"),
        (json!({"response_format": {"type": "grammar"}}), "response_format"),
        (
            json!({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}),
            "structured_outputs",
        ),
        (json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}), "guided_regex"),
        (json!({"functions": []}), "functions"),
        (json!({"audio": {}}), "audio"),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"chat_template": "{{ x }}"}), "chat_template"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), "tools"),
        (json!({"tools": [{"type": "web_search"}]}), "tools"),
        (json!({"model": "bare"}), "model"),
    ] {
        let answer = site.post("/v1/chat/completions", &with(fields.clone())).await;
        let json = answer.json();
        assert_eq!((answer.status, &json["error"]["param"]), (400, &json!(param)), "{fields}: {json}");
    }
    assert!(site.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn inputs_take_the_parameters_where_the_model_has_no_text_of_them() {
    let site = site(TENSORRT, |request| request.answer(Ok(text_response("x", [])))).await;
    let schema = json!({"type": "object"});
    let fields = json!({"temperature": 0.5, "top_p": 1, "presence_penalty": 0.0, "stop": ["a", "b"], "seed": 9,
        "max_tokens": 3, "response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let answer = site.post("/v1/chat/completions", &with(fields)).await;
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "x", "{}", answer.body);
    assert_eq!(
        site.last_seen(),
        json!({"text_input": "[system] Be brief.\n[user] Hi\n>", "stream": false, "max_tokens": 3, "seed": 9,
            "stop_words": ["a", "b"], "temperature": 0.5, "guided_decoding_guide_type": "json_schema",
            "guided_decoding_guide": schema})
    );
    for (fields, param) in [
        (json!({"top_p": 0.5}), "top_p"),
        (json!({"logit_bias": {"5": 1}}), "logit_bias"),
        (json!({"logprobs": true}), "logprobs"),
        (json!({"temperature": "hot"}), "temperature"),
    ] {
        let answer = site.post("/v1/chat/completions", &with(fields)).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{}",
            answer.body
        );
    }
}

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "weather", "description": "d",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]"#;

fn hermes() -> String {
    format!(
        r#"{VLLM} parameters {{ key: "tool_call_parser" value {{ string_value: "hermes" }} }}
        parameters {{ key: "reasoning_parser" value {{ string_value: "think" }} }}"#
    )
}

#[tokio::test]
async fn tool_calls_and_reasoning_are_read_from_the_text() {
    let text = &[
        "<think>\nIt may",
        " rain.\n</th",
        "ink>\n\nLet me see.\n<tool",
        "_call>\n{\"name\": \"weather\", ",
        "\"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
    ];
    let site = site(&hermes(), words(text)).await;
    // As text, because the order of members matters.
    let body = with(json!({})).to_string().replacen('{', &format!("{{\"tools\": {TOOLS},"), 1);
    let json = site.ask("POST", "/v1/chat/completions", &body).await.json();
    let message = &json["choices"][0]["message"];
    assert_eq!(json["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(message["reasoning_content"], "\nIt may rain.\n");
    assert_eq!(message["content"], "Let me see.");
    let call = &message["tool_calls"][0];
    assert_eq!(call["function"], json!({"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}));
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    let prompt = site.last_seen()["text_input"].as_str().unwrap().to_owned();
    assert!(
        prompt.contains(
            "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"d\""
        ),
        "{prompt}"
    );
}

#[tokio::test]
async fn forced_tool_calls_are_guided_by_the_schema_of_the_tool() {
    let tools: Value = serde_json::from_str(TOOLS).unwrap();
    let one = json!({"type": "function", "function": {"name": "weather"}});
    for (choice, text, schema) in [
        (one, &["{\"city\": ", "\"Oslo\"}"][..], tools[0]["function"]["parameters"].clone()),
        (
            json!("required"),
            &["[{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}]"],
            json!({"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "object",
                "required": ["name", "parameters"], "additionalProperties": false, "properties": {"name": {"type": "string", "enum": ["weather"]},
                    "parameters": tools[0]["function"]["parameters"]}}]}}),
        ),
    ] {
        let text: &'static [&'static str] = text;
        let site = site(VLLM, words(text)).await;
        let answer =
            site.post("/v1/chat/completions", &with(json!({"tools": tools, "tool_choice": choice}))).await;
        let json = answer.json();
        let message = &json["choices"][0]["message"];
        assert_eq!(message["content"], json!(null), "{json}");
        let function = &message["tool_calls"][0]["function"];
        assert_eq!(function, &json!({"name": "weather", "arguments": "{\"city\": \"Oslo\"}"}));
        assert_eq!(site.last_seen()["sampling_parameters"]["structured_outputs"]["json"], schema);
        let single = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false});
        site.post("/v1/chat/completions", &with(single)).await;
        let limited = &site.last_seen()["sampling_parameters"]["structured_outputs"]["json"];
        assert_eq!(limited.get("maxItems").is_some(), schema.get("items").is_some(), "{limited}");
    }
}

#[tokio::test]
async fn output_with_a_form_has_no_reasoning() {
    let shown = "[system] Be brief.\n[user] Hi\n><think>";
    for (format, text, prompt) in [
        ("text", &["hm</think>", "{}"][..], shown.to_owned()),
        ("json_object", &["{}"], format!("{shown}\n</think>\n\n")),
    ] {
        let site = site(&hermes(), words(text)).await;
        let fields =
            json!({"response_format": {"type": format}, "chat_template_kwargs": {"begin": "<think>"}});
        let answer = site.post("/v1/chat/completions", &with(fields)).await;
        assert_eq!(answer.json()["choices"][0]["message"]["content"], "{}", "{}", answer.body);
        assert_eq!(site.last_seen()["text_input"], prompt);
    }
}

/// A template with the end of gpt-oss's.
const HARMONY: &str = r#"parameters { key: "chat_template" value { string_value:
    "{% for m in messages %}<|start|>{{ m.role }}<|channel|>{{ m.content }}{% endfor %}<|start|>assistant{{ begin }}" } }"#;

#[tokio::test]
async fn messages_of_gpt_oss_are_reasoning_calls_and_the_answer() {
    let output: &[&str] = &[
        "<|channel|>analysis<|message|>Need ",
        "it.<|end|><|start|>assistant<|channel|>comm",
        "entary to=functions.f <|constrain|>json<|message|>{\"a\"",
        ": 1}<|call|>",
    ];
    let site = site(&format!("{VLLM} {HARMONY}"), words(output)).await;
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let request = |fields: Value| {
        let mut request = with(fields);
        request["model"] = "bare".into();
        request
    };
    let answer = site.post("/v1/chat/completions", &request(json!({"tools": tools}))).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!((&message["content"], &message["reasoning_content"]), (&json!(null), &json!("Need it.")));
    assert_eq!(message["tool_calls"][0]["function"], json!({"name": "f", "arguments": "{\"a\": 1}"}));
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(site.last_seen()["sampling_parameters"]["skip_special_tokens"], false);
    // Channels are read without tools, too.
    let answer = site.post("/v1/chat/completions", &request(json!({}))).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["reasoning_content"], "Need it.\n{\"a\": 1}");
    assert_eq!(site.last_seen()["sampling_parameters"]["skip_special_tokens"], false);
    // An answer with a form has the header of its message in the prompt.
    for (fields, header) in [
        (json!({"response_format": {"type": "json_object"}}), "<|channel|>final<|message|>"),
        (json!({"tools": tools, "tool_choice": "required"}), "<|channel|>final<|message|>"),
        (
            json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "f"}}}),
            "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        ),
    ] {
        assert_eq!(site.post("/v1/chat/completions", &request(fields.clone())).await.status, 200);
        let seen = site.last_seen();
        let prompt = seen["text_input"].as_str().unwrap();
        assert!(prompt.ends_with(&format!("<|start|>assistant{header}")), "{fields}: {prompt}");
        assert_eq!(seen["sampling_parameters"].get("skip_special_tokens"), None, "{fields}");
    }
    // The prompt may have begun the message.
    let begun = json!({"chat_template_kwargs": {"begin": "<|channel|>final<|message|>"}});
    let answer = site.post("/v1/chat/completions", &request(begun)).await.json();
    assert!(answer["choices"][0]["message"]["content"].as_str().unwrap().starts_with("<|channel|>analysis"));
}
