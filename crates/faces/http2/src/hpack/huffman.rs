//! HPACK's Huffman code (RFC 7541, appendix B). It is canonical, so the lengths of its codes determine them.

/// The symbol that ends a string. It must not occur.
const END: usize = 256;

/// The lengths of the codes, by symbol.
#[rustfmt::skip]
const LENGTHS: [u8; END + 1] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

const SHORTEST: usize = 5;
const LONGEST: usize = 30;

/// The codes of one length, which are consecutive.
#[derive(Clone, Copy)]
struct Codes {
    first: u32,
    count: u32,
    /// The place of the first one's symbol in `SYMBOLS`.
    at: usize,
}

/// The symbols in the order of their codes.
const SYMBOLS: [u16; END + 1] = symbols();

/// The codes of each length.
const CODES: [Codes; LONGEST + 1] = codes();

#[expect(clippy::indexing_slicing, reason = "evaluated when the crate is compiled")]
const fn symbols() -> [u16; END + 1] {
    let mut symbols = [0; END + 1];
    let (mut at, mut length) = (0, SHORTEST);
    while length <= LONGEST {
        let mut symbol = 0;
        while symbol <= END {
            if LENGTHS[symbol] as usize == length {
                symbols[at] = symbol as u16;
                at += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    symbols
}

#[expect(clippy::indexing_slicing, reason = "evaluated when the crate is compiled")]
const fn codes() -> [Codes; LONGEST + 1] {
    let mut codes = [Codes { first: 0, count: 0, at: 0 }; LONGEST + 1];
    let (mut next, mut at, mut length) = (0, 0, SHORTEST);
    while length <= LONGEST {
        let mut count = 0;
        let mut symbol = 0;
        while symbol <= END {
            if LENGTHS[symbol] as usize == length {
                count += 1;
            }
            symbol += 1;
        }
        codes[length] = Codes { first: next, count, at };
        next = (next + count) << 1;
        at += count as usize;
        length += 1;
    }
    codes
}

/// Appends the decoded string to `text`. `None` if the code is malformed.
pub(super) fn decode(coded: &[u8], text: &mut Vec<u8>) -> Option<()> {
    // The bits that are not decoded yet, and how many.
    let (mut bits, mut count) = (0_u64, 0);
    for byte in coded {
        bits = (bits << 8) | u64::from(*byte);
        count += 8;
        while let Some((symbol, length)) = first_symbol(bits, count) {
            text.push(u8::try_from(symbol).ok()?);
            count -= length;
            bits &= (1 << count) - 1;
        }
    }
    // The padding is the beginning of the end's code, which is ones, and shorter than a byte.
    (count < 8 && bits == (1 << count) - 1).then_some(())
}

/// The symbol whose code begins the bits, and the length of the code. `None` if the code is incomplete.
fn first_symbol(bits: u64, count: usize) -> Option<(u16, usize)> {
    for (length, codes) in CODES.iter().enumerate().take(count + 1).skip(SHORTEST) {
        let index = ((bits >> (count - length)) as u32).wrapping_sub(codes.first);
        if index < codes.count {
            return SYMBOLS.get(codes.at + index as usize).map(|symbol| (*symbol, length));
        }
    }
    None
}

#[cfg(test)]
pub(crate) fn encode(text: &[u8], coded: &mut Vec<u8>) {
    let (mut bits, mut count) = (0_u64, 0);
    for byte in text {
        let length = usize::from(LENGTHS[usize::from(*byte)]);
        let codes = &CODES[length];
        let place = SYMBOLS.iter().position(|symbol| *symbol == u16::from(*byte)).unwrap();
        bits = (bits << length) | u64::from(codes.first + (place - codes.at) as u32);
        count += length;
        while count >= 8 {
            count -= 8;
            coded.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    if count > 0 {
        coded.push(((bits << (8 - count)) | ((1 << (8 - count)) - 1)) as u8);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(coded: &[u8]) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        decode(coded, &mut text).map(|()| text)
    }

    #[test]
    fn examples_of_the_standard_are_decoded() {
        for (coded, text) in [
            (&b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..], &b"www.example.com"[..]),
            (b"\xa8\xeb\x10\x64\x9c\xbf", b"no-cache"),
            (b"\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f", b"custom-key"),
            (b"\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf", b"custom-value"),
            (
                b"\xd0\x7a\xbe\x94\x10\x54\xd4\x44\xa8\x20\x05\x95\x04\x0b\x81\x66\xe0\x82\xa6\x2d\x1b\xff",
                b"Mon, 21 Oct 2013 20:13:21 GMT",
            ),
            (
                b"\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\x43\xd3",
                b"https://www.example.com",
            ),
            (b"", b""),
        ] {
            assert_eq!(decoded(coded).as_deref(), Some(text));
            let mut encoded = Vec::new();
            encode(text, &mut encoded);
            assert_eq!(encoded, coded);
        }
    }

    #[test]
    fn malformed_codes_are_refused() {
        // Padding of zeros, of a whole byte, and the symbol that ends a string.
        for coded in [&b"\x00"[..], b"\xa8\xeb\x10\x64\x9c\xbf\xff", b"\xff\xff\xff\xff", b"\xff"] {
            assert_eq!(decoded(coded), None, "{coded:x?}");
        }
    }

    proptest! {
        #[test]
        fn strings_survive_the_code(text in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut coded = Vec::new();
            encode(&text, &mut coded);
            prop_assert_eq!(decoded(&coded), Some(text));
        }

        #[test]
        fn decoded_strings_have_one_code(coded in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(text) = decoded(&coded) {
                let mut again = Vec::new();
                encode(&text, &mut again);
                prop_assert_eq!(again, coded);
            }
        }
    }
}
