//! `/v1/responses`, as documents and as streams.

use nereid_core::backend_api::Error;

use super::*;

fn with(fields: Value) -> Value {
    let mut request = json!({"model": "m", "input": "Hi"});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

/// The names of the events and their data, which repeat them and count up.
fn events(answer: &Answer) -> Vec<(String, Value)> {
    let blocks = answer.body.split("\n\n").filter(|block| !block.is_empty());
    let events = blocks.enumerate().map(|(number, block)| {
        let (name, data) = block.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)));
        (name.to_owned(), data)
    });
    events.collect()
}

#[tokio::test]
async fn answer_has_a_message_and_repeats_the_request() {
    let site = site(VLLM, words(&["Hel", "lo"])).await;
    let fields = json!({"instructions": "Be brief.", "max_output_tokens": 50, "temperature": 0.5, "store": true,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}});
    let json = site.post("/v1/responses", &with(fields)).await.json();
    assert_eq!(
        (&json["object"], &json["status"], &json["store"]),
        (&json!("response"), &json!("completed"), &json!(true))
    );
    let item = &json["output"][0];
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    assert_eq!(
        (&item["content"][0]["type"], &item["content"][0]["text"]),
        (&json!("output_text"), &json!("Hello"))
    );
    assert_eq!((&json["usage"]["input_tokens"], &json["usage"]["output_tokens"]), (&json!(5), &json!(2)));
    assert_eq!(
        (&json["temperature"], &json["max_output_tokens"], &json["tools"]),
        (&json!(0.5), &json!(50), &json!([]))
    );
    assert_eq!(site.last_seen()["text_input"], "[system] Be brief.\n[user] Hi\n>");
    assert_eq!(
        site.last_seen()["sampling_parameters"],
        json!({"temperature": 0.5, "max_tokens": 50, "structured_outputs": {"json": {"type": "object"}}})
    );
}

#[tokio::test]
async fn items_become_messages() {
    let template = r#"parameters { key: "tool_call_parser" value { string_value: "hermes" } }"#;
    let site = site(&format!("{VLLM} {template}"), words(&["x"])).await;
    let input = json!([
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "message", "role": "user", "content": "b"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "c"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "d", "annotations": []}]}
    ]);
    let answer = site.post("/v1/responses", &with(json!({"input": input}))).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let expected = "[system] a\n[user] b\n[assistant] \n[tool] c\n[assistant] d\n>";
    assert_eq!(site.last_seen()["text_input"], expected);
}

#[tokio::test]
async fn reasoning_goes_to_the_next_message_of_the_assistant() {
    let template = r#"parameters { key: "chat_template" value { string_value:
        "{% for m in messages %}[{{ m.role }}{% if m.reasoning_content %} {{ m.reasoning_content }}{% endif %}] {{ m.content }}{{ m.tool_calls|length }}\n{% endfor %}" } }"#;
    let site = site(&format!("{VLLM} {template}"), words(&["x"])).await;
    let thought = |text: &str| json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]});
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let input = json!([
        thought("t"), call("1"), call("2"), thought("u"), call("3"),
        thought("v"), {"role": "assistant", "content": "a"}, thought("w"), {"role": "user", "content": "b"},
    ]);
    let answer = site.post("/v1/responses", &json!({"model": "bare", "input": input})).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let expected = "[assistant t] 2\n[assistant u] 1\n[assistant v] a0\n[user] b0\n";
    assert_eq!(site.last_seen()["text_input"], expected);
}

