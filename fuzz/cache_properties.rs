//! Properties of every byte string that an external cache may return for an entry: checked on libFuzzer's inputs by the
//! fuzz target, and on the corpus by an ordinary test.

use bytes::Bytes;
use nereid_response_cache::{CacheEntry, CacheKey, decode_entry, encode_entry, sealed_entry};

/// The raw bytes are never an entry. With a valid digest added, they are refused, or decode to an answer with valid
/// tensors that round-trips.
pub fn entry(data: &[u8]) {
    let key = CacheKey::of(1, [7; 32]);
    if let Ok(entry) = decode_entry(&key, &Bytes::copy_from_slice(data)) {
        assert_valid(&key, &entry, data.len());
    }
    let sealed = Bytes::from(sealed_entry(&key, data));
    assert!(decode_entry(&CacheKey::of(1, [8; 32]), &sealed).is_err());
    if let Ok(entry) = decode_entry(&key, &sealed) {
        assert_valid(&key, &entry, data.len());
    }
}

fn assert_valid(key: &CacheKey, entry: &CacheEntry, length: usize) {
    let response = entry.response();
    let contents: usize = response.outputs.iter().map(|output| output.byte_size()).sum();
    assert!(contents <= length, "{contents} bytes of tensors in {length} bytes");
    for output in &response.outputs {
        output.check_contents().expect("its contents fit its type and shape");
    }
    let again = Bytes::from(encode_entry(key, entry));
    let read = decode_entry(key, &again).expect("it was written from an entry");
    assert_eq!(encode_entry(key, &read), again);
    let names = |entry: &CacheEntry| -> Vec<_> {
        entry.response().outputs.iter().map(|output| (output.name.clone(), output.shape.clone())).collect()
    };
    assert_eq!(names(&read), names(entry));
}
