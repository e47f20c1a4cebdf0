//! Places of what a thread keeps of earlier requests.

/// The place of a text among `places`, a power of two: its bytes, eight at a time, mixed by multiplication.
pub(super) fn place_of(text: &[u8], places: usize) -> usize {
    const MIXER: u64 = 0x9e37_79b9_7f4a_7c15;
    let (words, rest) = text.as_chunks::<8>();
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(MIXER);
    let hash = words.iter().fold(text.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    let hash = rest.iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)));
    // The upper bits depend on all others.
    (hash >> (u64::BITS - places.ilog2())) as usize
}
