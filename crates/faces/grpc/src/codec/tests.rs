//! The codec compared with prost: equal messages for any segmentation, without copies of the contents.

use std::convert::Infallible;
use std::io::Read;

use bytes::{BufMut, Bytes};
use futures_util::stream::{StreamExt, iter};
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use nereid_budgets::BodyBudget;
use nereid_core::backend_api::Tensor;
use prost::Message;
use tonic::{Code, Status};

use super::reply::{Encode, Frames};
use super::*;
use crate::Compression;
use crate::messages::{Format, HEAD};
use crate::proto::{ModelInferResponse, ModelStreamInferResponse};
use crate::testing::number;

/// A request with raw contents of these sizes among other fields.
fn request(sizes: &[usize]) -> ModelInferRequest {
    let contents = |(index, size): (usize, &usize)| Bytes::from(vec![index as u8 + 1; *size]);
    let raw_input_contents = sizes.iter().enumerate().map(contents).collect();
    ModelInferRequest { raw_input_contents, ..number("model", "an id", 7) }
}

/// A message with its head, as gRPC sends it.
fn framed(message: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.put_u32(message.encoded_len() as u32);
    message.encode(&mut bytes).unwrap();
    bytes
}

fn pieces(bytes: &[u8], size: usize) -> Vec<Bytes> {
    bytes.chunks(size).map(Bytes::copy_from_slice).collect()
}

/// Decodes a body that arrives in these pieces.
async fn decoded(pieces: Vec<Bytes>) -> Vec<Result<InferMessage, Status>> {
    let frames = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
    Incoming::new(StreamBody::new(iter(frames)), BodyBudget::UNLIMITED).collect().await
}

fn bytes_of(contents: &Buffers) -> Vec<u8> {
    contents.iter().flat_map(|buffer| buffer.as_host().unwrap().to_vec()).collect()
}

fn rejoined(decoded: InferMessage) -> ModelInferRequest {
    let raw_input_contents = decoded.raw.iter().map(|contents| bytes_of(contents).into()).collect();
    ModelInferRequest { raw_input_contents, ..decoded.message }
}

#[tokio::test]
async fn messages_decode_as_with_prost_for_any_segmentation() {
    let sent = [request(&[0, 3, 5000]), request(&[]), ModelInferRequest::default(), request(&[70_000])];
    let bytes = sent.iter().map(framed).collect::<Vec<_>>().concat();
    for size in [1, 2, 7, 1023, 1024, 16 << 10, bytes.len()] {
        let received =
            decoded(pieces(&bytes, size)).await.into_iter().map(|message| rejoined(message.unwrap()));
        assert!(received.eq(sent.clone()), "in pieces of {size} bytes");
    }
}

#[tokio::test]
async fn raw_contents_are_slices_of_received_frames() {
    let bytes = Bytes::from(framed(&request(&[100_000])));
    let frames: Vec<_> = (0..bytes.len())
        .step_by(16 << 10)
        .map(|at| bytes.slice(at..bytes.len().min(at + (16 << 10))))
        .collect();
    let count = frames.len();
    let received = decoded(frames).await.remove(0).unwrap();
    let contents = &received.raw[0];
    assert_eq!(contents.len(), count);
    let mut next = bytes[bytes.len() - 100_000..].as_ptr();
    for buffer in contents {
        assert_eq!(buffer.as_host().unwrap().as_ptr(), next);
        next = next.wrapping_add(buffer.len());
    }
}

#[tokio::test]
async fn single_bytes_are_joined() {
    let received = decoded(pieces(&framed(&request(&[10_000])), 1)).await.remove(0).unwrap();
    assert!(received.raw[0].len() <= 2, "{} pieces", received.raw[0].len());
    let tensor = Tensor {
        buffers: received.raw[0].clone(),
        ..Tensor::new("", nereid_core::backend_api::DataType::Uint8, [], "")
    };
    assert_eq!(*tensor.contiguous().unwrap(), [1; 10_000]);
}

