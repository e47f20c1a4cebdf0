//! Metrics of models that report none themselves.

use nereid_core::MetricValue;
use nereid_core::backend_api::Error;

use super::*;

/// The value of a metric of the model `m` with this label, or the number of times that a histogram has.
fn value(site: &Site, name: &str, label: &str) -> Option<f64> {
    let families = site.server.options().metrics.snapshot();
    let family = families.into_iter().find(|family| family.name == name)?;
    let mut series = family.series.into_iter();
    let (_, value) = series.find(|(labels, _)| labels.values().any(|value| value == label))?;
    Some(match value {
        MetricValue::Number(value) => value,
        MetricValue::Histogram(histogram) => histogram.counts.iter().sum::<u64>() as f64,
    })
}

#[tokio::test]
async fn outputs_are_measured_by_vllms_names() {
    let site = site(VLLM, |request| {
        let input = |name: &str| request.inputs.iter().find(|input| input.name == name);
        let streams = input("stream").is_some_and(|input| input.contiguous().unwrap()[0] == 1);
        let counts = |tokens| [count("num_input_tokens", 5), count("num_output_tokens", tokens)];
        if streams {
            (0..3).for_each(|_| request.responder().send(Ok(text_response("a", counts(1)))));
            request.responder().finish();
        } else {
            let reason = bytes("finish_reason", "length");
            request.responder().finish_with(Ok(text_response("aaa", counts(3).into_iter().chain([reason]))));
        }
    })
    .await;
    assert_eq!(value(&site, "vllm:num_requests_running", "m"), None);
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "a"}]});
    for (path, body) in [
        ("/v1/completions", json!({"model": "m", "prompt": "a", "n": 2})),
        ("/v1/completions", json!({"model": "m", "prompt": "a", "stream": true})),
        ("/v1/chat/completions", json!({"model": "m", "messages": chat["messages"], "stream": true})),
        ("/v1/responses", json!({"model": "m", "input": "a"})),
    ] {
        assert_eq!(site.post(path, &body).await.status, 200);
    }
    // Refused before it reaches the model.
    assert_eq!(site.post("/v1/completions", &json!({"model": "m", "prompt": ""})).await.status, 400);
    for (name, label, expected) in [
        ("vllm:num_requests_running", "openai", 0.0),
        ("vllm:num_requests_waiting", "openai", 0.0),
        ("vllm:prompt_tokens_total", "m", 25.0),
        ("vllm:generation_tokens_total", "m", 15.0),
        ("vllm:request_success_total", "length", 3.0),
        ("vllm:request_success_total", "stop", 2.0),
        ("vllm:e2e_request_latency_seconds", "m", 5.0),
        ("vllm:time_to_first_token_seconds", "m", 2.0),
        ("vllm:time_per_output_token_seconds", "m", 2.0),
        ("gen_ai_server_request_duration_seconds", "chat", 2.0),
        ("gen_ai_server_request_duration_seconds", "text_completion", 3.0),
        ("gen_ai_server_time_to_first_token_seconds", "chat", 1.0),
        ("gen_ai_server_time_per_output_token_seconds", "text_completion", 1.0),
    ] {
        assert_eq!(value(&site, name, label), Some(expected), "{name} {label}");
    }
}

#[tokio::test]
async fn failed_outputs_are_over_and_not_successful() {
    let site = site(VLLM, |request| {
        request.responder().send(Ok(text_response("a", [count("num_output_tokens", 1)])));
        request.responder().finish_with(Err(Error::internal("broken")));
    })
    .await;
    for stream in [false, true] {
        site.post("/v1/completions", &json!({"model": "m", "prompt": "a", "stream": stream})).await;
    }
    for (name, label, expected) in [
        ("vllm:num_requests_running", "m", 0.0),
        ("vllm:generation_tokens_total", "m", 2.0),
        ("vllm:request_success_total", "stop", 0.0),
        ("vllm:e2e_request_latency_seconds", "m", 0.0),
    ] {
        assert_eq!(value(&site, name, label), Some(expected), "{name} {label}");
    }
}
