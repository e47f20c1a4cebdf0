//! Recognises files that libtorch does not run: pickles, weights, and files of the other platform.
//!
//! Reads the first bytes of a file, and the names in it if it is a zip file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use nereid_archives::{ArchiveLimits, zip_names};

use crate::PACKAGE_PLATFORM;

const PICKLE: &str = "it has pickled Python objects, as torch.save writes them (a module or a state_dict), and is not TorchScript: \
                      save the model with torch.jit.trace or torch.jit.script, export it to ONNX, or load it in a Python model \
                      (model.py)";
const SAFETENSORS: &str = "it has weights in the format safetensors, without the model's graph: save the model with \
                           torch.jit.trace or torch.jit.script, export it to ONNX, or load it in a Python model (model.py)";
const EXPORTED: &str = "it is a program of torch.export that is not compiled: compile it with \
                        torch._inductor.aoti_compile_and_package, and set platform: \"torch_aoti\"";
const PACKAGE: &str = "it is a package of AOTInductor, and not TorchScript: set platform: \"torch_aoti\"";
const SCRIPT: &str =
    "it is TorchScript, and not a package of AOTInductor: set platform: \"pytorch_libtorch\"";

/// The largest header of a file in the format safetensors.
const MAX_HEADER: u64 = 100 << 20;

/// The reason why a file cannot be a model of this platform, and what to do about it. `None` if it may be one, or if its
/// format is unknown.
pub(crate) fn mismatch(path: &Path, platform: &str) -> Option<&'static str> {
    let mut file = nereid_model_files::open(path).ok()?;
    match start(&mut file)? {
        [0x80, 2..=5, ..] => Some(PICKLE),
        [b'P', b'K', 3, 4, ..] => {
            let names = zip_names(file, ArchiveLimits::default()).ok()?;
            of_names(&names.iter().map(String::as_str).collect::<Vec<_>>(), platform)
        }
        [length @ .., b'{', b'"'] if u64::from_le_bytes(length) <= MAX_HEADER => Some(SAFETENSORS),
        _ => None,
    }
}

/// The first bytes of a file: the length of a header and its first two letters, in the format safetensors.
fn start(file: &mut File) -> Option<[u8; 10]> {
    let mut start = [0; 10];
    file.read_exact(&mut start).ok()?;
    Some(start)
}

/// Judges a zip file by the names of its entries. All but the oldest writers put them into a folder.
fn of_names(names: &[&str], platform: &str) -> Option<&'static str> {
    let is_below = |folder: &str| {
        names.iter().any(|name| name.starts_with(folder) || name.contains(&format!("/{folder}")))
    };
    let has_file = |file: &str| names.iter().any(|name| name.rsplit('/').next() == Some(file));
    let is_package = is_below("data/aotinductor/");
    match (platform == PACKAGE_PLATFORM, is_package, is_below("code/")) {
        (true, true, _) | (false, _, true) => None,
        (true, false, true) => Some(SCRIPT),
        (false, true, false) => Some(PACKAGE),
        (_, false, false) if has_file("serialized_exported_program.json") || is_below("models/") => {
            Some(EXPORTED)
        }
        (_, false, false) => has_file("data.pkl").then_some(PICKLE),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use rawzip::{CompressionMethod, ZipArchiveWriter};

    use super::*;

    const SCRIPTS: &str = "pytorch_libtorch";

    fn zip(names: &[&str]) -> Vec<u8> {
        let mut archive = ZipArchiveWriter::new(Vec::new());
        for name in names {
            let file = archive.new_file(name).compression_method(CompressionMethod::STORE);
            let (mut entry, config) = file.start().unwrap();
            let mut writer = config.wrap(&mut entry);
            writer.write_all(b"x").unwrap();
            let (_, descriptor) = writer.finish().unwrap();
            entry.finish(descriptor).unwrap();
        }
        archive.finish().unwrap()
    }

    #[test]
    fn zip_files_are_judged_by_their_entries_and_the_platform() {
        let script = ["net/data.pkl", "net/code/__torch__.py", "net/constants.pkl", "net/version"];
        let oldest_script = ["model.json", "code/a.py", "tensors/0"];
        let saved = ["archive/data.pkl", "archive/byteorder", "archive/data/0", "archive/version"];
        let package = ["p/data/aotinductor/model/c.so", "p/archive_format", "p/data/weights/w"];
        let exported = ["e/serialized_exported_program.json", "e/serialized_state_dict.pt"];
        let newer_export = ["e/models/model.json", "e/data/weights/model_weights_config.json"];
        let both = ["p/models/model.json", "p/data/aotinductor/model/c.so"];
        for (names, as_script, as_package) in [
            (&script[..], None, Some(SCRIPT)),
            (&oldest_script, None, Some(SCRIPT)),
            (&saved, Some(PICKLE), Some(PICKLE)),
            (&package, Some(PACKAGE), None),
            (&both, Some(PACKAGE), None),
            (&exported, Some(EXPORTED), Some(EXPORTED)),
            (&newer_export, Some(EXPORTED), Some(EXPORTED)),
            (&["notes.txt"], None, None),
            (&[], None, None),
        ] {
            assert_eq!(of_names(names, SCRIPTS), as_script, "{names:?}");
            assert_eq!(of_names(names, ""), as_script, "{names:?}");
            assert_eq!(of_names(names, PACKAGE_PLATFORM), as_package, "{names:?}");
        }
    }

    #[test]
    fn files_are_judged_by_their_first_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.pt");
        assert_eq!(mismatch(&path, SCRIPTS), None);
        let saved = zip(&["archive/data.pkl", "archive/data/0"]);
        let header = b"{\"w\":{\"dtype\":\"F32\"}}";
        let weights = [&(header.len() as u64).to_le_bytes()[..], header].concat();
        let huge = [&u64::MAX.to_le_bytes()[..], header].concat();
        for (contents, expected) in [
            (saved.clone(), Some(PICKLE)),
            (saved[..saved.len() / 2].to_vec(), None),
            (zip(&["net/code/a.py", "net/data.pkl"]), None),
            (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j".to_vec(), Some(PICKLE)),
            (b"\x80\x05\x95\0\0\0\0\0\0\0".to_vec(), Some(PICKLE)),
            (b"\x80\x07\x95\0\0\0\0\0\0\0".to_vec(), None),
            (weights, Some(SAFETENSORS)),
            (huge, None),
            (b"\x80\x02".to_vec(), None),
            (b"what is this?".to_vec(), None),
            (Vec::new(), None),
        ] {
            fs::write(&path, &contents).unwrap();
            assert_eq!(mismatch(&path, SCRIPTS), expected, "{contents:?}");
        }
    }
}
