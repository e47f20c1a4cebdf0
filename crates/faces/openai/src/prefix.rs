//! A further path below which the face has its routes, for clients of servers that have them there, such as KServe's `/openai/v1`.

use std::str::FromStr;

/// Such a path: its segments, each followed by a slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenAiPrefix(String);

impl OpenAiPrefix {
    /// The part of a path behind the prefix, which lacks its first slash. `None` for other paths.
    pub(crate) fn strip<'a>(&self, path: &'a str) -> Option<&'a str> {
        path.strip_prefix('/')?.strip_prefix(&self.0)
    }
}

impl FromStr for OpenAiPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let is_segment = |segment: &str| !matches!(segment, "" | "." | "..") && segment.bytes().all(is_plain);
        match text.strip_prefix('/') {
            Some(rest) if rest.split('/').all(is_segment) => Ok(Self(format!("{rest}/"))),
            _ => {
                Err("must be a path of letters, digits and '-._~' that ends without a slash, such as /openai"
                    .to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_are_whole_segments() {
        let prefix: OpenAiPrefix = "/openai".parse().unwrap();
        for (path, rest) in [
            ("/openai/v1/models", Some("v1/models")),
            ("/openai/", Some("")),
            ("/openai/openai/v1/models", Some("openai/v1/models")),
            ("/openai//v1/models", Some("/v1/models")),
            ("/openai", None),
            ("/openaiv1/models", None),
            ("//openai/v1/models", None),
            ("/OpenAI/v1/models", None),
            ("/%6Fpenai/v1/models", None),
            ("/v1/openai/models", None),
            ("*", None),
        ] {
            assert_eq!(prefix.strip(path), rest, "{path}");
        }
        let deep: OpenAiPrefix = "/serving/open-ai_".parse().unwrap();
        assert_eq!(deep.strip("/serving/open-ai_/v1/models"), Some("v1/models"));
    }

    #[test]
    fn what_is_no_plain_path_is_refused() {
        for text in [
            "", "/", "openai", "/openai/", "//openai", "/a//b", "/.", "/a/..", "/a b", "/%6F", "/a?b",
            "/{a}", "/ä",
        ] {
            let error = text.parse::<OpenAiPrefix>().unwrap_err();
            assert!(error.contains("such as /openai"), "{text}: {error}");
        }
    }
}
