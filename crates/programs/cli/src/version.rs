//! `nereid --version`: what was built, and which frameworks' libraries this machine has. The first line is for scripts.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use nereid_assembly::{BackendsConfig, FrameworkLibrary, libraries};
use nereid_options::default_backend_directory;

/// The engines that need no library.
const BUILT_IN: [&str; 4] =
    ["Python 3.9 or newer (model.py)", "ensembles", "identity", "libraries built for Triton"];

/// Prints the version.
pub(crate) fn print() -> ExitCode {
    let config = BackendsConfig { directory: default_backend_directory(), ..BackendsConfig::default() };
    // The reader may close the pipe early, as `head -1` does.
    let _ = std::io::stdout().write_all(text(&libraries(&config)).as_bytes());
    ExitCode::SUCCESS
}

fn text(libraries: &[FrameworkLibrary]) -> String {
    let mut text = format!("nereid {}\n", env!("CARGO_PKG_VERSION"));
    let mut row = |name: &str, value: &str| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:<14}{value}");
    };
    let commit = env!("NEREID_BUILD_COMMIT");
    row("commit", if commit.is_empty() { "unknown" } else { commit });
    row("built for", &format!("{}, profile {}", env!("NEREID_BUILD_TARGET"), env!("NEREID_BUILD_PROFILE")));
    let embedded = cfg!(feature = "embedded-engine").then_some("ONNX (embedded engine)");
    row("built in", &embedded.into_iter().chain(BUILT_IN).collect::<Vec<_>>().join(", "));
    for library in libraries {
        match &library.path {
            Some(path) => row(library.name, &path.display().to_string()),
            None => row(library.name, "not found"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_is_name_and_version_alone() {
        let library =
            |path: Option<&str>| FrameworkLibrary { name: "ONNX Runtime", path: path.map(Into::into) };
        for (path, expected) in
            [(Some("/a b/libonnxruntime.so.1"), "/a b/libonnxruntime.so.1"), (None, "not found")]
        {
            let text = text(&[library(path)]);
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(lines[0], format!("nereid {}", env!("CARGO_PKG_VERSION")));
            assert_eq!(lines[4], format!("  ONNX Runtime  {expected}"));
            assert!(lines.iter().all(|line| !line.ends_with(' ')), "{text}");
            assert_eq!(text.contains("embedded engine"), cfg!(feature = "embedded-engine"), "{text}");
        }
    }
}
