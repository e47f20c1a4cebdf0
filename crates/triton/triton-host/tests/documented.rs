//! The table of functions in `docs/c-abi.md` matches the exported ones.

use std::collections::BTreeMap;

use nereid_triton_host::exported_names;
use triton_sys::signatures;

const TABLE: &str = include_str!("../../../../docs/c-abi.md");

#[test]
fn documented_functions_match_the_exports() {
    let mut rows = BTreeMap::new();
    for row in TABLE.lines().filter_map(|line| line.strip_prefix("| `")) {
        let (name, rest) = row.split_once("` | ").unwrap();
        let (state, _) = rest.split_once(" | ").unwrap();
        assert!(["complete", "missing"].contains(&state), "{row}");
        assert!(rows.insert(name, state).is_none(), "{name} has two rows");
    }
    let declared = signatures::SERVER
        .iter()
        .flat_map(|part| part.iter())
        .chain(signatures::BACKEND)
        .chain(signatures::CACHE)
        .chain(signatures::AGENT);
    for name in declared {
        assert!(rows.contains_key(name), "{name} has no row");
    }
    let exported: Vec<_> = exported_names().collect();
    for (name, state) in rows {
        assert_eq!(exported.contains(&name), state != "missing", "{name} is said to be {state}");
    }
}
