//! Language models in GGUF files: several quantizations of one model, each in one file or split into several.

use nereid_repository::GgufPart;

/// Quantizations, the best compromise of size and quality first. Others come last.
pub(super) const ORDER: &[&str] = &[
    "q4_k_m", "q4_k_l", "q4_k_xl", "q5_k_m", "q4_k_s", "q4_0", "q4_1", "iq4_nl", "iq4_xs", "q5_k_s", "q5_0",
    "q5_1", "mxfp4", "q6_k", "q8_0", "q3_k_m", "q3_k_l", "f16", "bf16", "f32", "",
];

/// Whether a name, such as a folder's, is that of a quantization.
pub(super) fn is_quantization(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.strip_prefix("ud-").unwrap_or(&name);
    let digits = name.trim_start_matches(['i', 't']).strip_prefix('q');
    let is_quantized = digits.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
    is_quantized || ["f16", "bf16", "f32", "fp16", "mxfp4"].contains(&name)
}

/// Splits a stem such as `llama-3-8b.Q4_K_M-00001-of-00002` into the model's name and its quantization in lower case.
pub(super) fn base_and_variant(stem: &str) -> (String, String) {
    let whole = GgufPart::of(stem).map_or(stem, |part| part.whole);
    let found =
        whole.rsplit_once(['-', '.']).filter(|(base, last)| !base.is_empty() && is_quantization(last));
    let (base, variant) = found.unwrap_or((whole, ""));
    let base = if base.ends_with("-UD") { base.trim_end_matches("-UD") } else { base };
    (base.to_owned(), variant.to_ascii_lowercase())
}

/// The paths of a model's files in its folder, with their paths in the repository. `beside` are the files of the same folder.
pub(super) fn files<'a>(main: &str, beside: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    fn part(path: &str) -> Option<GgufPart<'_>> {
        GgufPart::of(path.strip_suffix(".gguf")?)
    }
    let first = [("1/model.gguf".to_owned(), main.to_owned())];
    let Some(main) = part(main) else { return first.into() };
    let others = beside.filter_map(|path| {
        let other = part(path)?;
        let is_next = other.whole == main.whole && other.count == main.count && other.number > 1;
        is_next.then(|| (other.target(), path.to_owned()))
    });
    first.into_iter().chain(others).collect()
}
