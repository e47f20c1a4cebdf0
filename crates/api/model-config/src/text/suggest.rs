//! Suggests names for mistyped ones.

/// Other systems' terms, and the schema's.
const SYNONYMS: [(&str, &str); 3] = [("float", "fp"), ("double", "fp64"), ("bytes", "string")];

/// The candidate nearest to `name`, if any is near enough.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Names longer than the schema's are not compared.
    if name.len() > 64 {
        return None;
    }
    let name =
        SYNONYMS.iter().fold(name.to_ascii_lowercase(), |name, (theirs, ours)| name.replace(theirs, ours));
    let distance = |candidate: &str| {
        let candidate = candidate.to_ascii_lowercase();
        // `CPU` for `KIND_CPU`, `FP32` for `TYPE_FP32`.
        match candidate.strip_suffix(&name) {
            Some(prefix) if prefix.ends_with('_') => 1,
            _ => strsim::damerau_levenshtein(&name, &candidate),
        }
    };
    let limit = (name.len() / 3).max(1);
    candidates
        .map(|candidate| (distance(candidate), candidate))
        .filter(|&(distance, _)| distance <= limit)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_name_is_suggested_and_far_name_is_not() {
        let names =
            ["max_batch_size", "name", "KIND_CPU", "KIND_GPU", "TYPE_FP64", "TYPE_UINT64", "TYPE_STRING"];
        let nearest = |name: &str| nearest(name, names.into_iter());
        assert_eq!(nearest("max_batch_sizes"), Some("max_batch_size"));
        assert_eq!(nearest("maxBatchSize"), Some("max_batch_size"));
        assert_eq!(nearest("nmae"), Some("name"));
        assert_eq!(nearest("cpu"), Some("KIND_CPU"));
        assert_eq!(nearest("kind_gpu"), Some("KIND_GPU"));
        assert_eq!(nearest("TYPE_FLOAT64"), Some("TYPE_FP64"));
        assert_eq!(nearest("TYPE_DOUBLE"), Some("TYPE_FP64"));
        assert_eq!(nearest("BYTES"), Some("TYPE_STRING"));
        assert_eq!(nearest("colour"), None);
        assert_eq!(nearest(""), None);
        assert_eq!(nearest(&"name".repeat(1000)), None);
    }
}
