//! Loads models made here and runs them through the backend's public traits.

mod algebra;
mod attributes;
mod completion;
mod conditions;
mod conformance;
mod deconvolution;
mod elementwise;
mod empty;
mod exact;
mod execution;
mod indexing;
mod learning;
mod loading;
mod one_hot;
pub(crate) mod onnx;
mod optional;
mod quantisation;
mod quantised_lstm;
mod ragged;
mod repairs;
pub(crate) mod server;
mod slices;
mod widening;

use nereid_backend_api::{BytesElements, DataType, Response, Tensor, push_bytes_element};

fn fp32(name: &str, shape: &[i64], values: &[f32]) -> Tensor {
    let contents: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Tensor::new(name, DataType::Fp32, shape, contents)
}

fn strings(name: &str, shape: &[i64], values: &[&[u8]]) -> Tensor {
    let mut contents = Vec::new();
    for value in values {
        push_bytes_element(&mut contents, value).unwrap();
    }
    Tensor::new(name, DataType::Bytes, shape, contents)
}

/// Shape and values of the one output of a response.
fn fp32_output(response: &Response) -> (Vec<i64>, Vec<f32>) {
    let [output] = response.outputs.as_slice() else { panic!("one output is expected: {response:?}") };
    assert_eq!(output.data_type, DataType::Fp32);
    let contents = output.contiguous().unwrap();
    let (chunks, rest) = contents.as_chunks();
    assert!(rest.is_empty());
    (output.shape.to_vec(), chunks.iter().map(|&chunk| f32::from_le_bytes(chunk)).collect())
}

fn text_output(response: &Response) -> Vec<String> {
    let contents = response.outputs[0].contiguous().unwrap();
    let elements = BytesElements::new(&contents);
    elements.map(|element| String::from_utf8(element.unwrap().to_vec()).unwrap()).collect()
}
