//! Sites of a few pages, published version after version.

use std::fs;
use std::path::Path;

use super::*;

const PAGE: &str = "<head><!--canonical--><!--/canonical--></head><!--versions--><!--/versions--><!--notice--><!--/notice-->";

/// Builds a version of these pages, each with a text of its own, and publishes it.
fn publish_pages(site: &Path, version: &str, pages: &[&str], url: Option<&str>) -> Result<()> {
    let built = tempfile::tempdir().unwrap();
    for page in pages {
        let path = built.path().join(page);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{PAGE}{version} {page}")).unwrap();
    }
    publish(built.path(), site, version.parse().unwrap(), url)
}

fn read(site: &Path, page: &str) -> String {
    fs::read_to_string(site.join(page)).unwrap()
}

#[test]
fn releases_have_the_name_of_their_first_two_numbers() {
    for (text, name) in
        [("0.1.0", "0.1"), ("0.1.7", "0.1"), ("0.10", "0.10"), ("12.3.4", "12.3"), ("dev", "dev")]
    {
        assert_eq!(text.parse::<Version>().unwrap().to_string(), name);
    }
    for text in ["", "1", "latest", "v0.1", "0.1.2.3", "0.x", "0..1", "-1.0", "0.1.0-rc1", "search"] {
        assert!(text.parse::<Version>().is_err(), "{text:?}");
    }
}

#[test]
fn releases_are_in_the_order_of_their_numbers() {
    let order = ["0.2", "0.9", "0.10", "1.0", "dev"].map(|text| text.parse::<Version>().unwrap());
    assert!(order.is_sorted());
}

#[test]
fn a_site_without_releases_leads_to_what_is_not_released() {
    let site = tempfile::tempdir().unwrap();
    publish_pages(site.path(), "dev", &["index.html", "docs/a.html"], None).unwrap();
    assert!(read(site.path(), "index.html").contains("url=dev/index.html"));
    assert!(!site.path().join("latest").exists());
    let page = read(site.path(), "dev/docs/a.html");
    assert!(page.contains("Version dev") && !page.contains("admonition"), "{page}");
}

#[test]
fn old_releases_keep_their_pages_and_learn_of_new_ones() {
    let site = tempfile::tempdir().unwrap();
    let site = site.path();
    publish_pages(site, "0.9.1", &["index.html", "docs/a.html", "docs/old.html"], None).unwrap();
    assert!(!read(site, "0.9/docs/a.html").contains("admonition"));
    publish_pages(site, "0.10.0", &["index.html", "docs/a.html"], None).unwrap();
    publish_pages(site, "dev", &["index.html", "docs/a.html", "docs/new.html"], None).unwrap();

    assert!(read(site, "index.html").contains("url=latest/index.html"));
    let old = read(site, "0.9/docs/a.html");
    assert!(old.ends_with("0.9.1 docs/a.html"), "{old}");
    assert!(
        old.contains(
            r#"describes release 0.9. The newest release is <a href="../../latest/docs/a.html">0.10<"#
        ),
        "{old}"
    );
    assert!(
        old.contains(
            r#"<a href="../../dev/docs/a.html">dev</a> <a href="../../latest/docs/a.html">0.10 (latest)</a>"#
        ),
        "{old}"
    );
    assert!(old.contains(r#"<a href="../../0.9/docs/a.html" aria-current="true">0.9</a>"#), "{old}");
    // Pages that the other version does not have lead to its first one.
    assert!(read(site, "0.9/docs/old.html").contains(r#"<a href="../../latest/index.html">0.10<"#));
    assert!(
        read(site, "dev/docs/new.html")
            .contains(r#"not released yet. The newest release is <a href="../../latest/index.html">"#)
    );
    for folder in ["0.10", "latest"] {
        let page = read(site, &format!("{folder}/docs/a.html"));
        assert!(page.ends_with("0.10.0 docs/a.html") && !page.contains("admonition"), "{page}");
    }
}

#[test]
fn a_release_takes_the_place_of_the_one_with_the_same_two_numbers() {
    let site = tempfile::tempdir().unwrap();
    let site = site.path();
    publish_pages(site, "0.2.0", &["index.html", "gone.html"], None).unwrap();
    publish_pages(site, "0.2.1", &["index.html"], None).unwrap();
    for folder in ["0.2", "latest"] {
        assert!(read(site, &format!("{folder}/index.html")).ends_with("0.2.1 index.html"));
        assert!(!site.join(folder).join("gone.html").exists());
    }
    // A later build of an older release does not become the newest.
    publish_pages(site, "0.1.9", &["index.html"], None).unwrap();
    assert!(read(site, "latest/index.html").ends_with("0.2.1 index.html"));
    assert!(read(site, "0.1/index.html").contains("describes release 0.1."));
}

#[test]
fn search_engines_are_led_to_the_newest_release_that_has_a_page() {
    let site = tempfile::tempdir().unwrap();
    let site = site.path();
    let url = Some("https://nereid.example/");
    publish_pages(site, "0.1.0", &["index.html", "old.html", "a.html"], url).unwrap();
    publish_pages(site, "0.2.0", &["index.html", "a.html"], url).unwrap();
    publish_pages(site, "dev", &["index.html", "a.html", "new.html"], url).unwrap();
    for (page, canonical) in [
        ("0.1/a.html", "latest/a.html"),
        ("0.1/old.html", "0.1/old.html"),
        ("0.2/a.html", "latest/a.html"),
        ("latest/a.html", "latest/a.html"),
        ("dev/new.html", "dev/new.html"),
    ] {
        let expected = format!(
            r#"<!--canonical--><link rel="canonical" href="https://nereid.example/{canonical}"><!--/"#
        );
        assert!(read(site, page).contains(&expected), "{page}: {}", read(site, page));
    }
}

#[test]
fn links_that_lead_nowhere_are_named_in_all_versions() {
    let site = tempfile::tempdir().unwrap();
    publish_pages(site.path(), "0.1.0", &["index.html", "docs/a.html"], None).unwrap();
    let old = site.path().join("0.1/docs/a.html");
    fs::write(
        &old,
        format!(
            r#"{PAGE}<a href="b.html#c"> <a href="../index.html#d"> <a href="https://x/y"> <img src="p.svg">"#
        ),
    )
    .unwrap();
    let error = publish_pages(site.path(), "dev", &["index.html"], None).unwrap_err().to_string();
    assert!(
        error.contains("0.1/docs/a.html: b.html\n") && error.contains("0.1/docs/a.html: p.svg"),
        "{error}"
    );
    assert!(!error.contains("index.html") && !error.contains("x/y"), "{error}");
}

#[test]
fn pages_of_others_are_left_alone() {
    let site = tempfile::tempdir().unwrap();
    let built = tempfile::tempdir().unwrap();
    fs::write(built.path().join("index.html"), PAGE).unwrap();
    fs::write(built.path().join("example.html"), r#"<a href="nowhere.html">"#).unwrap();
    publish(built.path(), site.path(), Version::Development, None).unwrap();
    assert_eq!(read(site.path(), "dev/example.html"), r#"<a href="nowhere.html">"#);
}
