//! Examples of RFC 7541, appendix C, malformed blocks, and random ones.

use proptest::prelude::*;

use super::*;
use crate::hpack::{Name, OVERHEAD, Pseudo};

/// The fields of a block as text.
fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
    let mut found = Vec::new();
    decoder.decode(block, |field| {
        let name = match &field.name {
            Name::Pseudo(Pseudo::Method) => ":method",
            Name::Pseudo(Pseudo::Scheme) => ":scheme",
            Name::Pseudo(Pseudo::Authority) => ":authority",
            Name::Pseudo(Pseudo::Path) => ":path",
            Name::Regular(name) => name.as_str(),
            Name::Malformed => "malformed",
        };
        found.push((name.to_owned(), String::from_utf8_lossy(field.value.as_bytes()).into_owned()));
    })?;
    Ok(found)
}

fn bytes(hex: &str) -> Vec<u8> {
    let hex: String = hex.split_whitespace().collect();
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The expected fields, and the sizes of the table's fields behind the block.
type Expected<'a> = (&'a [(&'a str, &'a str)], &'a [usize]);

fn check(blocks: &[(&str, Expected<'_>)]) {
    let mut decoder = Decoder::default();
    for (block, (fields, sizes)) in blocks {
        let found = decoded(&mut decoder, &bytes(block)).unwrap();
        let found: Vec<_> = found.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, *fields, "{block}");
        assert_eq!(decoder.table.iter().map(|field| field.size).collect::<Vec<_>>(), *sizes, "{block}");
        assert_eq!(decoder.size, sizes.iter().sum::<usize>());
    }
}

const FIRST: &[(&str, &str)] =
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")];
const SECOND: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "http"),
    (":path", "/"),
    (":authority", "www.example.com"),
    ("cache-control", "no-cache"),
];
const THIRD: &[(&str, &str)] = &[
    (":method", "GET"),
    (":scheme", "https"),
    (":path", "/index.html"),
    (":authority", "www.example.com"),
    ("custom-key", "custom-value"),
];

#[test]
fn single_fields_are_decoded() {
    for (block, field, sizes) in [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            ("custom-key", "custom-header"),
            &[55][..],
        ),
        ("040c 2f73 616d 706c 652f 7061 7468", (":path", "/sample/path"), &[]),
        ("1008 7061 7373 776f 7264 0673 6563 7265 74", ("password", "secret"), &[]),
        ("82", (":method", "GET"), &[]),
    ] {
        check(&[(block, (&[field], sizes))]);
    }
}

#[test]
fn requests_share_the_table() {
    check(&[
        ("8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d", (FIRST, &[57])),
        ("8286 84be 5808 6e6f 2d63 6163 6865", (SECOND, &[53, 57])),
        ("8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65", (THIRD, &[54, 53, 57])),
    ]);
    // The same in Huffman's code.
    check(&[
        ("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff", (FIRST, &[57])),
        ("8286 84be 5886 a8eb 1064 9cbf", (SECOND, &[53, 57])),
        ("8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf", (THIRD, &[54, 53, 57])),
    ]);
}

#[test]
fn malformed_blocks_are_refused() {
    for block in [
        // Indexes of no field, and too large ones.
        "80",
        "be",
        "ff80 8080 8001",
        "ffff ffff ffff",
        "ff",
        // Strings that are too short, or whose code is malformed.
        "4003 6162",
        "40",
        "4001 61",
        "0081 00",
        // Sizes above the limit, or behind a field.
        "3fe2 1f",
        "8220",
    ] {
        assert_eq!(decoded(&mut Decoder::default(), &bytes(block)), Err(Malformed), "{block}");
    }
}

#[test]
fn table_changes_its_size_and_forgets_the_oldest() {
    let mut decoder = Decoder::default();
    let literal = |name: &str| [&b"\x40"[..], &[name.len() as u8], name.as_bytes(), b"\x01x"].concat();
    for name in ["a", "b", "c"] {
        decoded(&mut decoder, &literal(name)).unwrap();
    }
    assert_eq!(decoder.size, 3 * (OVERHEAD + 2));
    let changes = decoder.changes();
    assert_eq!(decoded(&mut decoder, b"\xc0").unwrap(), [("a".to_owned(), "x".to_owned())]);
    assert_eq!(decoder.changes(), changes, "indexed fields change nothing");
    // Room for two fields.
    assert_eq!(decoded(&mut decoder, &bytes("3f27 be bf")).unwrap().len(), 2);
    assert!(decoder.changes() > changes);
    assert_eq!(decoded(&mut decoder, b"\xc0"), Err(Malformed));
    // A field that is larger than the table empties it.
    decoded(&mut decoder, &literal(&"n".repeat(60))).unwrap();
    assert_eq!((decoder.size, decoder.table.len()), (0, 0));
    // Two sizes may begin a block: the least, and the one that follows.
    decoded(&mut decoder, &bytes("20 3fe1 1f 82")).unwrap();
    assert_eq!(decoder.limit, TABLE_SIZE);
}

#[test]
fn malformed_names_and_values_are_marked() {
    for (name, value, is_sound) in [
        ("a-b", "x", true),
        ("A", "x", false),
        ("a b", "x", false),
        ("", "x", false),
        (":status", "200", false),
        ("a", "x\ny", false),
        ("a", "x\0", false),
        ("a", "x\ty", true),
    ] {
        let block =
            [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat();
        let found = decoded(&mut Decoder::default(), &block).unwrap();
        assert_eq!(found[0].0 != "malformed", is_sound, "{name:?} {value:?}");
    }
}

proptest! {
    #[test]
    fn random_blocks_neither_panic_nor_fill_memory(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        let mut decoder = Decoder::default();
        for block in blocks {
            if decoded(&mut decoder, &block).is_err() {
                break;
            }
            prop_assert!(decoder.size <= decoder.limit && decoder.limit <= TABLE_SIZE);
            prop_assert_eq!(decoder.size, decoder.table.iter().map(|field| field.size).sum::<usize>());
        }
    }
}
