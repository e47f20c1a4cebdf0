//! Responses of models, and errors.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::request::placement;
use crate::{Code, DataType, Error, InferResponse, Parameter, Parameters, RequestedOutput, Tensor};

/// The most bytes of a body that are shown as a message.
const SHOWN: usize = 500;

/// Reads a response whose JSON has this length; `None` if it is all. `requested` are the outputs of the request.
///
/// # Errors
/// The response is not of KServe v2.
pub(super) fn read(
    body: &Bytes,
    json_length: Option<usize>,
    requested: &[RequestedOutput],
) -> Result<InferResponse, Error> {
    let json_length = json_length.unwrap_or(body.len());
    let head = body.get(..json_length).ok_or_else(|| Error::response("the body is cut off"))?;
    let head: Value =
        serde_json::from_slice(head).map_err(|error| Error::response(format!("no JSON: {error}")))?;
    let mut rest = body.slice(json_length..);
    let list = head["outputs"].as_array().ok_or_else(|| Error::response("no outputs"))?;
    let outputs = list.iter().map(|output| tensor(output, &mut rest, requested)).collect::<Result<_, _>>()?;
    let text = |name: &str| head[name].as_str().unwrap_or_default().to_owned();
    Ok(InferResponse {
        model: text("model_name"),
        version: text("model_version"),
        id: text("id"),
        parameters: parameters(&head["parameters"]),
        outputs,
    })
}

/// Reads an output, whose binary form is at the beginning of `rest`.
fn tensor(output: &Value, rest: &mut Bytes, requested: &[RequestedOutput]) -> Result<Tensor, Error> {
    let name = output["name"].as_str().unwrap_or_default();
    let wrong = |reason: &str| Error::response(format!("output '{name}' {reason}"));
    let data_type = output["datatype"].as_str().unwrap_or_default();
    let data_type = DataType::from_protocol_name(data_type)
        .ok_or_else(|| wrong(&format!("has the unknown datatype '{data_type}'")))?;
    let sizes = output["shape"].as_array().ok_or_else(|| wrong("has no shape"))?;
    let sizes = sizes.iter().map(|size| usize::try_from(size.as_u64()?).ok());
    let shape = sizes.collect::<Option<Vec<_>>>().ok_or_else(|| wrong("has an invalid shape"))?;
    let parameters = &output["parameters"];
    let number = |name: &str| usize::try_from(parameters[name].as_u64()?).ok();
    if let Some(region) = placement(requested, name) {
        let region = region.of_output(number("shared_memory_byte_size"), data_type, &shape);
        return Ok(Tensor::in_region(name.to_owned(), data_type, shape, region));
    }
    match number("binary_data_size") {
        None => Tensor::from_json(name, data_type, shape, &output["data"]),
        Some(size) if size > rest.len() => Err(wrong("is cut off")),
        Some(size) => Tensor::from_bytes(name, data_type, shape, rest.split_to(size))
            .map_err(|error| wrong(&format!("is damaged: {error}"))),
    }
}

fn parameters(document: &Value) -> Parameters {
    let read = |value: &Value| {
        Some(match value {
            Value::Bool(value) => Parameter::Bool(*value),
            Value::String(value) => Parameter::Text(value.clone()),
            Value::Number(value) => match value.as_i64() {
                Some(value) => Parameter::Int(value),
                None => Parameter::Double(value.as_f64()?),
            },
            _ => return None,
        })
    };
    let all = document.as_object().into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.clone(), read(value)?))).collect()
}

/// The error of a response that is not successful.
pub(super) fn error(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
    let code = match status.as_u16() {
        400 | 413 | 415 | 422 => Code::InvalidArgument,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        405 | 501 => Code::Unimplemented,
        408 | 504 => Code::DeadlineExceeded,
        409 => Code::AlreadyExists,
        429 => Code::ResourceExhausted,
        499 => Code::Cancelled,
        500 => Code::Internal,
        503 => Code::Unavailable,
        _ => Code::Unknown,
    };
    let retry_after = headers.get("retry-after").and_then(|value| value.to_str().ok()?.trim().parse().ok());
    Error::Status { code, message: message(status, body), retry_after: retry_after.map(Duration::from_secs) }
}

