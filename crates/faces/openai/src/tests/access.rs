//! Access: rights on the model that a body names, and the form of refusals.

use std::time::Duration;

use nereid_core::{ModelId, Principal};
use nereid_protocol::{
    Access, Action, Admission, Authentication, Authenticator, Authorizer, Denied, Exhausted, Head, Identity,
    Restrictions,
};

use super::*;

/// Refuses the model `m`, and limits other models to one request.
#[derive(Debug, Default)]
struct Strict(Mutex<u32>);

impl Authorizer for Strict {
    fn check(&self, _: &Identity, action: Action, model: Option<&str>) -> Result<(), Denied> {
        match model {
            Some("m" | "m:adapter") => Err(Denied::Forbidden(format!("{action:?} of m"))),
            _ => Ok(()),
        }
    }

    fn admit(&self, _: &Identity, model: &ModelId, bytes: usize) -> Result<Option<Admission>, Denied> {
        assert!(bytes > 0);
        assert_eq!(model.name, "bare");
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
    let options =
        OpenAiOptions { access, path_prefix: Some("/openai".parse().unwrap()), ..OpenAiOptions::default() };
    let site = site_with(VLLM, options, words(&["a"])).await;
    let request =
        |model: &str| json!({"model": model, "prompt": "x", "messages": [], "input": "x", "query": "x"});
    for path in ["chat/completions", "completions", "embeddings", "responses", "rerank", "score"] {
        for (root, model) in [("", "m"), ("", "m:adapter"), ("/openai", "m"), ("/openai", "m:adapter")] {
            let answer = site.post(&format!("{root}/v1/{path}"), &request(model)).await;
            let error = answer.json()["error"].clone();
            assert_eq!((answer.status, &error["message"]), (403, &json!("Infer of m")), "{path}");
            assert_eq!(error["type"], "permission_error");
        }
    }
    let names = site.ask("GET", "/v1/models", "").await.json();
    assert_eq!(names["data"].as_array().unwrap().len(), 1);
    for root in ["", "/openai"] {
        assert_eq!(site.ask("GET", &format!("{root}/v1/models/m"), "").await.status, 403);
        assert_eq!(site.ask("POST", &format!("{root}/v1/models/m/unload"), "").await.status, 403);
    }
    assert!(site.seen.lock().unwrap().is_empty());
    assert_eq!(site.post("/v1/completions", &request("bare")).await.status, 200);
    let second = site.post("/v1/completions", &request("bare")).await;
    assert_eq!((second.status, &second.json()["error"]["code"]), (429, &json!("rate_limit_exceeded")));
    assert!(second.head.contains("retry-after: 2"), "{}", second.head);
}

/// Takes the principal from a header. `guest` may not run the model `m`.
#[derive(Debug)]
struct ByHeader;

impl Authenticator for ByHeader {
    fn authenticate<'a>(&'a self, identity: Identity, head: &'a dyn Head) -> Authentication<'a> {
        let name = String::from_utf8_lossy(head.header("user").unwrap_or(b"nobody")).into_owned();
        Authentication::Done(Ok(identity.with_principal(Principal::new(name))))
    }
}

impl Authorizer for ByHeader {
    fn check(&self, caller: &Identity, _: Action, model: Option<&str>) -> Result<(), Denied> {
        let name = caller.principal.as_ref().map_or("", Principal::name);
        match (name, model) {
            ("guest", Some("m")) => Err(Denied::Forbidden("no".to_owned())),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn stored_answers_belong_to_their_principal() {
    let access = Access::default().with_authenticator(Arc::new(ByHeader)).with_authorizer(Arc::new(ByHeader));
    let site = site_with(VLLM, OpenAiOptions { access, ..OpenAiOptions::default() }, words(&["a"])).await;
    let ask = async |user: &str, method: &str, path: &str, body: Value| {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let headers = format!("user: {user}\r\nConnection: close\r\n");
        let mut stream = site.connect(method, path, &headers, &body).await;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head[9..12].to_owned(), serde_json::from_str::<Value>(body).unwrap())
    };
    let (status, answer) = ask("ann", "POST", "/v1/responses", json!({"model": "m", "input": "Hi"})).await;
    assert_eq!(status, "200");
    let path = format!("/v1/responses/{}", answer["id"].as_str().unwrap());
    let continued = json!({"model": "m", "input": "Hi", "previous_response_id": answer["id"]});
    for user in ["ben", "guest"] {
        assert_eq!(ask(user, "GET", &path, Value::Null).await.0, "404");
        assert_eq!(ask(user, "DELETE", &path, Value::Null).await.0, "404");
    }
    let (status, refused) = ask("ben", "POST", "/v1/responses", continued.clone()).await;
    assert_eq!((status.as_str(), &refused["error"]["code"]), ("400", &json!("previous_response_not_found")));
    assert_eq!(ask("ann", "POST", "/v1/responses", continued).await.0, "200");
    assert_eq!(ask("ann", "GET", &path, Value::Null).await, ("200".to_owned(), answer));
    assert_eq!(ask("ann", "DELETE", &path, Value::Null).await.0, "200");
}

#[tokio::test]
async fn restricted_groups_apply_to_this_face() {
    let restrictions = Restrictions::new(["inference:key=secret".parse().unwrap()]).unwrap();
    let path_prefix = Some("/openai".parse().unwrap());
    let options = OpenAiOptions { access: restrictions.into(), path_prefix, ..OpenAiOptions::default() };
    let site = site_with(VLLM, options, words(&["a"])).await;
    let body = json!({"model": "bare", "prompt": "x"});
    for root in ["", "/openai"] {
        let path = format!("{root}/v1/completions");
        let answer = site.post(&path, &body).await;
        assert_eq!((answer.status, &answer.json()["error"]["type"]), (403, &json!("permission_error")));
        let mut stream =
            site.connect("POST", &path, "key: secret\r\nConnection: close\r\n", &body.to_string()).await;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        assert_eq!(site.ask("GET", &format!("{root}/v1/models"), "").await.status, 200);
    }
}
