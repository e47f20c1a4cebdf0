//! Answers of models, with their tensors in JSON or behind it.

use serde_json::{Value, json};
use tensor_types::DataType;

use super::tensor::{Tensor, elements, nested};

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) model: String,
    pub(super) version: String,
    /// Parameters of the answer, if it has any.
    parameters: Value,
    pub(super) outputs: Vec<Tensor>,
}

impl Answer {
    /// Reads an answer whose JSON has this length; `None` if it is all.
    ///
    /// # Errors
    /// The answer is not of KServe v2.
    pub(super) fn read(body: &[u8], length: Option<usize>) -> Result<Self, String> {
        let (head, mut rest) =
            body.split_at_checked(length.unwrap_or(body.len())).ok_or("the answer is cut off")?;
        let head: Value =
            serde_json::from_slice(head).map_err(|error| format!("the answer is not of JSON: {error}"))?;
        let mut outputs = Vec::new();
        for output in head["outputs"].as_array().ok_or("the answer has no outputs")? {
            let name = output["name"].as_str().unwrap_or_default();
            let wrong = |reason: &str| format!("output '{name}' {reason}");
            let data_type = output["datatype"].as_str().and_then(DataType::from_protocol_name);
            let data_type = data_type.ok_or_else(|| wrong("has an unknown datatype"))?;
            let shape = output["shape"].as_array().into_iter().flatten().map(Value::as_u64);
            let shape = shape.collect::<Option<Vec<_>>>().ok_or_else(|| wrong("has no shape"))?;
            let elements = match output["parameters"]["binary_data_size"].as_u64() {
                None => nested(&output["data"]).map_err(|reason| wrong(&reason))?.1,
                Some(size) => {
                    let cut = usize::try_from(size).ok().and_then(|size| rest.split_at_checked(size));
                    let (content, behind) = cut.ok_or_else(|| wrong("is cut off"))?;
                    rest = behind;
                    elements(data_type, content).ok_or_else(|| wrong("is damaged"))?
                }
            };
            if shape.iter().try_fold(1_u64, |count, size| count.checked_mul(*size))
                != Some(elements.len() as u64)
            {
                return Err(wrong(&format!(
                    "has {} values, which its shape {shape:?} has not",
                    elements.len()
                )));
            }
            outputs.push(Tensor { name: name.to_owned(), data_type, shape, elements });
        }
        let text = |name: &str| head[name].as_str().unwrap_or_default().to_owned();
        Ok(Self {
            model: text("model_name"),
            version: text("model_version"),
            parameters: head["parameters"].clone(),
            outputs,
        })
    }

    /// The answer in JSON, with all tensors in it.
    pub(super) fn json(&self) -> String {
        let outputs = self.outputs.iter().map(|output| {
            let Tensor { name, data_type, shape, .. } = output;
            json!({"name": name, "datatype": data_type.protocol_name(), "shape": shape, "data": output.shown_json()})
        });
        let outputs: Vec<_> = outputs.collect();
        let mut document =
            json!({"model_name": self.model, "model_version": self.version, "outputs": outputs});
        if self.parameters.is_object() {
            document["parameters"] = self.parameters.clone();
        }
        document.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_are_in_json_or_behind_it() {
        let head = json!({"model_name": "m", "model_version": "1", "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
            {"name": "b", "datatype": "BYTES", "shape": [2], "data": ["x", "y"]},
            {"name": "c", "datatype": "UINT8", "shape": [], "parameters": {"binary_data_size": 1}},
        ]})
        .to_string();
        let body = [head.as_bytes(), &1.5_f32.to_le_bytes(), &2.0_f32.to_le_bytes(), &[7]].concat();
        let answer = Answer::read(&body, Some(head.len())).unwrap();
        let expected = json!({"model_name": "m", "model_version": "1", "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [1, 2], "data": [1.5, 2.0]},
            {"name": "b", "datatype": "BYTES", "shape": [2], "data": ["x", "y"]},
            {"name": "c", "datatype": "UINT8", "shape": [], "data": [7]},
        ]});
        assert_eq!(serde_json::from_str::<Value>(&answer.json()).unwrap(), expected);
        for cut in 1..=9 {
            let error = Answer::read(&body[..body.len() - cut], Some(head.len())).unwrap_err();
            assert!(error.contains("is cut off"), "{error}");
        }
        assert!(Answer::read(&body, Some(body.len() + 1)).unwrap_err().contains("cut off"));
    }

    #[test]
    fn other_answers_are_refused() {
        let output = |output: Value| json!({"outputs": [output]}).to_string();
        for (body, expected) in [
            ("<html>".to_owned(), "not of JSON"),
            ("{}".to_owned(), "has no outputs"),
            (
                output(json!({"name": "a", "datatype": "FP33", "shape": [1], "data": [1]})),
                "output 'a' has an unknown datatype",
            ),
            (output(json!({"name": "a", "datatype": "FP32", "shape": [-1], "data": [1]})), "has no shape"),
            (output(json!({"name": "a", "datatype": "FP32", "shape": [2], "data": [1]})), "has 1 values"),
            (
                output(json!({"name": "a", "datatype": "FP32", "shape": [2], "data": [1, null]})),
                "null is not",
            ),
        ] {
            let error = Answer::read(body.as_bytes(), None).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        }
    }
}
