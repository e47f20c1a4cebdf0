//! Round trips, damaged bodies, and the choice of the reply's encoding.

use flate2::write::DeflateEncoder;
use hyper::StatusCode;
use nereid_backend_api::ErrorCode;
use proptest::prelude::*;

use super::*;

const LIMIT: usize = 1 << 20;

fn headers(name: hyper::header::HeaderName, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
}

fn whole(plain: &[u8]) -> Pieces {
    Pieces::new(SmallVec::from_iter([Bytes::copy_from_slice(plain)]))
}

fn packed(plain: &[u8], encoding: Encoding) -> Vec<u8> {
    compressed(&whole(plain), encoding).unwrap().to_vec()
}

async fn unpacked(packed: Vec<u8>, limit: usize) -> Result<Vec<u8>> {
    let (body, limit) = (RequestBody::from(Bytes::from(packed)), Limit { bytes: limit, option: "" });
    let mut plain = decompress(body, limit, &BodyBudget::UNLIMITED).await?;
    let length = plain.len();
    Ok(plain.take_joined(length).unwrap().to_vec())
}

#[tokio::test]
async fn compressed_body_round_trips() {
    for encoding in [Encoding::Gzip, Encoding::Deflate] {
        // The last one is long enough for another thread, both ways.
        for length in [0, 1, 1000, 200_000] {
            let plain: Vec<u8> =
                (0..length).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            let reply = Response::new(Contents::Whole(whole(&plain)));
            let reply = compress(reply, encoding, &BodyBudget::UNLIMITED).await;
            let Contents::Whole(body) = reply.into_body() else { panic!() };
            let packed: Vec<u8> = body.iter().flat_map(|piece| piece.to_vec()).collect();
            assert_eq!(unpacked(packed, LIMIT).await.unwrap(), plain, "{encoding:?} {length}");
        }
    }
}

#[tokio::test]
async fn a_gzip_body_may_have_several_members() {
    let both = [packed(b"abc", Encoding::Gzip), packed(b"def", Encoding::Gzip)].concat();
    assert_eq!(unpacked(both, LIMIT).await.unwrap(), b"abcdef");
}

#[tokio::test]
async fn decompression_stops_at_the_limit() {
    for encoding in [Encoding::Gzip, Encoding::Deflate] {
        let bomb = packed(&vec![0; 8 << 20], encoding);
        let error = unpacked(bomb, LIMIT).await.unwrap_err();
        assert!(error.message().contains("exceeds the limit of 1048576 bytes"), "{error}");
        assert_eq!(unpacked(packed(&[7; 100], encoding), 100).await.unwrap(), [7; 100]);
    }
}

proptest! {
    /// Whatever the contents, the level, and the format behind the name `deflate`.
    #[test]
    fn deflate_comes_with_and_without_zlibs_head(
        seed in prop::collection::vec(any::<u8>(), 0..300),
        repeats in 1..40_usize,
        level in 0..=9_u32,
    ) {
        let plain = seed.repeat(repeats);
        let level = Compression::new(level);
        let mut zlib = ZlibEncoder::new(Vec::new(), level);
        zlib.write_all(&plain).unwrap();
        let mut bare = DeflateEncoder::new(Vec::new(), level);
        bare.write_all(&plain).unwrap();
        for packed in [zlib.finish().unwrap(), bare.finish().unwrap()] {
            let limit = Limit { bytes: LIMIT, option: "" };
            let body = RequestBody::from(Bytes::from(packed));
            let mut body = decompressed(body, limit, &BodyBudget::UNLIMITED).unwrap();
            let length = body.len();
            prop_assert_eq!(&body.take_joined(length).unwrap(), &plain);
        }
    }
}

#[tokio::test]
async fn decompressed_bodies_count_until_they_are_dropped() {
    let limit = Limit { bytes: 8 << 20, option: "" };
    let budget = BodyBudget::new(10 << 20);
    for encoding in [Encoding::Gzip, Encoding::Deflate] {
        let packed = Bytes::from(packed(&vec![0; 8 << 20], encoding));
        let body = || decompress(RequestBody::from(packed.clone()), limit, &budget);
        let first = body().await.unwrap();
        let error = body().await.err().unwrap();
        assert_eq!(error.code(), ErrorCode::Unavailable, "{error}");
        drop(first);
        let held = body().await.unwrap().take_joined(1).unwrap();
        assert!(body().await.is_err(), "a part of it is still there");
        drop(held);
        body().await.unwrap();
    }
}

#[tokio::test]
async fn damaged_or_uncompressed_bodies_are_refused() {
    let gzip = packed(&[7; 1000], Encoding::Gzip);
    let deflate = packed(&[7; 1000], Encoding::Deflate);
    // Without a zlib header, the stream has no checksum either.
    let bare = &deflate[2..deflate.len() - 4];
    for (what, body) in [
        ("empty", Vec::new()),
        ("plain", b"{\"inputs\":[]}".to_vec()),
        ("short gzip", gzip[..gzip.len() - 1].to_vec()),
        ("short deflate", deflate[..deflate.len() - 1].to_vec()),
        ("more after gzip", [gzip.clone(), b"more".to_vec()].concat()),
        ("more after deflate", [deflate.clone(), b"more".to_vec()].concat()),
        ("short bare deflate", bare[..bare.len() - 1].to_vec()),
        ("more after bare deflate", [bare, b"more"].concat()),
        ("wrong checksum", [&gzip[..gzip.len() - 8], &[0; 8]].concat()),
    ] {
        assert!(unpacked(body, LIMIT).await.is_err(), "{what}");
    }
}

#[test]
fn content_encoding_names_the_compression() {
    for (value, encoding) in [
        ("gzip", Encoding::Gzip),
        ("deflate", Encoding::Deflate),
        ("Identity", Encoding::Identity),
        ("", Encoding::Identity),
    ] {
        assert_eq!(Encoding::of_request(&headers(CONTENT_ENCODING, value)), Ok(encoding));
    }
    assert_eq!(Encoding::of_request(&HeaderMap::new()), Ok(Encoding::Identity));
    assert_eq!(Encoding::of_request(&headers(CONTENT_ENCODING, "br")), Err("br".into()));
    let reply = unknown_encoding("br");
    assert_eq!(
        (reply.status(), &reply.headers()[ACCEPT_ENCODING]),
        (StatusCode::NOT_IMPLEMENTED, &HeaderValue::from_static("gzip, deflate"))
    );
}

#[test]
fn reply_uses_the_clients_preferred_encoding() {
    for (accepted, encoding) in [
        ("gzip, deflate", Encoding::Gzip),
        ("gzip;q=0.4,deflate;q=0.5", Encoding::Deflate),
        ("br, gzip", Encoding::Gzip),
        ("identity;q=1,gzip;q=0.5", Encoding::Identity),
        ("GZIP ; q=0.5", Encoding::Gzip),
        ("gzip;q=0", Encoding::Identity),
        ("gzip;q=much", Encoding::Identity),
        ("*", Encoding::Identity),
        (" ,;q=1", Encoding::Identity),
    ] {
        assert_eq!(Encoding::of_reply(&headers(ACCEPT_ENCODING, accepted)), encoding, "{accepted}");
    }
    assert_eq!(Encoding::of_reply(&HeaderMap::new()), Encoding::Identity);
}
