//! Settings as clients see and change them, and changes that are wrong.

use serde_json::json;

use crate::testing::{Serving, echo, http_options, serve, server};

const CONFIG: &str = r#"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"#;
const TRACE: &str = "/v2/trace/setting";
const MODEL_TRACE: &str = "/v2/models/m/trace/setting";
const LOGGING: &str = "/v2/logging";

async fn serving() -> Serving {
    serve(server(CONFIG, echo), http_options()).await
}

/// The status and the JSON of an answer.
async fn ask(serving: &Serving, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
    let answer = serving.ask(method, path, "", body).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn a_change_affects_only_the_named_log_settings() {
    let serving = serving().await;
    let mut expected = json!({
        "log_file": "", "log_info": true, "log_warning": true, "log_error": true, "log_verbose_level": 0,
        "log_format": "default",
    });
    assert_eq!(ask(&serving, "GET", LOGGING, "").await, (200, expected.clone()));
    let change = r#"{"log_info": false, "log_verbose_level": 2, "log_format": "ISO8601", "log_warning": null, "x": 1}"#;
    expected["log_info"] = json!(false);
    expected["log_verbose_level"] = json!(2);
    expected["log_format"] = json!("ISO8601");
    assert_eq!(ask(&serving, "POST", LOGGING, change).await, (200, expected.clone()));
    for nothing in ["{}", "[]", "null", r#"{"log_file": null}"#] {
        assert_eq!(ask(&serving, "POST", LOGGING, nothing).await, (200, expected.clone()), "{nothing}");
    }
}

#[tokio::test]
async fn a_wrong_log_setting_changes_nothing() {
    let serving = serving().await;
    let before = ask(&serving, "GET", LOGGING, "").await;
    for (body, status) in [
        ("", 500),
        ("{", 500),
        (r#"{"log_file": "x"}"#, 501),
        (r#"{"log_info": 3}"#, 500),
        (r#"{"log_error": "true"}"#, 500),
        (r#"{"log_verbose_level": -1}"#, 500),
        (r#"{"log_verbose_level": 1.5}"#, 500),
        (r#"{"log_verbose_level": "1"}"#, 500),
        (r#"{"log_verbose_level": 4294967296}"#, 400),
        (r#"{"log_format": 3}"#, 500),
        (r#"{"log_info": false, "log_format": "x"}"#, 503),
    ] {
        let (seen, answer) = ask(&serving, "POST", LOGGING, body).await;
        assert_eq!(seen, status, "{body}");
        assert!(answer["error"].is_string(), "{body}");
    }
    let long = format!(r#"{{"x": "{}"}}"#, "x".repeat(1020));
    assert_eq!(ask(&serving, "POST", LOGGING, &long).await.0, 400);
    assert_eq!(ask(&serving, "GET", LOGGING, "").await, before);
}

#[tokio::test]
async fn a_model_follows_the_global_trace_settings() {
    let serving = serving().await;
    let settings = |rate: &str, count: &str| {
        json!({
            "trace_level": ["OFF"], "trace_rate": rate, "trace_count": count, "log_frequency": "0", "trace_file": "",
            "trace_mode": "triton",
        })
    };
    assert_eq!(ask(&serving, "GET", TRACE, "").await, (200, settings("1000", "-1")));
    let change = r#"{"trace_rate": "77", "trace_count": "5"}"#;
    assert_eq!(ask(&serving, "POST", TRACE, change).await, (200, settings("77", "5")));
    assert_eq!(ask(&serving, "POST", MODEL_TRACE, r#"{"trace_rate": "3"}"#).await, (200, settings("3", "5")));
    assert_eq!(ask(&serving, "GET", TRACE, "").await, (200, settings("77", "5")));
    let clear = r#"{"trace_rate": null, "trace_level": null, "trace_count": null, "log_frequency": null}"#;
    assert_eq!(ask(&serving, "POST", MODEL_TRACE, clear).await, (200, settings("77", "5")));
    assert_eq!(ask(&serving, "POST", TRACE, clear).await, (200, settings("1000", "-1")));
    for nothing in
        ["{}", "[]", r#"{"trace_level": ["NONE"]}"#, r#"{"trace_level": []}"#, r#"{"trace_mode": "x"}"#]
    {
        assert_eq!(ask(&serving, "POST", TRACE, nothing).await, (200, settings("1000", "-1")), "{nothing}");
    }
}

#[tokio::test]
async fn a_wrong_trace_setting_changes_nothing() {
    let serving = serving().await;
    let before = ask(&serving, "GET", TRACE, "").await;
    for (body, status) in [
        ("", 500),
        (r#"{"trace_file": "x"}"#, 501),
        (r#"{"trace_file": null}"#, 501),
        (r#"{"trace_level": "OFF"}"#, 500),
        (r#"{"trace_level": [3]}"#, 500),
        (r#"{"trace_level": ["OFF", "TENSORS"]}"#, 400),
        (r#"{"trace_level": ["TIMESTAMPS"]}"#, 400),
        (r#"{"trace_rate": 3}"#, 500),
        (r#"{"trace_rate": "x"}"#, 400),
        (r#"{"trace_rate": "-5"}"#, 400),
        (r#"{"trace_rate": "4294967296"}"#, 400),
        (r#"{"trace_count": "-2"}"#, 400),
        (r#"{"trace_count": ""}"#, 400),
        (r#"{"log_frequency": "12abc"}"#, 400),
        (r#"{"trace_rate": "5", "trace_count": "x"}"#, 400),
    ] {
        for path in [TRACE, MODEL_TRACE] {
            let (seen, answer) = ask(&serving, "POST", path, body).await;
            assert_eq!(seen, status, "{body}");
            assert!(answer["error"].is_string(), "{body}");
        }
    }
    assert_eq!(ask(&serving, "GET", TRACE, "").await, before);
    assert_eq!(ask(&serving, "GET", "/v2/models/other/trace/setting", "").await.0, 400);
    assert_eq!(ask(&serving, "POST", "/v2/models/other/trace/setting", "{}").await.0, 400);
    assert_eq!(ask(&serving, "GET", "/v2/models/m/versions/1/trace/setting", "").await.0, 404);
}
