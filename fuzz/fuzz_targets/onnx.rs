//! An ONNX file in the embedded engine, and requests to its model.
//!
//! The backend contains panics of the engine's library, so a panic is a finding only if it passes the backend. libFuzzer's binding
//! would end the process at every panic by a hook, which this target replaces.

#![no_main]

#[path = "../onnx_properties.rs"]
mod onnx_properties;

use std::sync::Once;

use libfuzzer_sys::fuzz_target;

static WITHOUT_HOOK: Once = Once::new();

fuzz_target!(|data: &[u8]| {
    WITHOUT_HOOK.call_once(|| std::panic::set_hook(Box::new(|_| ())));
    if let Err(panic) = std::panic::catch_unwind(|| onnx_properties::model(data)) {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        eprintln!("panicked: {}", message.unwrap_or("without a message"));
        std::process::abort();
    }
});
