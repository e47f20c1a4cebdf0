//! Checks that options set by applications through Triton's C interface are options of this program, and that the
//! others have a reason.

use std::collections::BTreeSet;

use nereid_triton_host::SETTERS;

use super::abbreviations::OWN;
use super::pairs::option_names;

/// Prefixes of Triton's options without a function in the C interface, with the reason. Options that Triton does not have
/// need no reason.
const COMMAND_ALONE: &[(&str, &str)] = &[
    ("allow-client-shm", "clients connect through faces"),
    ("allow-grpc", "an application opens no port"),
    ("allow-http", "an application opens no port"),
    ("allow-sagemaker", "an application opens no port"),
    ("allow-vertex-ai", "an application opens no port"),
    ("disable-auto-complete-config", "covered by strict-model-config"),
    ("grpc-", "an application opens no port"),
    ("http-", "an application opens no port"),
    ("log-", "the log is the process's and not a server's"),
    ("metrics-address", "an application opens no port"),
    ("metrics-port", "an application opens no port"),
    ("model-store", "another name of model-repository"),
    ("repository-poll-secs", "an application polls itself"),
    ("response-cache-byte-size", "covered by cache-config"),
    ("reuse-", "an application opens no port"),
    ("sagemaker-", "an application opens no port"),
    ("trace-", "applications create traces themselves"),
    ("vertex-ai-", "an application opens no port"),
];

#[test]
fn every_option_has_a_c_function_or_a_reason() {
    let declared: BTreeSet<_> = option_names().into_iter().collect();
    let set: BTreeSet<_> = SETTERS.iter().map(|(_, option)| (*option).to_owned()).collect();
    let unknown: Vec<_> = set.difference(&declared).collect();
    assert!(unknown.is_empty(), "functions of C set options that nobody declares: {unknown:?}");
    let excused = |name: &str| COMMAND_ALONE.iter().filter(|(prefix, _)| name.starts_with(prefix)).count();
    for name in declared.iter().filter(|name| !OWN.contains(&name.as_str())) {
        let functions = usize::from(set.contains(name));
        assert_eq!(
            functions + excused(name),
            1,
            "--{name}: has {functions} functions of C, and {} reasons",
            excused(name)
        );
    }
    for (prefix, _) in COMMAND_ALONE {
        assert!(declared.iter().any(|name| name.starts_with(prefix)), "{prefix} is no option");
    }
    // Each function is listed once.
    let functions: BTreeSet<_> = SETTERS.iter().map(|(function, _)| function).collect();
    assert_eq!(functions.len(), SETTERS.len());
}
