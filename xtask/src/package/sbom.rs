//! The bill of materials: the program's crates as a CycloneDX 1.5 document in JSON.

use anyhow::Result;
use serde_json::{Value, json};
use time::OffsetDateTime;

use super::components::{Component, PROGRAM};

/// The document of a program with these components. `name` and `version` are the program's.
pub fn text(name: &str, version: &str, components: &[Component], seconds: u64) -> Result<String> {
    let root = format!("{name}@{version}");
    let listed: Vec<_> = components.iter().map(component).collect();
    let mut dependencies: Vec<_> = components.iter().map(uses).collect();
    dependencies.insert(0, json!({ "ref": root, "dependsOn": [reference(PROGRAM, version)] }));
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": timestamp(seconds)?,
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": name,
                "version": version,
                "licenses": [{ "expression": "Apache-2.0" }],
            },
        },
        "components": listed,
        "dependencies": dependencies,
    });
    Ok(format!("{}\n", serde_json::to_string_pretty(&document)?))
}

/// A package URL, which identifies a crate of the registry across tools.
fn reference(name: &str, version: &str) -> String {
    // A version may have build metadata, whose plus sign means a blank in URLs.
    format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))
}

fn component(component: &Component) -> Value {
    let Component { name, version, licence, .. } = component;
    let reference = reference(name, version);
    let mut listed = json!({
        "type": "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "licenses": [{ "expression": licence }],
    });
    if let Some(checksum) = &component.checksum {
        // Crates of this repository are on no registry, so nothing is found by their URLs.
        listed["purl"] = json!(reference);
        listed["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(repository) = &component.repository {
        listed["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    listed
}

fn uses(component: &Component) -> Value {
    let used: Vec<_> = component.uses.iter().map(|(name, version)| reference(name, version)).collect();
    json!({ "ref": reference(&component.name, &component.version), "dependsOn": used })
}

/// Seconds since 1970 as a time in UTC.
fn timestamp(seconds: u64) -> Result<String> {
    let time = OffsetDateTime::from_unix_timestamp(seconds.try_into()?)?;
    let (year, month, day) = time.to_calendar_date();
    let (hour, minute, second) = time.to_hms();
    Ok(format!("{year:04}-{:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z", u8::from(month)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::components;
    use super::super::elf::Machine;
    use super::*;
    use crate::project::Project;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_728_495, "2026-11-26T21:28:15Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(timestamp(seconds).unwrap(), expected);
        }
    }

    #[test]
    fn every_reference_names_a_component_and_no_two_are_the_same() {
        let components = components::of_program(&Project::find().unwrap(), Machine::X86_64).unwrap();
        let document: Value =
            serde_json::from_str(&text("nereid", "0.1.0", &components, 0).unwrap()).unwrap();
        let list = |value: &Value| value.as_array().unwrap().clone();
        let mut known: BTreeSet<String> = BTreeSet::from(["nereid@0.1.0".to_owned()]);
        for component in list(&document["components"]) {
            let reference = component["bom-ref"].as_str().unwrap().to_owned();
            assert!(known.insert(reference.clone()), "{reference}");
            let is_own = component.get("purl").is_none();
            assert_eq!(component.get("hashes").is_none(), is_own, "{reference}");
        }
        assert_eq!(list(&document["dependencies"]).len(), known.len());
        for dependency in list(&document["dependencies"]) {
            assert!(known.contains(dependency["ref"].as_str().unwrap()));
            for used in list(&dependency["dependsOn"]) {
                assert!(known.contains(used.as_str().unwrap()), "{used}");
            }
        }
    }

    #[test]
    fn references_escape_the_build_of_a_version() {
        assert_eq!(reference("a", "1.0.0+2.3"), "pkg:cargo/a@1.0.0%2B2.3");
    }
}
