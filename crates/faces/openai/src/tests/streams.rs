//! Streamed chat completions, failures, and clients that leave.

use nereid_core::ScopedName;
use nereid_core::backend_api::Error;
use tokio::sync::Notify;

use super::*;

fn request(fields: Value) -> Value {
    let mut request = json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": "Hi"}]});
    request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    request
}

#[tokio::test]
async fn chunks_have_the_role_first_then_text_then_the_reason_and_the_counts() {
    let site = site(VLLM, words(&["Hel", "lo"])).await;
    let answer =
        site.post("/v1/chat/completions", &request(json!({"stream_options": {"include_usage": true}}))).await;
    let events = answer.events();
    let deltas: Vec<_> = events.iter().map(|event| event["choices"][0]["delta"].clone()).collect();
    assert_eq!(
        deltas,
        [
            json!({"role": "assistant", "content": ""}),
            json!({"content": "Hel"}),
            json!({"content": "lo"}),
            json!({}),
            json!(null)
        ]
    );
    let reasons: Vec<_> = events.iter().map(|event| event["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(reasons, [json!(null), json!(null), json!(null), json!("stop"), json!(null)]);
    assert_eq!(events[4]["usage"], json!({"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}));
    assert!(
        events
            .iter()
            .all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"])
    );
    assert_eq!(site.last_seen()["stream"], true);
}

#[tokio::test]
async fn tool_calls_and_reasoning_are_deltas_of_their_own() {
    let text: &[&str] = &[
        "<think>hm</think>",
        "[TOOL_CALLS]",
        "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, ",
        "{\"name\": \"g\", \"arguments\": {}}]",
    ];
    let parsers = r#"parameters { key: "tool_call_parser" value { string_value: "mistral" } }
        parameters { key: "reasoning_parser" value { string_value: "think" } }"#;
    let site = site(&format!("{VLLM} {parsers}"), words(text)).await;
    let tools = json!([{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]);
    for (parallel, expected) in [(true, 2), (false, 1)] {
        let fields = json!({"tools": tools, "parallel_tool_calls": parallel});
        let events = site.post("/v1/chat/completions", &request(fields)).await.events();
        let deltas: Vec<_> = events.iter().map(|event| &event["choices"][0]["delta"]).collect();
        assert_eq!(deltas[1], &json!({"reasoning_content": "hm"}));
        let calls: Vec<_> = deltas.iter().filter_map(|delta| delta["tool_calls"].get(0)).collect();
        // The identifier and the name come first, then the arguments.
        let begun: Vec<_> = calls.iter().filter(|call| call["id"].is_string()).collect();
        assert_eq!(begun.len(), expected);
        assert_eq!(
            (&begun[0]["index"], &begun[0]["type"], &begun[0]["function"]),
            (&json!(0), &json!("function"), &json!({"name": "f", "arguments": ""}))
        );
        assert_eq!(calls[1], &json!({"index": 0, "function": {"arguments": "{\"a\": 1}"}}));
        if let Some(second) = begun.get(1) {
            assert_eq!((&second["index"], &second["function"]["name"]), (&json!(1), &json!("g")));
            assert_eq!(calls[3], &json!({"index": 1, "function": {"arguments": "{}"}}));
        }
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
        assert_eq!(site.last_seen()["sampling_parameters"]["skip_special_tokens"], false);
    }
}

#[tokio::test]
async fn failure_before_the_first_piece_has_a_status_and_later_ones_are_events() {
    for is_stream in [true, false] {
        let site = site(VLLM, |request| request.answer(Err(Error::unavailable("full")))).await;
        let answer = site.post("/v1/chat/completions", &request(json!({"stream": is_stream}))).await;
        assert_eq!(answer.status, 503);
        assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
    }
    let site = site(VLLM, |request| {
        request.responder().send(Ok(text_response("a", [])));
        request.responder().finish_with(Err(Error::internal("broken")));
    })
    .await;
    let events = site.post("/v1/chat/completions", &request(json!({}))).await.events();
    assert_eq!(events.last().unwrap()["error"]["message"], "broken");
    let whole = site.post("/v1/chat/completions", &request(json!({"stream": false}))).await;
    assert_eq!(whole.status, 500);
    assert!(whole.head.contains("x-should-retry: false"), "{}", whole.head);
}

#[tokio::test]
async fn client_that_leaves_cancels_all_choices() {
    let (report, mut cancelled) = tokio::sync::mpsc::channel(8);
    let site = site(VLLM, move |request| {
        request.responder().send(Ok(text_response("a", [])));
        let report = report.clone();
        std::thread::spawn(move || {
            while !request.responder().is_cancelled() {
                std::thread::yield_now();
            }
            report.blocking_send(()).unwrap();
        });
    })
    .await;
    for stream in [true, false] {
        let before = site.seen.lock().unwrap().len();
        // One choice executes, the other one waits for it.
        let body = request(json!({"n": 2, "stream": stream})).to_string();
        let connection = site.connect("POST", "/v1/chat/completions", "", &body).await;
        while site.seen.lock().unwrap().len() == before {
            tokio::task::yield_now().await;
        }
        drop(connection);
        cancelled.recv().await.unwrap();
        while site.server.model(ScopedName::everywhere("m"), None).unwrap().pending() > 0 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn stop_text_ends_a_stream_and_cancels_the_model() {
    let cancelled = Arc::new(Notify::new());
    let notify = Arc::clone(&cancelled);
    let site = site(VLLM, move |request| {
        request.responder().send(Ok(text_response("a ST", [])));
        request.responder().send(Ok(text_response("OP b", [])));
        let notify = Arc::clone(&notify);
        std::thread::spawn(move || {
            while !request.responder().is_cancelled() {
                std::thread::yield_now();
            }
            notify.notify_one();
        });
    })
    .await;
    let events = site.post("/v1/chat/completions", &request(json!({"stop": "STOP"}))).await.events();
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(
        (text.as_str(), &events.last().unwrap()["choices"][0]["finish_reason"]),
        ("a ", &json!("stop"))
    );
    cancelled.notified().await;
}
