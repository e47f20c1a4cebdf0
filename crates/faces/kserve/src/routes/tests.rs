//! Known and unknown paths and methods, restricted groups, and forwarded headers.

use std::sync::Arc;

use nereid_core::Principal;
use nereid_core::backend_api::ParameterValue;
use nereid_protocol::{
    Access, Action, Authentication, Authenticator, Authorizer, Denied, Head, Identity, Restrictions,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::testing::{echo, empty_server, http_options, request, serve, server};
use crate::{HeaderPattern, HttpOptions};

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap()
}

#[tokio::test]
async fn other_methods_and_paths_are_refused() {
    let serving = serve(empty_server(), http_options()).await;
    for method in ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "POST", "BREW"] {
        let answer = serving.ask(method, "/v2/health/live", "", "").await;
        assert_eq!(status(&answer), "405", "{method}");
        assert!(answer.contains("\r\nallow: GET\r\n"), "{answer}");
        assert_eq!(status(&serving.ask(method, "/nowhere", "", "").await), "404", "{method}");
    }
    assert_eq!(status(&serving.ask("GET", "/v2/models/m/versions/new/config", "", "").await), "404");
    let too_large = "/v2/models/m/versions/99999999999999999999";
    assert_eq!(status(&serving.ask("GET", too_large, "", "").await), "400");
}

#[tokio::test]
async fn restricted_group_requires_its_key() {
    let restrictions = ["inference,metadata:key-a=one", "health:Key-B=two"].map(|text| text.parse().unwrap());
    let options = HttpOptions { access: Restrictions::new(restrictions).unwrap().into(), ..http_options() };
    let serving = serve(empty_server(), options).await;
    for (method, path, headers, expected) in [
        ("GET", "/v2", "", "403"),
        ("GET", "/v2", "key-a: two\r\n", "403"),
        ("GET", "/v2", "key-b: one\r\n", "403"),
        ("GET", "/v2", "Key-A: one\r\n", "200"),
        ("GET", "/v2/", "", "403"),
        ("GET", "/v2/", "Key-A: one\r\n", "200"),
        ("GET", "/v2//", "Key-A: one\r\n", "404"),
        ("GET", "/v2/health/live", "key-b: two\r\n", "200"),
        ("GET", "/v2/health/live", "key-a: one\r\n", "403"),
        ("GET", "/v2/models/m/ready", "", "403"),
        ("POST", "/v2/models/m/infer", "", "403"),
        ("POST", "/v2/models/m/generate", "", "403"),
        ("PUT", "/v2/models/m/infer", "", "403"),
        ("PUT", "/v2/models/m/infer", "key-a: one\r\n", "405"),
        ("POST", "/v2/models/m/infer", "key-a: one\r\n", "404"),
        ("GET", "/v2/models/stats", "", "200"),
    ] {
        let answer = serving.ask(method, path, headers, "").await;
        assert_eq!(status(&answer), expected, "{method} {path} {headers}");
    }
}

/// Lets each client see the model of its name alone.
#[derive(Debug)]
struct ByName;

impl Authenticator for ByName {
    fn authenticate<'a>(&'a self, identity: Identity, head: &'a dyn Head) -> Authentication<'a> {
        let name = String::from_utf8_lossy(head.header("user").unwrap_or_default());
        Authentication::Done(Ok(identity.with_principal(Principal::new(name))))
    }

    fn is_secret(&self, name: &str) -> bool {
        name == "user"
    }
}

