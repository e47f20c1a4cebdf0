//! Properties of every body of an inference request: the fuzz targets check them on libFuzzer's inputs, and an ordinary
//! test on the corpus.

// Each fuzz target uses one of these functions.
#![allow(dead_code)]

use std::sync::LazyLock;

use nereid_core::backend_api::{DataType, InferRequest, Result, Tensor};
use nereid_core::{Signature, model_config};
use nereid_kserve::offline;

/// No input may be longer.
const LIMIT: usize = 1 << 20;

/// Inputs of several kinds.
static SEVERAL: LazyLock<Signature> = LazyLock::new(|| {
    signature(
        r#"name: "m" max_batch_size: 4
           input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }
           input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
           input { name: "N" data_type: TYPE_INT64 dims: [ 2, -1, -1 ] }
           input { name: "FLAG" data_type: TYPE_BOOL dims: [ 1 ] optional: true }"#,
    )
});

/// Models with raw bodies have one input.
static SINGLE: LazyLock<[Signature; 2]> = LazyLock::new(|| {
    ["TYPE_FP32", "TYPE_STRING"].map(|data_type| {
        signature(&format!(r#"name: "m" input {{ name: "X" data_type: {data_type} dims: [ -1 ] }}"#))
    })
});

fn signature(text: &str) -> Signature {
    let config = model_config::parse_text(text).expect("the configuration is right");
    Signature::new(&config).expect("the configuration is complete")
}

/// Decoding an `infer` body never panics and the result is equal for any segmentation; the request is not much larger
/// than the body; its tensors survive a round trip through JSON.
///
/// The first line of the input contains the offset at which the body is split and, after a space, the value of
/// `Inference-Header-Content-Length`.
pub fn infer(data: &[u8]) {
    let (line, body) = match data.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&data[..end], &data[end + 1..]),
        None => (&[][..], data),
    };
    let mut words = line.splitn(2, |byte| *byte == b' ');
    let cut = words.next().and_then(|word| std::str::from_utf8(word).ok()?.parse().ok());
    let (front, back) = body.split_at(cut.unwrap_or(0).min(body.len()));
    let header_length = words.next();
    for signature in SINGLE.iter() {
        let whole = offline::infer(&[body], header_length, signature, LIMIT);
        let pieces = offline::infer(&[front, back], header_length, signature, LIMIT);
        assert_eq!(shown(&whole), shown(&pieces));
        let Ok(request) = whole else { continue };
        let length: usize = request.inputs.iter().map(Tensor::byte_size).sum();
        // A digit and a comma become eight bytes.
        assert!(length <= 4 * body.len() + 8, "{length} bytes of tensors came of {}", body.len());
        request.inputs.iter().for_each(survives);
    }
}

/// Decoding a `generate` body never panics, and the inputs' shapes match their contents.
pub fn generate(data: &[u8]) {
    let outcome = offline::generated(data, &SEVERAL, LIMIT);
    let _ = shown(&outcome);
    let Ok(request) = outcome else { return };
    let mut length = 0;
    for (index, input) in request.inputs.iter().enumerate() {
        let expected = SEVERAL.input(&input.name).expect("it is an input of the model");
        assert_eq!(input.data_type, expected.data_type);
        assert_eq!(input.shape.len(), expected.dims.len() + 1);
        assert!(input.shape.iter().all(|dim| *dim >= 0), "{}", input.shape);
        assert!(
            request.inputs[..index].iter().all(|other| other.name != input.name),
            "{} came twice",
            input.name
        );
        input.check_contents().expect("the contents are as long as the shape says");
        length += input.byte_size();
        survives(input);
    }
    assert!(length <= LIMIT);
}

/// An outcome as text that two equal ones share, contents included.
fn shown(outcome: &Result<InferRequest>) -> String {
    let request = match outcome {
        Ok(request) => request,
        Err(error) => {
            assert!(!error.message().is_empty());
            return format!("{:?} {}", error.code(), error.message());
        }
    };
    let inputs = request.inputs.iter().map(|input| {
        let contents = input.contiguous().expect("it lies in host memory");
        format!("{} {} {} {:?}", input.name, input.data_type, input.shape, &contents[..])
    });
    let inputs: Vec<_> = inputs.collect();
    format!(
        "{:?} {:?} {:?} {:?} {} {:?} {:?} {inputs:?}",
        request.id,
        request.correlation_id,
        request.sequence,
        request.timeout,
        request.priority,
        request.outputs,
        request.parameters
    )
}

/// Written as JSON and read again, a tensor is written the same.
fn survives(tensor: &Tensor) {
    // What has no form in JSON, or has contents that do not go with its shape, is refused when it is written.
    let Ok(written) = offline::elements(tensor) else { return };
    if tensor.shape.element_count().unwrap_or(0) == 0 {
        return;
    }
    let head = format!(
        r#"{{"inputs":[{{"name":"X","datatype":"{}","shape":{},"data":["#,
        tensor.data_type, tensor.shape
    );
    let body = [head.as_bytes(), &written, b"]}]}"].concat();
    let limit = body.len() * 4;
    let again = offline::infer(&[&body], None, &SINGLE[0], limit).unwrap_or_else(|error| {
        panic!("{error} in what was written: {}", String::from_utf8_lossy(&body));
    });
    let [again] = &again.inputs[..] else { panic!("one input became {}", again.inputs.len()) };
    assert_eq!(offline::elements(again).expect("it was written before"), written);
    if tensor.data_type == DataType::Bytes {
        assert_eq!(again.contiguous().unwrap()[..], tensor.contiguous().unwrap()[..]);
    }
}