#[tokio::test]
async fn a_malformed_message_ends_the_call() {
    let raw = |length: u8| vec![0, 0, 0, 0, 3, 7 << 3 | 2, length, 1];
    assert!(decoded(vec![raw(1).into()]).await[0].is_ok());
    for (bytes, code) in [
        // Contents longer than their message, a number in their place, a length varint without an end.
        (raw(2), Code::Internal),
        (vec![0, 0, 0, 0, 2, 7 << 3, 1], Code::Internal),
        (vec![0, 0, 0, 0, 2, 7 << 3 | 2, 0x80], Code::Internal),
        // A flag without a meaning, and two heads that announce too much.
        (vec![3, 0, 0, 0, 0], Code::Internal),
        (vec![0, 0x80, 0, 0, 0], Code::ResourceExhausted),
        (vec![0, 0x7f, 0xff, 0xff, 0xff, 1], Code::Internal),
    ] {
        let received =
            decoded(vec![framed(&request(&[1])).into(), bytes.clone().into(), raw(1).into()]).await;
        let codes: Vec<_> = received.iter().map(|message| message.as_ref().err().map(Status::code)).collect();
        assert!(codes[0].is_none());
        assert_eq!(codes[1..], [Some(code)], "{bytes:?}");
    }
}

/// A reply with contents in these pieces, for this codec and for prost.
fn reply(contents: &[&[usize]]) -> Reply {
    let buffers = |sizes: &&[usize]| sizes.iter().map(|&size| Buffer::host(vec![size as u8; size])).collect();
    let fields = ResponseFields::new("model", "", "an id");
    Reply { fields, raw: contents.iter().map(buffers).collect() }
}

fn encoded(message: &impl Encode) -> Vec<Bytes> {
    let mut frames = Frames::default();
    frames.encode(message).unwrap();
    std::iter::from_fn(|| frames.next()).collect()
}

/// The message of prost, with its contents joined.
fn joined(Reply { fields, raw }: Reply) -> ModelInferResponse {
    let mut response = ModelInferResponse::decode(fields.bytes()).unwrap();
    response.raw_output_contents = raw.iter().map(|contents| bytes_of(contents).into()).collect();
    response
}

fn joined_in_stream(StreamReply { error_message, reply }: StreamReply) -> ModelStreamInferResponse {
    ModelStreamInferResponse { error_message, infer_response: Some(joined(reply)) }
}

#[test]
fn replies_encode_as_with_prost() {
    let cases: [&[&[usize]]; 4] = [&[], &[&[]], &[&[0], &[5]], &[&[300, 4096, 2], &[], &[9000, 9000]]];
    for contents in cases {
        let expected = framed(&joined(reply(contents)));
        assert_eq!(encoded(&reply(contents)).concat(), expected);
        for error_message in ["", "an error"] {
            let in_stream = || StreamReply { error_message: error_message.into(), reply: reply(contents) };
            assert_eq!(encoded(&in_stream()).concat(), framed(&joined_in_stream(in_stream())));
        }
    }
}

#[test]
fn large_contents_are_not_copied_and_small_ones_are_inlined() {
    let reply = reply(&[&[100], &[5000], &[6000, 10]]);
    let frames = encoded(&reply);
    assert_eq!(frames.len(), 5);
    let place = |buffer: &Buffer| buffer.as_host().unwrap().as_ptr();
    assert_eq!(frames[1].as_ptr(), place(&reply.raw[1][0]));
    assert_eq!(frames[3].as_ptr(), place(&reply.raw[2][0]));
}

/// The data and the trailers of an answer with these messages.
async fn sent(messages: Vec<Result<StreamReply, Status>>) -> (Vec<Bytes>, HeaderMap) {
    sent_by(None, messages).await
}

async fn sent_by(
    compressor: Option<Compressor>,
    messages: Vec<Result<StreamReply, Status>>,
) -> (Vec<Bytes>, HeaderMap) {
    let mut body = Outgoing::response(iter(messages), compressor).into_body();
    let (mut data, mut trailers) = (Vec::new(), None);
    while let Some(frame) = body.frame().await {
        match frame.unwrap().into_data() {
            Ok(piece) => data.push(piece),
            Err(frame) => trailers = frame.into_trailers().ok(),
        }
    }
    (data, trailers.unwrap())
}

