//! Paths that match a pattern, and paths that do not.

use super::*;

/// Routes whose versions are numbers.
fn routes() -> Routes<()> {
    Routes::new(&[]).accepting(|parameter, segment| parameter != "version" || segment.parse::<u32>().is_ok())
}

const PATTERN: &str = "/pages/{page}/versions/{version}";

#[test]
fn a_path_yields_its_parameters_percent_decoded() {
    let path = "/pages/a%20b%2Fc/versions/3";
    assert!(routes().matches(PATTERN, path));
    let params = Params { pattern: PATTERN, path };
    assert_eq!(params.get("page").as_deref(), Some("a b/c"));
    assert_eq!(params.get("version").as_deref(), Some("3"));
    assert_eq!(params.get("model"), None);
}

#[test]
fn a_path_of_another_form_does_not_match() {
    for path in [
        "/pages//versions/3",
        "/pages/a/versions/3/",
        "/pages/a/versions",
        "/pages/a/versions/new",
        "pages/a/versions/3",
        "",
    ] {
        assert!(!routes().matches(PATTERN, path), "{path}");
    }
}

#[test]
fn a_star_matches_every_path() {
    for path in ["/", "/a/b", "*"] {
        assert!(routes().matches("*", path), "{path}");
    }
}
