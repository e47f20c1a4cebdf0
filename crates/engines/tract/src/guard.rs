//! Contains the engine's failures: an error chain or a panic becomes one line of text.
//!
//! tract panics on some odd models and inputs. A panic must fail the load or execution that caused it, and nothing
//! else. Every call into tract goes through here; what the call worked on is discarded after a failure.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tract_onnx::prelude::TractResult;

/// tract prints whole nodes and tensors into its errors; the cause is at the front.
const LONGEST: usize = 1000;

/// Runs `work`; a failure is described in one line.
pub(crate) fn guarded<T>(work: impl FnOnce() -> TractResult<T>) -> Result<T, String> {
    // An error is put into words inside, since printing one runs the engine's code as well.
    let outcome = catch_unwind(AssertUnwindSafe(|| work().map_err(|error| one_line(&format!("{error:#}")))));
    outcome.unwrap_or_else(|panic| Err(format!("the engine panicked: {}", one_line(panic_message(&*panic)))))
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    if let Some(message) = panic.downcast_ref::<String>() {
        message
    } else if let Some(message) = panic.downcast_ref::<&str>() {
        message
    } else {
        "without a message"
    }
}

fn one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > LONGEST {
            line.truncate(line.floor_char_boundary(LONGEST));
            line.push_str("...");
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use tract_onnx::tract_core::internal::{TractErrorContext, anyhow};

    #[test]
    fn an_error_chain_becomes_one_line() {
        let failure = guarded::<()>(|| Err(anyhow!("deep\n  cause")).context("outer"));
        assert_eq!(failure.unwrap_err(), "outer: deep cause");
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let number = 7;
        assert_eq!(guarded::<()>(|| panic!("plain")).unwrap_err(), "the engine panicked: plain");
        assert_eq!(guarded::<()>(|| panic!("with {number}")).unwrap_err(), "the engine panicked: with 7");
    }

    #[test]
    fn a_long_message_is_cut() {
        let failure = guarded::<()>(|| Err(anyhow!("é".repeat(LONGEST)))).unwrap_err();
        assert!(failure.len() <= LONGEST + "...".len() && failure.ends_with("é..."));
    }
}
