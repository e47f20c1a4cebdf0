//! Images in messages: the model receives them in order, or the request is refused.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;

/// A template with a place for images.
const VISION: &str = r#"parameters { key: "chat_template" value { string_value:
    "{% for m in messages %}[{{ m.role }}] {% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}{{ '' }}\n{% endfor %}>" } }"#;

fn seeing(dims: i64) -> String {
    format!("{VLLM} input {{ name: 'image' data_type: TYPE_STRING dims: {dims} optional: true }}")
}

fn png(rest: u8) -> String {
    STANDARD.encode([b"\x89PNG\r\n\x1a\n".as_slice(), &[rest]].concat())
}

fn url(encoded: &str) -> String {
    format!("data:image/png;base64,{encoded}")
}

/// A part of a chat completion's message.
fn image(rest: u8) -> Value {
    json!({"type": "image_url", "image_url": {"url": url(&png(rest)), "detail": "low"}})
}

/// A server with the model `bare`, whose template has a place for images.
async fn seeing_site(dims: i64, more: &str) -> Site {
    site(&format!("{} {VISION} {more}", seeing(dims)), words(&["ok"])).await
}

fn user(content: Value) -> Value {
    json!({"role": "user", "content": content})
}

#[tokio::test]
async fn images_reach_the_model_in_order_and_have_places_in_the_prompt() {
    let site = seeing_site(-1, "").await;
    let text = |text: &str| json!({"type": "text", "text": text});
    let messages = json!([
        {"role": "system", "content": "Look."},
        user(json!([text("first "), image(1), image(2)])),
        {"role": "assistant", "content": "Two."},
        user(json!([image(3), text(" third")])),
        user(json!("and text")),
    ]);
    for fields in [json!({}), json!({"n": 3}), json!({"n": 2, "seed": 5}), json!({"stream": true})] {
        let mut request = json!({"model": "bare", "messages": messages});
        request.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = site.post("/v1/chat/completions", &request).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let requests: Vec<_> = site.seen.lock().unwrap().drain(..).collect();
        assert_eq!(requests.len() as u64, fields["n"].as_u64().unwrap_or(1));
        for seen in requests {
            assert_eq!(seen["image"], json!([png(1), png(2), png(3)]));
            assert_eq!(
                seen["text_input"],
                "[system] Look.\n[user] first <image><image>\n[assistant] Two.\n[user] <image> third\n[user] and text\n>"
            );
        }
    }
    let answer =
        site.post("/v1/chat/completions", &json!({"model": "bare", "messages": [user(json!("no"))]})).await;
    assert_eq!(answer.status, 200);
    assert!(site.last_seen().get("image").is_none(), "{}", site.last_seen());
}

#[tokio::test]
async fn responses_take_images_and_continue_conversations_with_them() {
    let site = seeing_site(-1, "").await;
    let content = json!([{"type": "input_text", "text": "What?"},
        {"type": "input_image", "image_url": url(&png(1)), "detail": "auto"}]);
    let first = site.post("/v1/responses", &json!({"model": "bare", "input": [user(content)]})).await;
    assert_eq!(first.status, 200, "{}", first.body);
    assert_eq!(site.last_seen()["image"], json!(png(1)));
    let next = user(json!([{"type": "input_image", "image_url": url(&png(2))}]));
    let request = json!({"model": "bare", "input": [next], "previous_response_id": first.json()["id"]});
    let second = site.post("/v1/responses", &request).await;
    assert_eq!(second.status, 200, "{}", second.body);
    assert_eq!(site.last_seen()["image"], json!([png(1), png(2)]));
    assert_eq!(site.last_seen()["text_input"], "[user] What?<image>\n[assistant] ok\n[user] <image>\n>");
    let by_file = user(json!([{"type": "input_image", "file_id": "file-1"}]));
    let refused = site.post("/v1/responses", &json!({"model": "bare", "input": [by_file]})).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("input")));
}

#[tokio::test]
async fn images_that_cannot_be_used_are_refused_by_place_and_reach_no_model() {
    let limits = r#"parameters { key: "max_images" value { string_value: "3" } }
        parameters { key: "max_image_bytes" value { string_value: "64" } }"#;
    let several = seeing_site(-1, limits).await;
    let single = seeing_site(1, "").await;
    let blind = site(VLLM, words(&["ok"])).await;
    let placeless = site(&seeing(-1), words(&["ok"])).await;
    let broken = seeing_site(-1, r#"parameters { key: "max_images" value { string_value: "many" } }"#).await;
    let of = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let many = Value::from(vec![image(0); 10_000]);
    for (site, content, status, expected) in [
        (&several, json!([of("https://example.com/a.png")]), 400, "not fetched"),
        (
            &several,
            json!(["a", of("data:image/svg+xml;base64,PHN2Zy8+")]),
            400,
            "'messages[0].content[1]': images of type",
        ),
        (&several, json!([of("data:image/png;base64,iVBO!")]), 400, "not valid base64: Invalid symbol 33"),
        (&several, json!([of(&url(&STANDARD.encode([0; 8])))]), 400, "not a PNG, JPEG, WebP or GIF"),
        (
            &several,
            json!([of(&url(&STANDARD.encode([b"\x89PNG\r\n\x1a\n".as_slice(), &[0; 57]].concat())))]),
            400,
            "larger than 64 bytes",
        ),
        (&several, many, 400, "'messages[0].content[3]': model 'bare' takes at most 3 images"),
        (&several, json!([{"type": "image_url", "image_url": 1}]), 400, "has no URL"),
        (&single, json!([image(1), image(2)]), 400, "takes at most 1 images"),
        (&blind, json!([image(1)]), 400, "model 'm' takes no images: it has no BYTES input 'image'"),
        (&placeless, json!([image(1)]), 400, "the chat template of model 'm' has no place for images"),
        (&broken, json!([image(1)]), 500, "parameter 'max_images' is 'many', but must be a number above 0"),
    ] {
        let model = if expected.contains("model 'm'") { "m" } else { "bare" };
        let request = json!({"model": model, "messages": [user(content)]});
        let answer = site.post("/v1/chat/completions", &request).await;
        assert_eq!(answer.status, status, "{expected}: {}", answer.body);
        assert!(
            answer.json()["error"]["message"].as_str().unwrap().contains(expected),
            "{expected}: {}",
            answer.body
        );
        assert!(site.seen.lock().unwrap().is_empty());
    }
    let one = json!({"model": "bare", "messages": [user(json!([image(1)]))]});
    for site in [&several, &single] {
        assert_eq!(site.post("/v1/chat/completions", &one).await.status, 200);
        assert_eq!(site.last_seen()["image"], json!(png(1)));
    }
}
