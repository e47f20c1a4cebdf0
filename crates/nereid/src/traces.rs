//! Where traces go: what the options say of it, made into what takes them.

use std::sync::Arc;

use nereid_core::{TraceMode, TraceSettings, TraceStore};
use nereid_trace::TraceFiles;

/// What takes traces in the mode of these settings; `None` if nothing can.
pub(crate) fn store(settings: &TraceSettings) -> Option<Arc<dyn TraceStore>> {
    match settings.mode {
        // Settings that trace are refused as long as there is no file, and there is none later if there is none now.
        TraceMode::Triton if settings.file.is_empty() => None,
        TraceMode::Triton => Some(Arc::new(TraceFiles::new(&settings.file))),
        TraceMode::OpenTelemetry => None,
    }
}
