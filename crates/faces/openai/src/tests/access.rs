//! Access: rights on the model that a body names, and the form of refusals.

use std::time::Duration;

use nereid_protocol::{Access, Action, Admission, Authorizer, Denied, Exhausted, Identity, Restrictions};

use super::*;

/// Refuses the model `m`, and limits other models to one request.
#[derive(Debug, Default)]
struct Strict(Mutex<u32>);

impl Authorizer for Strict {
    fn check(&self, _: &Identity, action: Action, model: Option<&str>) -> Result<(), Denied> {
        match model {
            Some("m") => Err(Denied::Forbidden(format!("{action:?} of m"))),
            _ => Ok(()),
        }
    }

    fn admit(&self, _: &Identity, model: &str, bytes: usize) -> Result<Option<Admission>, Denied> {
        assert!(bytes > 0);
        assert_eq!(model, "bare");
        let mut count = self.0.lock().unwrap();
        *count += 1;
        match *count {
            1 => Ok(None),
            _ => Err(Denied::Exhausted(Exhausted {
                message: "one request".into(),
                limit: 1,
                retry_after: Duration::from_millis(1500),
            })),
        }
    }
}

#[tokio::test]
async fn rights_and_quotas_apply_to_the_model_in_the_body() {
    let access = Access::default().with_authorizer(Arc::new(Strict::default()));
    let site = site_with(VLLM, OpenAiOptions { access, ..OpenAiOptions::default() }, words(&["a"])).await;
    let request =
        |model: &str| json!({"model": model, "prompt": "x", "messages": [], "input": "x", "query": "x"});
    for path in ["chat/completions", "completions", "embeddings", "responses", "rerank", "score"] {
        for model in ["m", "m:adapter"] {
            let answer = site.post(&format!("/v1/{path}"), &request(model)).await;
            let error = answer.json()["error"].clone();
            assert_eq!((answer.status, &error["message"]), (403, &json!("Infer of m")), "{path}");
            assert_eq!(error["type"], "permission_error");
        }
    }
    let names = site.ask("GET", "/v1/models", "").await.json();
    assert_eq!(names["data"].as_array().unwrap().len(), 1);
    assert_eq!(site.ask("GET", "/v1/models/m", "").await.status, 403);
    assert_eq!(site.ask("POST", "/v1/models/m/unload", "").await.status, 403);
    assert!(site.seen.lock().unwrap().is_empty());
    assert_eq!(site.post("/v1/completions", &request("bare")).await.status, 200);
    let second = site.post("/v1/completions", &request("bare")).await;
    assert_eq!((second.status, &second.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(second.head.contains("retry-after: 2"), "{}", second.head);
}

#[tokio::test]
async fn restricted_groups_apply_to_this_face() {
    let restrictions = Restrictions::new(["inference:key=secret".parse().unwrap()]).unwrap();
    let options = OpenAiOptions { access: restrictions.into(), ..OpenAiOptions::default() };
    let site = site_with(VLLM, options, words(&["a"])).await;
    let body = json!({"model": "bare", "prompt": "x"});
    let answer = site.post("/v1/completions", &body).await;
    assert_eq!((answer.status, &answer.json()["error"]["type"]), (403, &json!("permission_error")));
    let mut stream = site
        .connect("POST", "/v1/completions", "key: secret\r\nConnection: close\r\n", &body.to_string())
        .await;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(site.ask("GET", "/v1/models", "").await.status, 200);
}
