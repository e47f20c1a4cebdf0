//! Finds the tokenizer and the settings that belong to the graph of a model of texts.

/// The files, in the folder of the graph or at the root of its repository. The first one makes it a model of texts.
const FILES: [&str; 6] = [
    "tokenizer.json",
    "config.json",
    "config_sentence_transformers.json",
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
];

/// The folders for graphs in a repository whose other files are at the root.
const GRAPH_FOLDERS: [&str; 3] = ["onnx", "onnx_model", "openvino"];

/// The folder with a model's text files: the graph's folder, or its parent if the graph's is named after a format.
pub fn text_root(graph_folder: &str) -> &str {
    match graph_folder.rsplit_once('/') {
        Some((above, last)) if GRAPH_FOLDERS.contains(&last) => above,
        None if GRAPH_FOLDERS.contains(&graph_folder) => "",
        _ => graph_folder,
    }
}

/// The paths in a version's folder of the files of a graph's model, each with its path among `all`; none without a tokenizer. Files in
/// the graph's own folder come before those at the root.
pub fn text_files<'a>(
    graph_folder: &str,
    all: impl Iterator<Item = &'a str> + Clone,
) -> Vec<(String, String)> {
    let root = text_root(graph_folder);
    let path = |folder: &str, name: &str| match folder {
        "" => name.to_owned(),
        _ => format!("{folder}/{name}"),
    };
    let find = |name: &str| {
        let candidates = [path(graph_folder, name), path(root, name)];
        candidates.into_iter().find(|candidate| all.clone().any(|known| known == candidate.as_str()))
    };
    let Some(tokenizer) = find(FILES[0]) else { return Vec::new() };
    let mut files = vec![(FILES[0].to_owned(), tokenizer)];
    files.extend(FILES[1..].iter().filter_map(|name| Some(((*name).to_owned(), find(name)?))));
    let of_modules = all.filter_map(|file| {
        let relative = if root.is_empty() { file } else { file.strip_prefix(root)?.strip_prefix('/')? };
        is_of_module(relative).then(|| (relative.to_owned(), file.to_owned()))
    });
    files.extend(of_modules);
    files
}

/// Whether a file has the settings of a step of sentence-transformers, such as `1_Pooling/config.json`, or the weights of a dense layer.
fn is_of_module(relative: &str) -> bool {
    let Some((folder, file)) = relative.split_once('/') else { return false };
    folder.split_once('_').is_some_and(|(place, name)| {
        let is_step =
            !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty();
        is_step && (file == "config.json" || (file, name) == ("model.safetensors", "Dense"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(graph_folder: &str, all: &[&str]) -> Vec<String> {
        let files = text_files(graph_folder, all.iter().copied());
        files.into_iter().map(|(to, from)| if to == from { to } else { format!("{to}={from}") }).collect()
    }

    #[test]
    fn files_are_those_of_the_graphs_folder_and_of_the_root() {
        let all = [
            "1_Pooling/config.json",
            "2_Normalize/config.json",
            "a_Pooling/config.json",
            "config.json",
            "modules.json",
            "onnx/config.json",
            "onnx/model.onnx",
            "other/tokenizer_config.json",
            "special_tokens_map.json",
            "tokenizer.json",
        ];
        let common = ["modules.json", "1_Pooling/config.json", "2_Normalize/config.json"];
        let expected = [&["tokenizer.json", "config.json=onnx/config.json"][..], &common].concat();
        assert_eq!(found("onnx", &all), expected);
        let expected = [&["tokenizer.json", "config.json"][..], &common].concat();
        assert_eq!(found("", &all), expected);
        assert_eq!(found("other", &all), [""; 0]);
    }

    #[test]
    fn part_of_a_repository_has_its_own_files() {
        let all = [
            "a/onnx/model.onnx",
            "a/tokenizer.json",
            "a/1_Pooling/config.json",
            "tokenizer.json",
            "config.json",
        ];
        assert_eq!(
            found("a/onnx", &all),
            ["tokenizer.json=a/tokenizer.json", "1_Pooling/config.json=a/1_Pooling/config.json"]
        );
        assert_eq!(found("", &all), ["tokenizer.json", "config.json"]);
        assert_eq!(found("", &["config.json"]), [""; 0]);
    }
}
