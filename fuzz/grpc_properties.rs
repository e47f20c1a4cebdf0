//! What has to hold for every gRPC message and every stream of bytes on a gRPC connection, whoever sent it: the fuzz targets
//! check it on what libFuzzer thinks up, and an ordinary test on the corpus.

// Each target has one of them.
#![allow(dead_code)]

use nereid_core::backend_api::{InferRequest, Result, Tensor};
use nereid_grpc::offline;

/// Decoding a ModelInfer message never panics, and comes out the same in whatever pieces it arrives and by whichever of the
/// two decoders; the request is not many times as long as its message.
///
/// The first byte of the input says after how many bytes the message is cut.
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

/// The messages of a body and the frames of a connection are the same in whatever pieces the bytes arrive, and what is
/// handed on to be decoded is what came.
pub fn bytes(data: &[u8]) {
    let (frames, messages) = (offline::frames(&[data]), offline::messages(&[data]));
    if let Ok(decodable) = &messages {
        assert_eq!(decodable, data);
    }
    for size in [1, 2, 7, 4096] {
        let pieces: Vec<_> = data.chunks(size).collect();
        assert_eq!(offline::frames(&pieces), frames, "in pieces of {size}");
        assert_eq!(offline::messages(&pieces), messages, "in pieces of {size}");
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
