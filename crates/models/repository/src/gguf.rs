//! Recognises language models in GGUF files, whole or split into parts, by the names of the files.

/// A part of a split model, such as `llama-3-8b.Q4_K_M-00001-of-00002`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgufPart<'a> {
    /// The stem without the numbers.
    pub whole: &'a str,
    /// The part's number, from 1.
    pub number: u32,
    /// How many parts there are.
    pub count: u32,
}

impl<'a> GgufPart<'a> {
    /// The part that a file with this stem is, if it is one.
    pub fn of(stem: &'a str) -> Option<Self> {
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (whole, number) = rest.rsplit_once('-')?;
        let number_of = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok()).flatten();
        let (number, count) = (number_of(number)?, number_of(count)?);
        (1..=count).contains(&number).then_some(Self { whole, number, count })
    }

    /// The stem of another part of the same model.
    pub fn sibling(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}", self.whole, self.count)
    }

    /// The part's path in a model's folder.
    pub fn target(&self) -> String {
        match self.number {
            1 => "1/model.gguf".to_owned(),
            number => format!("1/model-{number:05}-of-{:05}.gguf", self.count),
        }
    }
}

/// Whether a file with this stem is a model, or the first part of one: not a projector for pictures, a matrix that guides
/// quantization, or a later part.
pub fn is_gguf_model(stem: &str) -> bool {
    let lower = stem.to_ascii_lowercase();
    !lower.contains("mmproj")
        && !lower.contains("imatrix")
        && GgufPart::of(stem).is_none_or(|part| part.number == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_recognised_by_both_numbers() {
        for (stem, expected) in [
            ("llama-00001-of-00003", Some(("llama", 1, 3, "1/model.gguf"))),
            ("a-of-b-00003-of-00003", Some(("a-of-b", 3, 3, "1/model-00003-of-00003.gguf"))),
            ("llama", None),
            ("llama-1-of-3", None),
            ("llama-00000-of-00003", None),
            ("llama-00004-of-00003", None),
            ("llama-0000x-of-00003", None),
            ("00001-of-00003", None),
        ] {
            let part = GgufPart::of(stem);
            let found = part.map(|part| (part.whole, part.number, part.count, part.target()));
            let expected =
                expected.map(|(whole, number, count, path)| (whole, number, count, path.to_owned()));
            assert_eq!(found, expected, "{stem}");
        }
        assert_eq!(GgufPart::of("llama-00001-of-00003").unwrap().sibling(2), "llama-00002-of-00003");
    }

    #[test]
    fn later_parts_projectors_and_matrices_are_no_models() {
        for (stem, is_model) in [
            ("llama.Q4_K_M", true),
            ("llama-00001-of-00002", true),
            ("llama-00002-of-00002", false),
            ("mmproj-llama-f16", false),
            ("llama-mmproj", false),
            ("llama.imatrix", false),
        ] {
            assert_eq!(is_gguf_model(stem), is_model, "{stem}");
        }
    }
}