#[tokio::test]
async fn stream_opens_and_closes_each_item() {
    let parsers = r#"parameters { key: "tool_call_parser" value { string_value: "hermes" } }
        parameters { key: "reasoning_parser" value { string_value: "think" } }"#;
    let text = &[
        "<think>hm",
        "m</think>",
        "Let ",
        "me.<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>",
    ];
    let site = site(&format!("{VLLM} {parsers}"), words(text)).await;
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let answer = site.post("/v1/responses", &with(json!({"stream": true, "tools": tools}))).await;
    let events = events(&answer);
    let names: Vec<_> = events.iter().map(|(name, _)| name.strip_prefix("response.").unwrap()).collect();
    assert_eq!(
        names,
        [
            "created",
            "in_progress",
            "output_item.added",
            "reasoning_text.delta",
            "reasoning_text.delta",
            "reasoning_text.done",
            "output_item.done",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed"
        ]
    );
    let data = |index: usize| &events[index].1;
    assert_eq!((&data(5)["text"], &data(11)["text"]), (&json!("hmm"), &json!("Let me.")));
    assert_eq!((&data(16)["arguments"], &data(17)["output_index"]), (&json!("{\"a\": 1}"), &json!(2)));
    let response = &data(18)["response"];
    let kinds: Vec<_> =
        response["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["reasoning", "message", "function_call"]);
    assert_eq!(
        (&response["id"], &response["usage"]["output_tokens"]),
        (&data(0)["response"]["id"], &json!(4))
    );
    // The same answer as a document.
    let whole = site.post("/v1/responses", &with(json!({"tools": tools}))).await.json();
    let texts = |response: &Value| {
        json!([
            response["output"][0]["content"][0]["text"],
            response["output"][1]["content"][0]["text"],
            response["output"][2]["name"],
            response["output"][2]["arguments"]
        ])
    };
    assert_eq!(texts(&whole), texts(response));
}

#[tokio::test]
async fn end_of_an_answer_is_its_status() {
    let length = site(VLLM, |request| {
        request.responder().finish_with(Ok(text_response("a", [bytes("finish_reason", "length")])));
    })
    .await;
    let json = length.post("/v1/responses", &with(json!({}))).await.json();
    assert_eq!(
        (&json["status"], &json["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    let broken = site(VLLM, |request| {
        request.responder().send(Ok(text_response("a", [])));
        request.responder().finish_with(Err(Error::internal("broken")));
    })
    .await;
    let answer = broken.post("/v1/responses", &with(json!({"stream": true}))).await;
    let (name, data) = events(&answer).pop().unwrap();
    assert_eq!((name.as_str(), &data["response"]["error"]["message"]), ("response.failed", &json!("broken")));
    assert_eq!(broken.post("/v1/responses", &with(json!({}))).await.status, 500);
    let empty = site(VLLM, |request| request.responder().finish()).await;
    let (name, data) =
        events(&empty.post("/v1/responses", &with(json!({"stream": true}))).await).pop().unwrap();
    assert_eq!(
        (name.as_str(), &data["response"]["output"][0]["content"][0]["text"]),
        ("response.completed", &json!(""))
    );
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_name() {
    let site = site(VLLM, words(&["a"])).await;
    for (fields, param) in [
        (json!({"input": null}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": ["x"]}), "input"),
        (json!({"input": [{"type": "web_search_call"}]}), "input"),
        (
            json!({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
            "input",
        ),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"background": true}), "background"),
        (json!({"include": ["reasoning.encrypted_content"]}), "include"),
        (json!({"truncation": "auto"}), "truncation"),
        (json!({"tools": [{"type": "file_search"}]}), "tools"),
        (json!({"text": {"format": {"type": "grammar"}}}), "response_format"),
    ] {
        let answer = site.post("/v1/responses", &with(fields.clone())).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!(param)),
            "{fields}: {}",
            answer.body
        );
    }
    assert!(site.seen.lock().unwrap().is_empty());
}

/// Posts a request that succeeds, and returns the answer.
async fn respond(site: &Site, fields: Value) -> Value {
    let answer = site.post("/v1/responses", &with(fields)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

#[tokio::test]
async fn stored_answer_is_continued_read_and_removed() {
    let site = site(VLLM, words(&["Hel", "lo"])).await;
    let first = respond(&site, json!({"instructions": "Be brief."})).await;
    assert_eq!((&first["store"], &first["previous_response_id"]), (&json!(true), &json!(null)));
    let input = json!([{"role": "user", "content": [{"type": "input_text", "text": "More"}]}]);
    let second = respond(&site, json!({"previous_response_id": first["id"], "input": input})).await;
    assert_eq!(second["previous_response_id"], first["id"]);
    assert_eq!(site.last_seen()["text_input"], "[user] Hi\n[assistant] Hello\n[user] More\n>");
    // Streams continue and are continued.
    let fields = json!({"previous_response_id": second["id"], "input": "Even more", "stream": true});
    let (name, data) = events(&site.post("/v1/responses", &with(fields)).await).pop().unwrap();
    let third = &data["response"];
    assert_eq!((name.as_str(), &third["store"]), ("response.completed", &json!(true)));
    let whole = "[user] Hi\n[assistant] Hello\n[user] More\n[assistant] Hello\n[user] Even more\n";
    assert_eq!(site.last_seen()["text_input"], format!("{whole}>"));
    let path = |answer: &Value| format!("/v1/responses/{}", answer["id"].as_str().unwrap());
    for answer in [&first, &second, third] {
        assert_eq!(&site.ask("GET", &path(answer), "").await.json(), answer);
    }
    let removed = site.ask("DELETE", &path(&second), "").await;
    let expected = json!({"id": second["id"], "object": "response", "deleted": true});
    assert_eq!((removed.status, removed.json()), (200, expected));
    for method in ["GET", "DELETE"] {
        let missing = site.ask(method, &path(&second), "").await;
        let message = format!("Response with id '{}' not found.", second["id"].as_str().unwrap());
        assert_eq!((missing.status, &missing.json()["error"]["message"]), (404, &json!(message)));
    }
    let refused = site.post("/v1/responses", &with(json!({"previous_response_id": second["id"]}))).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (400, &json!("previous_response_not_found"))
    );
    // What continued it has the whole conversation.
    respond(&site, json!({"previous_response_id": third["id"]})).await;
    assert_eq!(site.last_seen()["text_input"], format!("{whole}[assistant] Hello\n[user] Hi\n>"));
}

#[tokio::test]
async fn calls_of_a_stored_answer_are_continued_by_their_results() {
    let parser = r#"parameters { key: "tool_call_parser" value { string_value: "hermes" } }"#;
    let text = &["<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>"];
    let site = site(&format!("{VLLM} {parser}"), words(text)).await;
    let tools = json!([{"type": "function", "name": "f", "parameters": {"type": "object"}}]);
    let first = respond(&site, json!({"tools": tools})).await;
    let output =
        json!([{"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "7"}]);
    respond(&site, json!({"previous_response_id": first["id"], "input": output})).await;
    assert_eq!(site.last_seen()["text_input"], "[user] Hi\n[assistant] \n[tool] 7\n>");
}

#[tokio::test]
async fn answers_that_are_not_to_be_stored_or_have_no_room_are_not() {
    for (stored_bytes, fields, is_stored) in [
        (64 << 20, json!({}), true),
        (64 << 20, json!({"store": null}), true),
        (64 << 20, json!({"store": false}), false),
        (0, json!({"store": true}), false),
        (100, json!({"store": true}), false),
    ] {
        let options = OpenAiOptions { answers: AnswerStore::new(stored_bytes), ..OpenAiOptions::default() };
        let site = site_with(VLLM, options, words(&["a"])).await;
        let answer = respond(&site, fields.clone()).await;
        assert_eq!(answer["store"], json!(is_stored), "{fields}");
        let found = site.ask("GET", &format!("/v1/responses/{}", answer["id"].as_str().unwrap()), "").await;
        assert_eq!(found.status, if is_stored { 200 } else { 404 }, "{fields}");
    }
}

#[tokio::test]
async fn failed_answers_are_not_stored() {
    let site = site(VLLM, |request| {
        request.responder().send(Ok(text_response("a", [])));
        request.responder().finish_with(Err(Error::internal("broken")));
    })
    .await;
    let answer = site.post("/v1/responses", &with(json!({"stream": true}))).await;
    let (name, data) = events(&answer).remove(0);
    assert_eq!(name, "response.created");
    let path = format!("/v1/responses/{}", data["response"]["id"].as_str().unwrap());
    assert_eq!(site.ask("GET", &path, "").await.status, 404);
}

#[tokio::test]
async fn references_stand_for_the_items_of_stored_answers() {
    let site = site(VLLM, words(&["Hello"])).await;
    let first = site.post("/v1/responses", &with(json!({}))).await.json();
    let id = &first["output"][0]["id"];
    let user = json!({"role": "user", "content": "And?"});
    for reference in
        [json!({"type": "item_reference", "id": id}), json!({"id": id}), json!({"type": null, "id": id})]
    {
        let input = json!([{"role": "user", "content": "Hi"}, reference, user]);
        let answer = site.post("/v1/responses", &with(json!({"input": input}))).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(site.last_seen()["text_input"], "[user] Hi\n[assistant] Hello\n[user] And?\n>");
        // The new answer stores the item itself, so it outlives the first one.
        let next = with(json!({"input": "So?", "previous_response_id": answer.json()["id"]}));
        assert_eq!(site.post("/v1/responses", &next).await.status, 200);
        let prompt = site.last_seen()["text_input"].clone();
        assert_eq!(prompt, "[user] Hi\n[assistant] Hello\n[user] And?\n[assistant] Hello\n[user] So?\n>");
    }
    let unstored = site.post("/v1/responses", &with(json!({"store": false}))).await.json();
    let reference = |id: &Value| json!({"type": "item_reference", "id": id});
    for (input, place) in [
        (json!([reference(id), reference(id), user]), "'input[1]'"),
        (json!([user, reference(&json!("msg_0"))]), "'input[1]'"),
        (json!([reference(&unstored["output"][0]["id"])]), "'input[0]'"),
        (json!([reference(&first["id"])]), "'input[0]'"),
        (json!([{"type": "item_reference"}]), "'input[0]'"),
    ] {
        let answer = site.post("/v1/responses", &with(json!({"input": input}))).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["param"]),
            (400, &json!("input")),
            "{}",
            answer.body
        );
        assert!(answer.json()["error"]["message"].as_str().unwrap().starts_with(place), "{}", answer.body);
    }
    site.ask("DELETE", &format!("/v1/responses/{}", first["id"].as_str().unwrap()), "").await;
    assert_eq!(site.post("/v1/responses", &with(json!({"input": [reference(id)]}))).await.status, 400);
}
