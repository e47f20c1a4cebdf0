//! Properties of every text that a backend passes across the C boundary: checked on libFuzzer's inputs by the fuzz
//! target, and on the corpus by an ordinary test.

use std::sync::LazyLock;

use nereid_model_config::{ModelConfig, from_json, normalise, parse_text, to_json};
use nereid_triton_host::offline;

/// The configuration that a backend completes.
static CONFIG: LazyLock<ModelConfig> = LazyLock::new(|| {
    let mut config =
        parse_text(r#"name: "m" backend: "b" input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }"#)
            .expect("the configuration is right");
    normalise(&mut config);
    config
});

/// A message is refused or round-trips; a configuration in it is refused or completed, and completing it again changes
/// nothing; a text reaches C up to its first zero byte.
pub fn texts(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let as_c_reads_it = offline::text(&text);
    assert_eq!(as_c_reads_it.as_bytes(), text.split('\0').next().unwrap_or_default().as_bytes());
    let json = match offline::message(data) {
        Ok(json) => json,
        Err(error) => return assert!(!error.message().is_empty()),
    };
    assert_eq!(json.as_bytes(), data);
    let completed = match offline::completed(&CONFIG, &json) {
        Ok(completed) => completed,
        Err(error) => return assert!(!error.message().is_empty()),
    };
    assert_eq!((&completed.name, &completed.backend), (&CONFIG.name, &CONFIG.backend));
    let written = to_json(&completed);
    assert_eq!(from_json(&written).expect("it was written from a configuration"), completed);
    assert_eq!(offline::completed(&completed, &json).expect("it was taken before"), completed);
}
