//! Reads `operators.bin`: Caffe2 nets, with inputs and the outputs computed by Caffe2. Crates whose tests use it
//! include this file as a module.

/// The whole file: a message with a field for each case.
pub(crate) const CASES: &[u8] = include_bytes!("operators.bin");

/// The fields of a message, all of which are bytes, with their numbers.
pub(crate) fn fields(mut message: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = varint(&mut message);
        let length = usize::try_from(varint(&mut message)).unwrap();
        let (field, rest) = message.split_at(length);
        found.push((key >> 3, field));
        message = rest;
    }
    found
}

fn varint(message: &mut &[u8]) -> u64 {
    let mut number = 0;
    for shift in (0..).step_by(7) {
        let (byte, rest) = message.split_first().unwrap();
        *message = rest;
        number |= u64::from(byte & 127) << shift;
        if *byte < 128 {
            break;
        }
    }
    number
}
