//! Suggests the schema's names for mistyped names, and for names that other systems use.

/// Other systems' names of element types, without prefix and in lower case, and the schema's. `int` and `long` are as wide
/// as in PyTorch, and in C on 64-bit Linux.
const DATA_TYPES: &[(&str, &[&str])] = &[
    ("TYPE_BOOL", &["boolean", "bit"]),
    ("TYPE_UINT8", &["byte", "ubyte", "uchar", "quint8", "u8"]),
    ("TYPE_UINT16", &["ushort", "u16"]),
    ("TYPE_UINT32", &["uint", "u32"]),
    ("TYPE_UINT64", &["ulong", "u64"]),
    ("TYPE_INT8", &["sbyte", "qint8", "i8"]),
    ("TYPE_INT16", &["short", "i16"]),
    ("TYPE_INT32", &["int", "integer", "i32"]),
    ("TYPE_INT64", &["long", "longlong", "bigint", "i64"]),
    ("TYPE_FP16", &["half", "float16", "f16"]),
    ("TYPE_BF16", &["bfloat", "bfloat16"]),
    ("TYPE_FP32", &["float", "single", "real", "float32", "f32"]),
    ("TYPE_FP64", &["double", "float64", "f64"]),
    ("TYPE_STRING", &["bytes", "str", "text", "object", "utf8"]),
];

/// Prefixes and suffixes of element types in numpy, PyTorch, TensorFlow, ONNX and protobuf.
const PREFIXES: [&str; 6] = ["type_", "dt_", "np.", "torch.", "tf.", "tensorproto."];
const SUFFIXES: [&str; 3] = ["tensor", "type", "_t"];

/// The candidate nearest to `name`, if any is near enough.
pub fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Names longer than the schema's are not compared.
    if name.len() > 64 {
        return None;
    }
    let name = name.to_ascii_lowercase();
    let meant = data_type(&name);
    let distance = |candidate: &str| {
        if meant == Some(candidate) {
            return 0;
        }
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

/// The element type that another system calls by this name, which is in lower case.
fn data_type(name: &str) -> Option<&'static str> {
    let plain = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    let base = SUFFIXES.iter().find_map(|suffix| plain.strip_suffix(suffix)).unwrap_or(plain);
    DATA_TYPES
        .iter()
        .find(|(ours, theirs)| {
            let is_ours =
                |name: &str| ours.strip_prefix("TYPE_").is_some_and(|own| own.eq_ignore_ascii_case(name));
            [plain, base].iter().any(|name| is_ours(name) || theirs.contains(name))
        })
        .map(|(ours, _)| *ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataType;

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
        assert_eq!(nearest("colour"), None);
        assert_eq!(nearest(""), None);
        assert_eq!(nearest(&"name".repeat(1000)), None);
    }

    /// The suggestion for the data type of a tensor.
    fn nearest_type(name: &str) -> Option<&'static str> {
        let names = ["TYPE_INVALID"].into_iter().chain(DataType::ALL.map(DataType::config_name));
        nearest(name, names)
    }

    #[test]
    fn every_foreign_name_of_an_element_type_means_one_type() {
        for (ours, theirs) in DATA_TYPES {
            for name in *theirs {
                for written in [
                    format!("TYPE_{}", name.to_ascii_uppercase()),
                    name.to_ascii_uppercase(),
                    format!("DT_{}", name.to_ascii_uppercase()),
                    format!("torch.{name}"),
                    format!("np.{name}"),
                    (*name).to_owned(),
                ] {
                    assert_eq!(nearest_type(&written), Some(*ours), "{written}");
                }
            }
        }
        let all: Vec<_> = DATA_TYPES.iter().flat_map(|(_, theirs)| *theirs).collect();
        for (at, name) in all.iter().enumerate() {
            assert!(!all[..at].contains(name), "'{name}' is listed twice");
        }
    }

    #[test]
    fn every_element_type_is_suggested_for_its_plain_name() {
        for data_type in DataType::ALL {
            let ours = data_type.config_name();
            for name in [data_type.protocol_name(), &ours.replace("TYPE_", ""), &ours.to_ascii_lowercase()] {
                assert_eq!(nearest_type(name), Some(ours), "{name}");
            }
        }
    }

    #[test]
    fn names_of_other_systems_lead_to_the_element_type() {
        for (name, expected) in [
            ("TYPE_FLOAT", "TYPE_FP32"),
            ("TYPE_FLOAT32", "TYPE_FP32"),
            ("TYPE_FLOAT64", "TYPE_FP64"),
            ("TYPE_FLOAT16", "TYPE_FP16"),
            ("TYPE_DOUBLE", "TYPE_FP64"),
            ("TYPE_INT", "TYPE_INT32"),
            ("TYPE_LONG", "TYPE_INT64"),
            ("TYPE_HALF", "TYPE_FP16"),
            ("TYPE_BYTES", "TYPE_STRING"),
            ("BYTES", "TYPE_STRING"),
            ("DT_BFLOAT16", "TYPE_BF16"),
            ("DT_STRING", "TYPE_STRING"),
            ("FloatTensor", "TYPE_FP32"),
            ("torch.LongTensor", "TYPE_INT64"),
            ("uint8_t", "TYPE_UINT8"),
            ("tf.int64", "TYPE_INT64"),
            ("TensorProto.FLOAT", "TYPE_FP32"),
            ("BoolTensor", "TYPE_BOOL"),
            // Typing mistakes.
            ("TYPE_FP33", "TYPE_FP32"),
            ("TYPE_STRNG", "TYPE_STRING"),
            ("TPYE_INT64", "TYPE_INT64"),
        ] {
            assert_eq!(nearest_type(name), Some(expected), "{name}");
        }
        for name in ["complex64", "TYPE_COMPLEX128", "colour", "t", "_", "tensor", "type"] {
            assert_eq!(nearest_type(name), None, "{name}");
        }
    }
}