#[tokio::test]
async fn an_answer_ends_with_its_status() {
    let message = || StreamReply { error_message: String::new(), reply: reply(&[&[5]]) };
    let (data, trailers) = sent(vec![Ok(message()), Ok(message())]).await;
    let expected = framed(&joined_in_stream(message())).repeat(2);
    assert_eq!(data, [expected], "messages that are there leave together");
    assert_eq!(
        trailers,
        HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))])
    );

    let (data, trailers) = sent(vec![Ok(message()), Err(Status::aborted("why")), Ok(message())]).await;
    assert_eq!(data.concat(), framed(&joined_in_stream(message())));
    assert_eq!([&trailers["grpc-status"], &trailers["grpc-message"]], ["10", "why"]);
    assert!(sent(Vec::new()).await.0.is_empty());
}

fn headers(name: &'static str, value: &'static str) -> HeaderMap {
    HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))])
}

fn compressor(accepted: &'static str, enabled: Compression) -> Option<Compressor> {
    Compressor::new(&headers("grpc-accept-encoding", accepted), enabled, &BodyBudget::UNLIMITED)
}

#[test]
fn messages_in_other_formats_are_left_to_tonic() {
    assert!(applies(&HeaderMap::new()) && applies(&headers("grpc-encoding", "identity")));
    assert!(!applies(&headers("grpc-encoding", "snappy")));
}

#[test]
fn answers_are_compressed_in_the_first_accepted_format_that_is_enabled() {
    use Compression::{Any, Gzip, None as Off};
    for (accepted, enabled, expected) in [
        ("identity, deflate, gzip", Off, None),
        ("identity, deflate, gzip", Gzip, Some(Format::Gzip)),
        ("identity, deflate, gzip", Any, Some(Format::Deflate)),
        ("gzip,deflate", Any, Some(Format::Gzip)),
        (" gzip ", Any, Some(Format::Gzip)),
        ("deflate", Gzip, None),
        ("identity", Any, None),
        ("GZIP, snappy", Any, None),
        ("", Any, None),
    ] {
        let format = compressor(accepted, enabled).map(|compressor| compressor.encoding());
        assert_eq!(format, expected.map(Format::name), "{accepted}, {enabled:?}");
    }
    assert!(Compressor::new(&HeaderMap::new(), Any, &BodyBudget::UNLIMITED).is_none());
}

/// The first of these messages, decompressed, and what follows it.
fn decompressed(format: Format, body: &[u8]) -> (Vec<u8>, &[u8]) {
    let (head, rest) = body.split_at(HEAD);
    assert_eq!(head[0], 1);
    let (message, rest) = rest.split_at(u32::from_be_bytes(head[1..].try_into().unwrap()) as usize);
    let mut plain = Vec::new();
    match format {
        Format::Gzip => flate2::read::GzDecoder::new(message).read_to_end(&mut plain),
        Format::Deflate => flate2::read::ZlibDecoder::new(message).read_to_end(&mut plain),
    }
    .unwrap();
    (plain, rest)
}

#[tokio::test]
async fn compressed_answers_are_the_messages_in_order() {
    let sizes: [&[usize]; 5] =
        [&[5], &[], &[70_000], &[100, 60_000, 5000, 300_000, 7], &[64 << 10, 1, 2_000_000]];
    for format in [Format::Gzip, Format::Deflate] {
        for end in [None, Some(Status::aborted("why"))] {
            let message = |sizes| StreamReply { error_message: "e".into(), reply: reply(&[sizes, &[9]]) };
            let messages = sizes.map(|sizes| Ok(message(sizes))).into_iter().chain(end.clone().map(Err));
            let (data, trailers) =
                sent_by(compressor(format.name(), Compression::Any), messages.collect()).await;
            let data = data.concat();
            let mut rest = data.as_slice();
            for sizes in sizes {
                let (plain, left) = decompressed(format, rest);
                assert_eq!(plain, framed(&joined_in_stream(message(sizes)))[HEAD..], "{sizes:?}");
                rest = left;
            }
            assert!(rest.is_empty());
            assert_eq!(trailers["grpc-status"], if end.is_some() { "10" } else { "0" });
        }
    }
}

#[test]
fn head_of_a_compressed_call_names_the_format() {
    for (accepted, expected) in [("gzip", Some("gzip")), ("deflate", Some("deflate")), ("identity", None)] {
        let messages = iter([Ok(StreamReply { error_message: String::new(), reply: reply(&[]) })]);
        let response = Outgoing::response(messages, compressor(accepted, Compression::Any));
        let encoding = response.headers().get("grpc-encoding").map(|value| value.to_str().unwrap());
        assert_eq!(encoding, expected);
    }
}
