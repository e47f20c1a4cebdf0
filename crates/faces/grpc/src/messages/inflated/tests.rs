//! Calls with compressed messages: what comes out, and what is refused.

use std::convert::Infallible;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use futures_util::stream::iter;
use http_body_util::{BodyExt, StreamBody};
use nereid_budgets::BodyShare;
use proptest::prelude::*;
use tonic::Code;

use super::*;

fn packed(format: Format, plain: &[u8]) -> Vec<u8> {
    match format {
        Format::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
        Format::Deflate => {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        }
    }
}

fn framed(flag: u8, contents: &[u8]) -> Vec<u8> {
    [&head(flag, contents.len()), contents].concat()
}

/// Decompresses a call's body that arrives in pieces of this size.
async fn inflated(body: &[u8], size: usize, format: Format, budget: &BodyBudget) -> Result<Vec<u8>, Status> {
    let pieces =
        body.chunks(size).map(|piece| Ok::<_, Infallible>(Frame::data(Bytes::copy_from_slice(piece))));
    let body = StreamBody::new(iter(pieces.collect::<Vec<_>>()));
    let collected = InflatedBody::new(body, format, budget.clone()).collect().await;
    collected.map(|collected| collected.to_bytes().to_vec()).map_err(Status::from_error)
}

fn formats() -> impl Strategy<Value = Format> {
    prop_oneof![Just(Format::Gzip), Just(Format::Deflate)]
}

proptest! {
    /// Compressed and other messages of any length, in pieces of any size.
    #[test]
    fn decompressed_messages_equal_the_originals(
        messages in prop::collection::vec((any::<bool>(), any::<u8>(), 0..20_000_usize), 0..6),
        size in 1..5000_usize,
        format in formats(),
    ) {
        let (mut body, mut expected) = (Vec::new(), Vec::new());
        for (compressed, byte, length) in messages {
            let plain: Vec<u8> = (0..length).map(|index| byte.wrapping_add((index * index % 251) as u8)).collect();
            expected.extend(framed(0, &plain));
            body.extend(if compressed { framed(1, &packed(format, &plain)) } else { framed(0, &plain) });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let budget = BodyBudget::new(1 << 20);
        let seen = runtime.block_on(inflated(&body, size, format, &budget)).unwrap();
        prop_assert!(seen == expected);
        prop_assert!(BodyShare::default().cover(&budget, 1 << 20).is_ok(), "all was given back");
    }
}

#[tokio::test]
async fn messages_beyond_the_budget_are_refused_before_decompression() {
    for format in [Format::Gzip, Format::Deflate] {
        let bomb = framed(1, &packed(format, &vec![0; 64 << 20]));
        let budget = BodyBudget::new(8 << 20);
        let refused = inflated(&bomb, 1000, format, &budget).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        // A message that announces more than could ever fit, compressed or not.
        for flag in [0, 1] {
            let announced = head(flag, 9 << 20);
            let refused = inflated(&announced, 5, format, &budget).await.unwrap_err();
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        }
        assert!(BodyShare::default().cover(&budget, 8 << 20).is_ok(), "all was given back");
    }
}

#[tokio::test]
async fn damaged_messages_are_refused() {
    for format in [Format::Gzip, Format::Deflate] {
        let whole = packed(format, &[7; 1000]);
        for (what, body) in [
            ("not compressed", framed(1, b"plain")),
            ("empty", framed(1, b"")),
            ("truncated", framed(1, &whole[..whole.len() - 5])),
            ("cut off", framed(1, &whole)[..20].to_vec()),
        ] {
            let refused = inflated(&body, 7, format, &BodyBudget::UNLIMITED).await.unwrap_err();
            assert_eq!(refused.code(), Code::Internal, "{what}: {refused}");
        }
    }
}

#[test]
fn the_headers_name_the_format() {
    for (value, expected, left) in [
        ("gzip", Some(Format::Gzip), false),
        ("deflate", Some(Format::Deflate), false),
        ("identity", None, true),
        ("snappy", None, true),
    ] {
        let mut headers = HeaderMap::from_iter([(ENCODING.clone(), value.parse().unwrap())]);
        assert_eq!((compression(&mut headers), !headers.is_empty()), (expected, left), "{value}");
    }
    assert_eq!(compression(&mut HeaderMap::new()), None);
}
