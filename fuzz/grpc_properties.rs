//! Properties of every gRPC message and every byte stream on a gRPC connection, from any sender: checked on libFuzzer's
//! inputs by the fuzz targets, and on the corpus by an ordinary test.

// Each fuzz target uses one of these functions.
#![allow(dead_code)]

use nereid_core::backend_api::{InferRequest, Result, Tensor};
use nereid_grpc::offline;

/// Decoding a ModelInfer message never panics, and the result is equal for any segmentation and both decoders; the
/// request is not much larger than its message.
///
/// The first byte of the input is the offset at which the message is split.
pub fn infer(data: &[u8]) {
    let Some((cut, message)) = data.split_first() else { return };
    let (front, back) = message.split_at(usize::from(*cut).min(message.len()));
    let whole = offline::infer(&[message]);
    assert_eq!(shown(&whole), shown(&offline::infer(&[front, back])));
    let by_prost = offline::infer_by_prost(message);
    let Ok(request) = &whole else { return assert!(by_prost.is_err(), "{}", shown(&by_prost)) };
    assert_eq!(shown(&whole), shown(&by_prost));
    let length: usize = request.inputs.iter().map(Tensor::byte_size).sum();
    // A number of one byte becomes eight, and an empty text four.
    assert!(length <= 8 * message.len(), "{length} bytes of tensors came of {}", message.len());
}

/// The messages of a body are equal for any segmentation, and the bytes passed to the decoder are the bytes received. A
/// connection on which the bytes arrive writes whole frames, and not many more bytes than it reads.
pub fn bytes(data: &[u8]) {
    let messages = offline::messages(&[data]);
    if let Ok(decodable) = &messages {
        assert_eq!(decodable, data);
    }
    for size in [1, 2, 7, 4096] {
        let pieces: Vec<_> = data.chunks(size).collect();
        assert_eq!(offline::messages(&pieces), messages, "in pieces of {size}");
        for preface in [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"] {
            let written = offline::connection(&[&[preface], &pieces[..]].concat());
            assert!(written.len() <= 20 * data.len() + 200, "{} bytes", written.len());
            let mut rest = &written[..];
            while let [a, b, c, _, _, _, _, _, _, contents @ ..] = rest {
                let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
                rest = contents.get(length..).expect("frames are whole");
            }
            assert!(rest.is_empty());
        }
    }
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
