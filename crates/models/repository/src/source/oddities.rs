//! Probable mistakes in repositories.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nereid_core::backend_api::block_on;

use super::naming::is_model_name;
use super::{Misplaced, Repositories};
use crate::agents::AGENTS_FILE;
use crate::store::Store;

impl Repositories {
    /// Probable mistakes, with what to do about them: repositories without models, folders that are not repositories, and
    /// stray files next to model folders.
    ///
    /// Stores may answer with data that they learned at `as_of` or later.
    pub fn oddities(&self, as_of: Instant) -> Vec<String> {
        let of_store = |store: &Arc<dyn Store>| {
            let location = store.location();
            // If it cannot be read, the loads report that.
            let entries = block_on(store.list("", as_of)).unwrap_or_default();
            if let Some(misplaced) = Misplaced::of_store(&**store, as_of) {
                return vec![format!("model repository '{location}' {misplaced}")];
            }
            let (folders, mut files): (Vec<_>, Vec<_>) =
                entries.into_iter().partition(|entry| entry.is_folder);
            files.retain(|file| could_be_of_a_model(&file.name) && file.name != AGENTS_FILE);
            files.sort();
            let named: Vec<_> = files.iter().take(5).map(|file| format!("'{}'", file.name)).collect();
            let more = if files.len() > named.len() { ", ..." } else { "" };
            let stray = (!files.is_empty()).then(|| {
                format!(
                    "model repository '{location}': {}{more} beside the folders of models not used: a model is a folder, \
                     such as <model>/1/model.onnx",
                    named.join(", ")
                )
            });
            let is_empty = !folders.iter().any(|folder| is_model_name(&folder.name));
            let empty = is_empty.then(|| {
                format!(
                    "model repository '{location}' has no models: each needs a folder of its own, such as \
                     <model>/1/model.onnx"
                )
            });
            empty.into_iter().chain(stray).collect()
        };
        self.stores.iter().flat_map(of_store).collect()
    }
}

/// Whether a file next to the model folders looks as if it belonged into one.
fn could_be_of_a_model(name: &str) -> bool {
    let endings = ["onnx", "pt", "pt2", "plan", "py", "pbtxt", "so", "xml", "savedmodel", "graphdef"];
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
    !name.starts_with('.') && ending.is_some_and(|ending| endings.contains(&ending))
}
