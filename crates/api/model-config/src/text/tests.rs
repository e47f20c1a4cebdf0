//! Accepted and refused texts. `grammar` has the forms, `reading` positions and recovery, `refusals` the errors,
//! `robustness` hostile texts.

mod grammar;
mod reading;
mod refusals;
mod robustness;

use crate::proto::ModelConfig;
use crate::{parse_text, to_text};

#[track_caller]
fn parsed(text: &str) -> ModelConfig {
    parse_text(text).unwrap_or_else(|error| panic!("{text}\n{error}"))
}

/// A sample in the stricter grammar of general readers, in which every list needs a colon.
fn with_colons(sample: &str) -> String {
    sample.replace(" [", ": [").replace("::", ":")
}

/// Realistic models whose texts together use every part of the grammar.
const SAMPLES: [&str; 3] = [
    include_str!("tests/image.pbtxt"),
    include_str!("tests/sequence.pbtxt"),
    include_str!("tests/ensemble.pbtxt"),
];

#[test]
fn printed_text_is_read_back() {
    for sample in SAMPLES {
        let config = parsed(sample);
        let text = to_text(&config);
        assert_eq!(parsed(&text), config, "{text}");
    }
    assert_eq!(to_text(&ModelConfig::default()), "");
}

#[test]
fn printing_is_stable_and_plain() {
    let config = parsed(
        r#"parameters { key: "b" value { string_value: "a\"\\\n\0011é" } } parameters { key: "a" value { } }
           dynamic_batching { priority_queue_policy { key: 10 } priority_queue_policy { key: 9 value { max_queue_size: 1 } } }
           name: 'm' input { name: "I" data_type: TYPE_FP32 dims: [ 1, -1 ] format: 77 } input { optional: true }
           model_metrics { metric_control { histogram_options { buckets: [ 0.1, 1e30, -inf ] } } }"#,
    );
    let expected = r#"name: "m"
input {
  name: "I"
  data_type: TYPE_FP32
  format: 77
  dims: [ 1, -1 ]
}
input {
  optional: true
}
dynamic_batching {
  priority_queue_policy {
    key: 9
    value {
      max_queue_size: 1
    }
  }
  priority_queue_policy {
    key: 10
    value {
    }
  }
}
parameters {
  key: "a"
  value {
  }
}
parameters {
  key: "b"
  value {
    string_value: "a\"\\\n\0011é"
  }
}
model_metrics {
  metric_control {
    histogram_options {
      buckets: [ 0.1, 1e30, -inf ]
    }
  }
}
"#;
    assert_eq!(to_text(&config), expected);
    assert_eq!(parsed(expected), config);
}
