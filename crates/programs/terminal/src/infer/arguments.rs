//! Inputs and parameters from the command line: `NAME=value` or `NAME=@file`.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};
use tensor_types::DataType;

use super::pictures::Adjustment;
use super::signature::{Input, Signature};
use super::tensor::{Element, Tensor, Values, elements, nested};
use super::{npy, pictures};

/// The inputs of a request.
///
/// # Errors
/// An input is missing, unknown, named twice, or has values that it cannot have.
pub(super) fn inputs(
    model: &str,
    given: &[String],
    adjustment: Adjustment,
    signature: &Signature,
) -> Result<Vec<Tensor>, String> {
    let mut tensors: Vec<Tensor> = Vec::new();
    for argument in given {
        let (name, value) = argument.split_once('=').ok_or_else(|| {
            format!(
                "'{argument}' must be INPUT=value or INPUT=@file; model '{model}' takes {}",
                signature.describe()
            )
        })?;
        let input = signature.inputs.iter().find(|input| input.name == name).ok_or_else(|| {
            format!("model '{model}' has no input '{name}' (available: {})", signature.describe())
        })?;
        if tensors.iter().any(|tensor| tensor.name == name) {
            return Err(format!("input '{name}' is given twice"));
        }
        tensors.push(tensor(adjustment, input, value)?);
    }
    let is_missing =
        |input: &&Input| !input.is_optional && tensors.iter().all(|tensor| tensor.name != input.name);
    match signature.inputs.iter().find(is_missing) {
        None => Ok(tensors),
        Some(input) => Err(format!(
            "input '{}' is missing: give {}=value or {}=@file; model '{model}' takes {}",
            input.name,
            input.name,
            input.name,
            signature.describe()
        )),
    }
}

fn tensor(adjustment: Adjustment, input: &Input, value: &str) -> Result<Tensor, String> {
    let (shape, elements) = match value.strip_prefix('@') {
        None => written(input, value).map_err(|reason| format!("input '{}': {reason}", input.name))?,
        Some(path) => {
            let path = Path::new(path);
            let content =
                fs::read(path).map_err(|error| format!("cannot read '{}': {error}", path.display()))?;
            let values = from_file(adjustment, input, path, content);
            values.map_err(|reason| format!("input '{}': '{}' {reason}", input.name, path.display()))?
        }
    };
    Tensor::new(&input.name, input.data_type, input.fit(&shape)?, &elements)
}

/// A value on the command line: JSON, numbers, or a text for byte strings.
fn written(input: &Input, value: &str) -> Result<Values, String> {
    let is_text = input.data_type == DataType::Bytes;
    match serde_json::from_str(value) {
        Ok(document @ Value::Array(_)) => nested(&document),
        Ok(Value::String(text)) if is_text => Ok((Vec::new(), vec![Element::Bytes(text.into())])),
        _ if is_text => Ok((Vec::new(), vec![Element::Bytes(value.into())])),
        Ok(document) => nested(&document),
        Err(_) => numbers(value),
    }
}

/// Numbers with commas or blanks between them.
fn numbers(text: &str) -> Result<Values, String> {
    let parts = text.split([',', ' ', '\t', '\r', '\n']).filter(|part| !part.is_empty());
    let number = |part: &str| {
        let known = serde_json::from_str(part).ok().and_then(|value: Value| Element::of_json(&value).ok());
        // Not a number and infinities, which JSON lacks.
        known
            .or_else(|| part.parse().ok().map(Element::Float))
            .filter(|element| !matches!(element, Element::Bytes(_)))
    };
    let elements = parts.map(|part| number(part).ok_or_else(|| format!("'{part}' is not a number")));
    let elements = elements.collect::<Result<Vec<_>, _>>()?;
    let shape = if elements.len() == 1 { Vec::new() } else { vec![elements.len() as u64] };
    Ok((shape, elements))
}

/// The values in a file, by its name.
///
/// # Errors
/// The message continues a sentence that names the file.
fn from_file(adjustment: Adjustment, input: &Input, path: &Path, content: Vec<u8>) -> Result<Values, String> {
    let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default().to_ascii_lowercase();
    let is_bytes = input.data_type == DataType::Bytes;
    let utf8 =
        |content: &[u8]| str::from_utf8(content).map(str::to_owned).map_err(|_| "is not UTF-8".to_owned());
    match kind.as_str() {
        "npy" => npy::read(&content),
        "json" => {
            let document =
                serde_json::from_slice(&content).map_err(|error| format!("is not JSON: {error}"))?;
            nested(&document).map_err(|reason| format!("cannot be a tensor: {reason}"))
        }
        // A model that decodes files itself gets them as they are.
        _ if is_bytes => Ok((Vec::new(), vec![Element::Bytes(content)])),
        "png" | "jpg" | "jpeg" => {
            let picture = pictures::Picture::decode(&content)?;
            pictures::tensor(&picture, input, adjustment.scale, adjustment.fit, adjustment.order)
        }
        "txt" | "csv" => numbers(&utf8(&content)?).map_err(|reason| format!("has a wrong value: {reason}")),
        _ => {
            let elements = elements(input.data_type, &content);
            let elements = elements
                .ok_or_else(|| format!("has {} bytes, no whole number of elements", content.len()))?;
            Ok((vec![elements.len() as u64], elements))
        }
    }
}

