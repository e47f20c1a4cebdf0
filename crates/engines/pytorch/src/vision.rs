//! Finds torchvision's library, whose operators every exported detector uses: nms, roi_align and others.
//!
//! Does not load it.

use std::fs;
use std::path::{Path, PathBuf};

/// The namespace of torchvision's operators, which libtorch names in its error for an unknown one.
pub(crate) const NAMESPACE: &str = "torchvision::";

/// The library for a `libtorch_cpu.so`: `libtorchvision.so` in the same folder, or the one in torchvision's Python package next to
/// torch's.
pub(crate) fn library(torch: &Path) -> Option<PathBuf> {
    let folder = torch.parent()?;
    let own = folder.join("libtorchvision.so");
    if own.is_file() {
        return Some(own);
    }
    let package = folder.parent()?.parent()?.join("torchvision");
    let mut libraries: Vec<_> = fs::read_dir(package)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            // `_C.so`, or with a tag such as `_C_stable.so` and `_C.cpython-311.so`.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("_C") && name.ends_with(".so")
        })
        .collect();
    libraries.sort();
    libraries.into_iter().next()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn with(files: &[&str]) -> TempDir {
        let folder = TempDir::new().unwrap();
        for file in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        folder
    }

    #[test]
    fn the_library_is_next_to_libtorch_or_in_the_package_next_to_torchs() {
        let package = "torchvision/_C.so";
        for (files, expected) in [
            (&["torch/lib/libtorch_cpu.so"][..], None),
            (&["torch/lib/libtorch_cpu.so", package], Some(package)),
            (&["torch/lib/libtorch_cpu.so", "torchvision/_C_stable.so"], Some("torchvision/_C_stable.so")),
            (
                &["torch/lib/libtorch_cpu.so", "torchvision/_C.cpython-311.so"],
                Some("torchvision/_C.cpython-311.so"),
            ),
            (&["torch/lib/libtorch_cpu.so", "torchvision/image.so", "torchvision/_C.py"], None),
            (&["torch/lib/libtorchvision.so", package], Some("torch/lib/libtorchvision.so")),
        ] {
            let folder = with(files);
            let found = library(&folder.path().join("torch/lib/libtorch_cpu.so"));
            assert_eq!(found, expected.map(|path| folder.path().join(path)), "{files:?}");
        }
    }
}
