//! Replies as the decoder reads them.

use proptest::prelude::*;

use super::*;
use crate::hpack::{Decoder, Name};

/// The regular fields of a block.
fn decoded(decoder: &mut Decoder, block: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    decoder
        .decode(block, |field| {
            if let Name::Regular(name) = &field.name {
                headers.append(name, field.value.clone());
            }
        })
        .unwrap();
    headers
}

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    headers
}

#[test]
fn repeated_fields_take_a_byte() {
    let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
    for round in 0..3 {
        for (fields, length) in [
            (headers(&[("content-type", "application/grpc")]), 2),
            (headers(&[("content-type", "application/grpc"), ("grpc-encoding", "gzip")]), 3),
        ] {
            let mut block = Vec::new();
            encoder.head(StatusCode::OK, &fields, &mut block);
            assert!(round == 0 || block.len() == length, "{block:x?}");
            assert_eq!(decoded(&mut decoder, &block), fields);
        }
        let (fields, mut block) = (headers(&[("grpc-status", "0")]), Vec::new());
        encoder.trailers(&fields, &mut block);
        assert!(round == 0 || block.len() == 1, "{block:x?}");
        assert_eq!(decoded(&mut decoder, &block), fields);
    }
}

#[test]
fn statuses_are_sent() {
    for status in [200, 204, 400, 404, 431, 500, 503] {
        let mut block = Vec::new();
        Encoder::default().head(StatusCode::from_u16(status).unwrap(), &HeaderMap::new(), &mut block);
        // The decoder is one for requests, which have no status.
        let mut values = Vec::new();
        Decoder::default().decode(&block, |field| values.push(field.value.clone())).unwrap();
        assert_eq!(values, [status.to_string().as_str()]);
    }
}

#[test]
fn sensitive_values_never_enter_the_table() {
    let mut fields = headers(&[("grpc-status", "0")]);
    fields.get_mut("grpc-status").unwrap().set_sensitive(true);
    let mut encoder = Encoder::default();
    for _ in 0..3 {
        let mut block = Vec::new();
        encoder.trailers(&fields, &mut block);
        assert_eq!(block, b"\x10\x0bgrpc-status\x010");
    }
}

#[test]
fn client_with_a_smaller_table_gets_literals() {
    for sizes in [&[0][..], &[4095], &[8192, 100], &[100, 4096]] {
        let mut encoder = Encoder::default();
        let fields = headers(&[("content-type", "application/grpc")]);
        let mut decoder = Decoder::default();
        for round in 0..4 {
            let mut block = Vec::new();
            encoder.head(StatusCode::OK, &fields, &mut block);
            assert_eq!(decoded(&mut decoder, &block), fields);
            if round == 1 {
                assert_eq!(block.len(), 2);
                sizes.iter().for_each(|size| encoder.limit(*size));
            }
            // The next block announces that the table is empty.
            assert_eq!(block.first() == Some(&0x20), round == 2);
            assert!(round < 2 || block.len() > 20);
        }
    }
    let mut encoder = Encoder::default();
    encoder.limit(TABLE_SIZE);
    assert!(!encoder.is_small && !encoder.announces);
}

proptest! {
    #[test]
    fn decoder_reads_what_was_encoded(
        blocks in prop::collection::vec(
            prop::collection::vec((0..6_usize, prop_oneof!["[a-c]{0,2}", "[ -~]{0,300}"]), 0..6),
            1..40,
        ),
        small_from in 0..40_usize,
    ) {
        const NAMES: [&str; 6] =
            ["content-type", "grpc-status", "grpc-message", "grpc-encoding", "server", "x-other"];
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        for (index, fields) in blocks.into_iter().enumerate() {
            if index == small_from {
                encoder.limit(10);
            }
            let fields: Vec<_> =
                fields.iter().map(|(name, value)| (NAMES[*name], value.trim())).collect();
            let (fields, mut block) = (headers(&fields), Vec::new());
            encoder.trailers(&fields, &mut block);
            prop_assert_eq!(decoded(&mut decoder, &block), fields);
        }
    }
}
