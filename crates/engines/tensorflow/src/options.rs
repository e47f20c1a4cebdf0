//! The choices of a model's configuration and the backend's settings: threads, sessions, signature.
//!
//! Names and meaning are the same as in Triton's backend. Opens no files.

use nereid_backend_api::{BackendSettings, Error, ModelConfig, Result};

use crate::messages::ConfigProto;

const SOFT_PLACEMENT: &str = "allow-soft-placement";

/// The names of the backend's settings.
pub const SETTINGS: [&str; 1] = [SOFT_PLACEMENT];

/// The choices of a model's configuration.
#[derive(Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) session: ConfigProto,
    /// `TF_GRAPH_TAG`.
    pub(crate) tag: Option<String>,
    /// `TF_SIGNATURE_DEF`.
    pub(crate) signature: Option<String>,
    /// `TF_INIT_OPS_FILE`.
    pub(crate) init_ops: Option<String>,
    /// `MAX_SESSION_SHARE_COUNT`: how many instances run in one session.
    pub(crate) shares: usize,
}

impl Options {
    /// Reads a configuration.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid parameter or setting, by name.
    pub(crate) fn of(config: &ModelConfig, settings: &BackendSettings) -> Result<Self> {
        let parameter = |key: &str| {
            let value = config.parameters.get(key).map(|value| value.string_value.trim());
            value.filter(|value| !value.is_empty())
        };
        let threads = |key: &str| match parameter(key) {
            None => Ok(0),
            Some(value) => match value.parse::<i32>() {
                Ok(count) if count >= 0 => Ok(count),
                _ => Err(wrong("parameter", key, value, "a non-negative integer")),
            },
        };
        let shares = match parameter("MAX_SESSION_SHARE_COUNT") {
            None => 1,
            Some(value) => match value.parse::<usize>() {
                Ok(count) if count > 0 => count,
                _ => return Err(wrong("parameter", "MAX_SESSION_SHARE_COUNT", value, "a positive integer")),
            },
        };
        let own_threads = "TF_USE_PER_SESSION_THREADS";
        let own_threads = match parameter(own_threads) {
            None => false,
            Some(value) => {
                boolean(value).ok_or_else(|| wrong("parameter", own_threads, value, "yes or no"))?
            }
        };
        let allow_soft_placement = match settings.get(SOFT_PLACEMENT) {
            None => true,
            Some(value) => boolean(value)
                .ok_or_else(|| wrong("the backend setting", SOFT_PLACEMENT, value, "true or false"))?,
        };
        let text = |key: &str| parameter(key).map(str::to_owned);
        Ok(Self {
            session: ConfigProto {
                intra_op_threads: threads("TF_NUM_INTRA_THREADS")?,
                inter_op_threads: threads("TF_NUM_INTER_THREADS")?,
                allow_soft_placement,
                use_per_session_threads: own_threads,
            },
            tag: text("TF_GRAPH_TAG"),
            signature: text("TF_SIGNATURE_DEF"),
            init_ops: text("TF_INIT_OPS_FILE"),
            shares,
        })
    }
}

fn boolean(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "yes" | "true" | "1" | "on" => Some(true),
        "no" | "false" | "0" | "off" => Some(false),
        _ => None,
    }
}

fn wrong(what: &str, key: &str, value: &str, right: &str) -> Error {
    Error::invalid_arg(format!("{what} '{key}' is '{value}', expected {right}"))
}

#[cfg(test)]
mod tests {
    use nereid_testkit::normalised;

    use super::*;

    fn options(parameters: &[(&str, &str)], settings: &[(&str, &str)]) -> Result<Options> {
        let parameter = |(key, value): &(&str, &str)| {
            format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n")
        };
        let text: String = parameters.iter().map(parameter).collect();
        let config = normalised("m", &format!("platform: 'tensorflow_graphdef'\n{text}"));
        Options::of(&config, &settings.iter().copied().collect())
    }

    #[test]
    fn parameters_and_settings_are_read() {
        let plain = options(&[], &[]).unwrap();
        assert_eq!((plain.shares, plain.session.allow_soft_placement), (1, true));
        assert_eq!((plain.tag, plain.signature, plain.init_ops), (None, None, None));
        let parameters = [
            ("TF_NUM_INTRA_THREADS", "3"),
            ("TF_NUM_INTER_THREADS", " 2 "),
            ("TF_USE_PER_SESSION_THREADS", "Yes"),
            ("TF_GRAPH_TAG", "gpu"),
            ("TF_SIGNATURE_DEF", "predict"),
            ("TF_INIT_OPS_FILE", "init.json"),
            ("MAX_SESSION_SHARE_COUNT", "4"),
        ];
        let full = options(&parameters, &[("allow-soft-placement", "false")]).unwrap();
        let session = ConfigProto {
            intra_op_threads: 3,
            inter_op_threads: 2,
            allow_soft_placement: false,
            use_per_session_threads: true,
        };
        assert_eq!((full.session, full.shares), (session, 4));
        assert_eq!(full.tag.as_deref(), Some("gpu"));
        assert_eq!(full.signature.as_deref(), Some("predict"));
        assert_eq!(full.init_ops.as_deref(), Some("init.json"));
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        for (key, value) in [
            ("TF_NUM_INTRA_THREADS", "-1"),
            ("TF_NUM_INTER_THREADS", "many"),
            ("TF_USE_PER_SESSION_THREADS", "perhaps"),
            ("MAX_SESSION_SHARE_COUNT", "0"),
        ] {
            let error = options(&[(key, value)], &[]).unwrap_err();
            assert!(error.message().starts_with(&format!("parameter '{key}' is '{value}'")), "{error}");
        }
        let error = options(&[], &[("allow-soft-placement", "x")]).unwrap_err();
        assert!(error.message().starts_with("the backend setting 'allow-soft-placement' is 'x'"), "{error}");
    }
}