impl Authorizer for ByName {
    fn check(&self, caller: &Identity, _: Action, model: Option<&str>) -> Result<(), Denied> {
        let name = caller.principal.as_ref().map_or("", Principal::name);
        match model {
            Some(model) if model != name => Err(Denied::Forbidden(format!("{name} may not"))),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn rights_by_model_apply_to_every_route_and_to_lists() {
    let access = Access::default().with_authenticator(Arc::new(ByName)).with_authorizer(Arc::new(ByName));
    let serving = serve(server(CONFIG, echo), HttpOptions { access, ..http_options() }).await;
    for (method, path) in [
        ("GET", "/v2/models/m"),
        ("GET", "/v2/models/m/config"),
        ("GET", "/v2/models/m/ready"),
        ("GET", "/v2/models/m/stats"),
        ("GET", "/v2/models/m/versions/1/stats"),
        ("GET", "/v2/models/m/trace/setting"),
        ("POST", "/v2/models/m/trace/setting"),
        ("POST", "/v2/models/m/infer"),
        ("POST", "/v2/models/m/generate"),
        ("POST", "/v2/models/m/generate_stream"),
        ("POST", "/v2/repository/models/m/load"),
        ("POST", "/v2/repository/models/m/unload"),
    ] {
        let body = if path.ends_with("infer") { BODY } else { "{}" };
        let refused = serving.ask(method, path, "user: x\r\n", body).await;
        assert_eq!(status(&refused), "403", "{method} {path}");
        let answer = serving.ask(method, path, "user: m\r\n", body).await;
        assert_ne!(status(&answer), "403", "{method} {path}");
    }
    for (method, path) in [("GET", "/v2/models/stats"), ("POST", "/v2/repository/index")] {
        for (user, is_seen) in [("m", true), ("x", false)] {
            let answer = serving.ask(method, path, &format!("user: {user}\r\n"), "").await;
            assert!(status(&answer) == "200" && answer.contains(r#""name":"m""#) == is_seen, "{answer}");
        }
    }
}

/// Refuses one action.
#[derive(Debug)]
struct Without(Action);

impl Authorizer for Without {
    fn check(&self, _: &Identity, action: Action, _: Option<&str>) -> Result<(), Denied> {
        if action == self.0 { Err(Denied::Forbidden("not permitted".to_owned())) } else { Ok(()) }
    }
}

#[tokio::test]
async fn parts_of_a_request_may_need_further_rights() {
    let region = r#"{"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "parameters":
        {"shared_memory_region": "r", "shared_memory_byte_size": 4}}]}"#;
    let files = r#"{"parameters": {"file:1/model.onnx": "aGk="}}"#;
    let config = r#"{"parameters": {"config": "{}"}}"#;
    for (action, path, body, refused) in [
        (Action::UseRegions, "/v2/models/m/infer", region, true),
        (Action::UseRegions, "/v2/models/m/infer", BODY, false),
        (Action::LoadFiles, "/v2/repository/models/m/load", files, true),
        (Action::LoadFiles, "/v2/repository/models/m/load", config, true),
        (Action::LoadFiles, "/v2/repository/models/m/load", r#"{"parameters": {}}"#, false),
        (Action::LoadFiles, "/v2/repository/models/m/load", "", false),
    ] {
        let access = Access::default().with_authorizer(Arc::new(Without(action)));
        let limited = serve(server(CONFIG, echo), HttpOptions { access, ..http_options() }).await;
        let open = serve(server(CONFIG, echo), http_options()).await;
        let (limited, open) = (limited.post(path, body).await, open.post(path, body).await);
        assert_eq!(status(&limited) == "403", refused, "{action:?} {body}: {limited}");
        assert_eq!(status(&limited) == status(&open), !refused, "{action:?} {body}: {open}");
    }
}

#[tokio::test]
async fn document_has_examples_of_visible_models_alone() {
    for (user, is_seen) in [("m", true), ("x", false)] {
        let access = Access::default().with_authenticator(Arc::new(ByName)).with_authorizer(Arc::new(ByName));
        let serving = serve(server(CONFIG, echo), HttpOptions { access, ..http_options() }).await;
        let document = serving.ask("GET", "/v2/openapi.json", &format!("user: {user}\r\n"), "").await;
        assert_eq!(status(&document), "200");
        assert_eq!(document.contains(r#""value":"m""#), is_seen, "{document}");
    }
}

const CONFIG: &str = r#"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"#;
const BODY: &str = r#"{"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [7]}]}"#;

#[tokio::test]
async fn headers_become_parameters_in_every_request_of_a_connection() {
    let options =
        HttpOptions { forwarded_headers: Some(HeaderPattern::new("^x-").unwrap()), ..http_options() };
    let serving = serve(server(CONFIG, echo), options).await;
    let mut stream = serving.connect().await;
    for name in ["X-One", "x-TWO"] {
        let sent = request("POST", "/v2/models/m/infer", &format!("{name}: a b\r\nY: 1\r\n"), BODY);
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]);
        assert!(answer.contains(&format!(r#""parameters":{{"{name}":"a b"}}"#)), "{answer}");
    }
    let generated = serving.ask("POST", "/v2/models/m/generate", "X-Three: 3\r\n", r#"{"IN": 1}"#).await;
    assert!(generated.contains(r#""X-Three":"3""#), "{generated}");
}

#[tokio::test]
async fn credentials_are_not_forwarded_to_models() {
    let pattern = Some(HeaderPattern::new("user|x-").unwrap());
    let access = Access::default().with_authenticator(Arc::new(ByName));
    let options = HttpOptions { access, forwarded_headers: pattern, ..http_options() };
    let serving = serve(server(CONFIG, echo), options).await;
    for path in ["infer", "generate"] {
        let body = if path == "infer" { BODY } else { r#"{"IN": 1}"# };
        let headers = "USER: secret\r\nX-User: 2\r\n";
        let answer = serving.ask("POST", &format!("/v2/models/m/{path}"), headers, body).await;
        assert!(answer.contains(r#""X-User":"2""#) && !answer.contains("secret"), "{answer}");
    }
}

#[tokio::test]
async fn reserved_headers_are_refused_only_where_they_are_forwarded() {
    let options =
        HttpOptions { forwarded_headers: Some(HeaderPattern::new(".*").unwrap()), ..http_options() };
    let all = serve(server(CONFIG, echo), options).await;
    assert_eq!(status(&all.ask("POST", "/v2/models/m/infer", "priority: 1\r\n", BODY).await), "400");
    let none = serve(
        server(CONFIG, |request| {
            assert_eq!(request.parameters.get("priority"), None::<&ParameterValue>);
            echo(request);
        }),
        http_options(),
    )
    .await;
    assert_eq!(status(&none.ask("POST", "/v2/models/m/infer", "priority: 1\r\n", BODY).await), "200");
}