/// The parameters of a request.
///
/// # Errors
/// A parameter has no name.
pub(super) fn parameters(arguments: &[String]) -> Result<Map<String, Value>, String> {
    let parameter = |argument: &String| {
        let (name, value) = argument.split_once('=').filter(|(name, _)| !name.is_empty())?;
        Some((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
    };
    let parameter =
        |argument| parameter(argument).ok_or_else(|| format!("parameter '{argument}' must be NAME=value"));
    arguments.iter().map(parameter).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(arguments: &[&str], signature: &Signature) -> Result<Vec<Tensor>, String> {
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        inputs("m", &arguments, Adjustment::default(), signature)
    }

    fn signature() -> Signature {
        let metadata = json!({"inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "t", "datatype": "BYTES", "shape": [-1]},
        ]});
        let config = json!({"input": [{"name": "t", "optional": true}]});
        Signature::read(&metadata, &config).unwrap()
    }

    #[test]
    fn values_are_json_numbers_or_texts() {
        let signature = signature();
        let floats = |values: &[f64]| values.iter().map(|value| Element::Float(*value)).collect::<Vec<_>>();
        let texts =
            |values: &[&str]| values.iter().map(|value| Element::Bytes((*value).into())).collect::<Vec<_>>();
        let x = "x=[1,2]";
        for (arguments, at, shape, elements) in [
            (&[x][..], 0, &[1, 2][..], floats(&[1.0, 2.0])),
            (&["x=[[1,2],[3,4]]"], 0, &[2, 2], floats(&[1.0, 2.0, 3.0, 4.0])),
            (&["x=1,2.5"], 0, &[1, 2], floats(&[1.0, 2.5])),
            (&["x=-1 inf 3 4"], 0, &[2, 2], floats(&[-1.0, f64::INFINITY, 3.0, 4.0])),
            (&[x, "t=hello, world"], 1, &[1], texts(&["hello, world"])),
            (&[x, "t=a=b"], 1, &[1], texts(&["a=b"])),
            (&[x, "t="], 1, &[1], texts(&[""])),
            (&[x, "t=[\"a\",\"b\"]"], 1, &[2], texts(&["a", "b"])),
            (&[x, "t=\"[1]\""], 1, &[1], texts(&["[1]"])),
            (&[x, "t=7"], 1, &[1], texts(&["7"])),
            (&[x, "t=[broken"], 1, &[1], texts(&["[broken"])),
        ] {
            let tensor = of(arguments, &signature).unwrap().swap_remove(at);
            assert_eq!((tensor.shape.as_slice(), tensor.elements), (shape, elements), "{arguments:?}");
        }
    }

    #[test]
    fn wrong_arguments_are_explained() {
        for (arguments, expected) in [
            (
                &[][..],
                "input 'x' is missing: give x=value or x=@file; model 'm' takes x (FP32 [?, 2]), t (BYTES [?], optional)",
            ),
            (&["x"], "'x' must be INPUT=value"),
            (&["y=1"], "model 'm' has no input 'y' (available: x (FP32"),
            (&["x=[1,2]", "x=[1,2]"], "input 'x' is given twice"),
            (&["x=[1,2,3]"], "values of shape [3] do not fit FP32 [?, 2]"),
            (&["x=one two"], "input 'x': 'one' is not a number"),
            (&["x=[\"a\",1]"], "input 'x': a is not of FP32"),
            (&["x=[[1],[2,3]]"], "different lengths"),
            (&["x=@/no/such/file"], "cannot read '/no/such/file': No such file"),
        ] {
            let error = of(arguments, &signature()).unwrap_err();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn files_are_read_by_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let raw = [1.0_f32, 2.0].map(f32::to_le_bytes).concat();
        for (name, content, input, expected) in [
            ("a.json", &b"[1, 2]"[..], "x", Ok(2)),
            ("a.JSON", b"[1, 2", "x", Err("a.JSON' is not JSON")),
            ("a.txt", b"1 2\n3 4\n", "x", Ok(4)),
            ("b.txt", b"1 two", "x", Err("b.txt' has a wrong value: 'two'")),
            ("c.txt", b"\xff", "x", Err("is not UTF-8")),
            ("a.bin", &raw, "x", Ok(2)),
            ("b.bin", &raw[1..], "x", Err("has 7 bytes")),
            ("a.npy", b"no array", "x", Err("not a .npy file")),
            ("a.png", b"no picture", "x", Err("neither a PNG nor a JPEG")),
            ("a.wav", b"RIFF\xff", "t", Ok(1)),
            ("b.png", b"\x89PNG", "t", Ok(1)),
            ("d.txt", b"some text\n", "t", Ok(1)),
        ] {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            let argument = format!("{input}=@{}", path.display());
            let found = of(&["x=1,2", &argument][usize::from(input == "x")..], &signature());
            match (found, expected) {
                (Ok(tensors), Ok(count)) => {
                    assert_eq!(tensors.last().unwrap().elements.len(), count, "{name}")
                }
                (Err(error), Err(reason)) => assert!(error.contains(reason), "{name}: {error}"),
                (found, _) => panic!("{name}: {found:?}"),
            }
        }
    }

    #[test]
    fn parameters_are_json_or_texts() {
        let arguments = ["a=1", "b=true", "c=text", "d=\"2\"", "e=x=y"].map(str::to_owned);
        let expected = json!({"a": 1, "b": true, "c": "text", "d": "2", "e": "x=y"});
        assert_eq!(Value::from(parameters(&arguments).unwrap()), expected);
        for wrong in ["a", "=1"] {
            assert!(parameters(&[wrong.to_owned()]).unwrap_err().contains("must be NAME=value"));
        }
    }
}
