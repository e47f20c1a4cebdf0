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
    let params = routes().parameters(PATTERN, path).unwrap();
    assert_eq!(params.iter().collect::<Vec<_>>(), [("page", "a%20b%2Fc"), ("version", "3")]);
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
        "/pages/a/versions/3/4",
        "/pages/a/versions/",
        "/pages/a/b/versions/3",
        "/page/a/versions/3",
        "/pages/",
        "pages/a/versions/3",
        "",
    ] {
        assert!(routes().parameters(PATTERN, path).is_none(), "{path}");
    }
}

#[test]
fn a_star_matches_every_path() {
    for path in ["/", "/a/b", "*"] {
        assert!(routes().parameters("*", path).is_some(), "{path}");
    }
}
