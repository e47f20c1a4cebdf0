//! A route that Vertex AI chooses: a path, or a regular expression for paths.

use std::str::FromStr;

use regex::Regex;

/// A route that Vertex AI chooses: a path, or a regular expression for whole paths.
#[derive(Clone, Debug)]
pub struct RoutePattern {
    text: String,
    pattern: Regex,
}

impl RoutePattern {
    /// Whether a path is of this route.
    pub fn matches(&self, path: &str) -> bool {
        path == self.text || self.pattern.is_match(path)
    }
}

impl FromStr for RoutePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is empty; expected a path, such as /predict".to_owned());
        }
        let pattern = Regex::new(&format!("^(?:{text})$")).map_err(|error| error.to_string())?;
        Ok(Self { text: text.to_owned(), pattern })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_paths_match() {
        for (route, path, expected) in [
            ("/predict", "/predict", true),
            ("/predict", "/predict/", false),
            ("/predict", "/a/predict", false),
            ("/v1/endpoints/1/deployedModels/2:predict", "/v1/endpoints/1/deployedModels/2:predict", true),
            ("/a|/b", "/b", true),
            ("/a|/b", "/ab", false),
            ("/m/[0-9]+", "/m/12", true),
            ("/m/[0-9]+", "/m/x", false),
            ("/m(", "/m(", false),
            ("", "", false),
        ] {
            let matches = route.parse::<RoutePattern>().is_ok_and(|route| route.matches(path));
            assert_eq!(matches, expected, "{route}: {path}");
        }
    }
}