/// The message of an error: of KServe v2, or of servers that have another form.
fn message(status: StatusCode, body: &[u8]) -> String {
    let document = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let found = ["error", "detail", "message"].iter().find_map(|name| document.get(name)?.as_str());
    let message = match found {
        Some(message) => message.to_owned(),
        None => String::from_utf8_lossy(body.get(..SHOWN).unwrap_or(body)).trim().to_owned(),
    };
    if message.is_empty() { format!("status {status}") } else { message }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn errors_have_a_kind_a_message_and_a_time() {
        for (status, retry_after, body, expected) in [
            (503, Some("3"), r#"{"error": "busy"}"#, (Code::Unavailable, "busy", Some(3))),
            (429, Some("x"), r#"{"detail": "limit"}"#, (Code::ResourceExhausted, "limit", None)),
            (404, None, "not here\n", (Code::NotFound, "not here", None)),
            (502, None, "", (Code::Unknown, "status 502 Bad Gateway", None)),
            (422, None, r#"{"detail": [1]}"#, (Code::InvalidArgument, r#"{"detail": [1]}"#, None)),
        ] {
            let mut headers = HeaderMap::new();
            headers.extend(retry_after.map(|value| (http::header::RETRY_AFTER, value.parse().unwrap())));
            let found = error(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes());
            let (code, message, seconds) = expected;
            let retry_after = seconds.map(Duration::from_secs);
            assert_eq!(found, Error::Status { code, message: message.into(), retry_after });
        }
    }

    #[test]
    fn responses_mix_binary_tensors_json_and_shared_memory() {
        let head = json!({"model_name": "m", "model_version": "2", "id": "7", "parameters": {"n": 1, "f": 0.5, "b": true, "l": []}, "outputs": [
            {"name": "a", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}},
            {"name": "b", "datatype": "BOOL", "shape": [1, 2], "data": [[true, false]]},
            {"name": "c", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
            {"name": "d", "datatype": "FP32", "shape": [1], "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4}},
            {"name": "e", "datatype": "INT64", "shape": [3]},
        ]})
        .to_string();
        let body: Bytes = [head.as_bytes(), &[1, 0, 2, 0], &[1, 0, 0, 0, b'x']].concat().into();
        let region = |offset| Some(crate::tensor::Region { name: "r".into(), offset, size: 32 });
        let requested = [("d", 8), ("e", 64)]
            .map(|(name, offset)| RequestedOutput { region: region(offset), ..name.into() });
        let response = read(&body, Some(head.len()), &requested).unwrap();
        assert_eq!(
            (response.model.as_str(), response.version.as_str(), response.id.as_str()),
            ("m", "2", "7")
        );
        assert_eq!(response.output("a").unwrap().to_vec::<i16>().unwrap(), [1, 2]);
        assert_eq!(response.output("b").unwrap().to_vec::<bool>().unwrap(), [true, false]);
        assert_eq!(response.output("c").unwrap().to_strings().unwrap(), ["x"]);
        assert!(response.output("d").unwrap().bytes().unwrap_err().to_string().contains("'r'"));
        let sizes = ["d", "e"].map(|name| match response.output(name).unwrap().contents() {
            crate::tensor::Contents::Region(region) => (region.offset, region.size),
            contents => panic!("{contents:?}"),
        });
        assert_eq!(sizes, [(8, 4), (64, 24)]);
        assert!(response.output("f").unwrap_err().to_string().contains("outputs: a, b, c, d, e"));
        let names: Vec<_> = response.parameters.iter().collect();
        assert_eq!(names.len(), 3, "{names:?}");
        for cut in 1..=9 {
            let found = read(&body.slice(..body.len() - cut), Some(head.len()), &requested);
            assert!(matches!(&found, Err(Error::Response(_))), "{cut}: {found:?}");
        }
    }

    #[test]
    fn damaged_responses_are_errors() {
        let output = json!({"name": "y", "datatype": "FP32", "shape": [1], "data": [1]});
        let changed = |name: &str, value: Value| {
            let mut output = output.clone();
            output[name] = value;
            json!({"outputs": [output]}).to_string()
        };
        for body in [
            "<html>".to_owned(),
            "{}".to_owned(),
            changed("datatype", json!("FP33")),
            changed("shape", json!([-1])),
            changed("shape", json!(null)),
            changed("data", json!([])),
            changed("parameters", json!({"binary_data_size": u64::MAX})),
        ] {
            let found = read(&body.clone().into(), None, &[]);
            assert!(matches!(found, Err(Error::Response(_))), "{body}: {found:?}");
        }
        assert!(read(&changed("name", json!("z")).into(), None, &[]).is_ok());
        assert!(read(&"{}".into(), Some(3), &[]).is_err());
    }
}
