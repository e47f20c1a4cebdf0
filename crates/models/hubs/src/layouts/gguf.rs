//! Language models in GGUF files: several quantizations of one model, each in one file or split into several.

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

/// Whether a file with this stem is a model, or the first part of one: not a projector for pictures, a matrix that guides
/// quantization, or a later part.
pub(super) fn is_model(stem: &str) -> bool {
    let lower = stem.to_ascii_lowercase();
    !lower.contains("mmproj")
        && !lower.contains("imatrix")
        && part(stem).is_none_or(|(_, number, _)| number == 1)
}

/// Splits a stem such as `llama-3-8b.Q4_K_M-00001-of-00002` into the model's name and its quantization in lower case.
pub(super) fn base_and_variant(stem: &str) -> (String, String) {
    let whole = part(stem).map_or(stem, |(whole, ..)| whole);
    let found =
        whole.rsplit_once(['-', '.']).filter(|(base, last)| !base.is_empty() && is_quantization(last));
    let (base, variant) = found.unwrap_or((whole, ""));
    let base = if base.ends_with("-UD") { base.trim_end_matches("-UD") } else { base };
    (base.to_owned(), variant.to_ascii_lowercase())
}

/// The paths of a model's files in its folder, with their paths in the repository. `beside` are the files of the same folder.
pub(super) fn files<'a>(main: &str, beside: impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let stem = |path: &str| {
        path.strip_suffix(".gguf").and_then(part).map(|(whole, number, of)| (whole.to_owned(), number, of))
    };
    let first = [("1/model.gguf".to_owned(), main.to_owned())];
    let Some((whole, _, count)) = stem(main) else { return first.into() };
    let others = beside.filter_map(|path| {
        let (other, number, of) = stem(path)?;
        let is_next = other == whole && of == count && number > 1;
        is_next.then(|| (format!("1/model-{number:05}-of-{of:05}.gguf"), path.to_owned()))
    });
    first.into_iter().chain(others).collect()
}

/// The stem without the number of a part, the number, and the count of parts.
fn part(stem: &str) -> Option<(&str, u32, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (whole, number) = rest.rsplit_once('-')?;
    let number_of = |digits: &str| (digits.len() == 5).then(|| digits.parse().ok()).flatten();
    Some((whole, number_of(number)?, number_of(count)?))
}
