//! A signed list of a model's files: every file must be listed, and match its digest.
//!
//! The list has lines in the format of `sha256sum`, or `SHA256 (file) = digest` as with its option `--tag`, also for
//! `MD5` and `BLAKE3`. Its signature, made by minisign, is in the file of the same name with the suffix `.minisig`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use minisign_verify::{PublicKey, Signature};
use nereid_core::backend_api::{Error, Result};
use nereid_model_files::{self as model_files, TEXT_LIMIT};

use super::check_file;
use super::digest::Algorithm;

/// The deepest nesting of folders: a link may form a cycle.
const DEPTH: usize = 16;

/// Checks a model's files against a list signed with this key.
pub(super) fn check(folder: &Path, manifest: &str, key: &str) -> Result<()> {
    let listed = read(folder, manifest, key)
        .map_err(|problem| Error::invalid_arg(format!("signed list '{manifest}': {problem}")))?;
    for (file, (algorithm, digest)) in &listed {
        check_file(folder, file, *algorithm, digest)?;
    }
    let signature = signature_of(manifest);
    for file in files(folder)? {
        if file != manifest && file != signature && !listed.contains_key(&file) {
            return Err(Error::invalid_arg(format!("'{file}' is not in the signed list '{manifest}'")));
        }
    }
    Ok(())
}

type Listed = BTreeMap<String, (Algorithm, String)>;

/// The list's entries, after its signature is verified.
fn read(folder: &Path, manifest: &str, key: &str) -> std::result::Result<Listed, String> {
    let read = |name: &str| {
        let path = model_files::inside(folder, name).map_err(|error| error.to_string())?;
        model_files::read(&path, TEXT_LIMIT).map_err(|error| format!("cannot read '{name}': {error}"))
    };
    let list = read(manifest)?;
    let signature = read(&signature_of(manifest))?;
    let key = PublicKey::from_base64(key.trim()).map_err(|error| format!("wrong public key: {error}"))?;
    let signature = String::from_utf8_lossy(&signature);
    let signature = Signature::decode(&signature).map_err(|error| format!("wrong signature: {error}"))?;
    // Legacy signatures cover the whole list instead of its digest, which is as good for a list of this size.
    key.verify(&list, &signature, true).map_err(|error| format!("wrong signature: {error}"))?;
    parse(&String::from_utf8(list).map_err(|error| error.to_string())?)
}

fn signature_of(manifest: &str) -> String {
    format!("{manifest}.minisig")
}

fn parse(list: &str) -> std::result::Result<Listed, String> {
    let mut listed = Listed::new();
    for (index, line) in list.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = || format!("line {}: expected 'digest  file' or 'ALGORITHM (file) = digest'", index + 1);
        let (file, algorithm, digest) = parse_line(line).ok_or_else(wrong)?;
        // The form that `sha256sum` writes for files below `.`.
        let file = file.strip_prefix("./").unwrap_or(file).to_owned();
        listed.insert(file, (algorithm, digest.to_owned()));
    }
    Ok(listed)
}

fn parse_line(line: &str) -> Option<(&str, Algorithm, &str)> {
    if let Some((head, digest)) = line.rsplit_once(") = ") {
        let (algorithm, file) = head.split_once(" (")?;
        return Some((file, Algorithm::parse(algorithm)?, digest)).filter(|_| is_hex(digest));
    }
    let (digest, file) = line.split_once(' ')?;
    // Followed by a space, or an asterisk for a binary file.
    let file = file.strip_prefix([' ', '*'])?;
    Some((file, Algorithm::Sha256, digest)).filter(|_| is_hex(digest) && digest.len() == 64)
}

fn is_hex(digest: &str) -> bool {
    !digest.is_empty() && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Every file below a folder, hidden ones included.
fn files(folder: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    walk(folder, "", DEPTH, &mut files).map_err(|problem| {
        Error::invalid_arg(format!("cannot list the files in '{}': {problem}", folder.display()))
    })?;
    Ok(files)
}

fn walk(
    folder: &Path,
    prefix: &str,
    depth: usize,
    files: &mut Vec<String>,
) -> std::result::Result<(), String> {
    for entry in fs::read_dir(folder).map_err(|error| error.to_string())? {
        let entry = entry.map_err(|error| error.to_string())?;
        let name = entry.file_name().into_string();
        let name = name.map_err(|name| format!("the name '{}' is not UTF-8", name.display()))?;
        let path = format!("{prefix}{name}");
        // Follows links, as readers of the model do.
        match entry.path().is_dir() {
            true if depth == 0 => return Err(format!("'{path}' is nested too deep")),
            true => walk(&entry.path(), &format!("{path}/"), depth - 1, files)?,
            false => files.push(path),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_forms_of_lines_are_read() {
        let digest = "0".repeat(64);
        for (line, expected) in [
            (format!("{digest}  1/a b"), Some(("1/a b", Algorithm::Sha256))),
            (format!("{digest} *./1/a"), Some(("1/a", Algorithm::Sha256))),
            (format!("SHA256 (a (1)) = {digest}"), Some(("a (1)", Algorithm::Sha256))),
            ("MD5 (a) = 00ff".into(), Some(("a", Algorithm::Md5))),
            (format!("BLAKE3 (1/x) = {digest}"), Some(("1/x", Algorithm::Blake3))),
            ("SHA1 (a) = 00".into(), None),
            ("MD5 (a) = xyz".into(), None),
            (format!("{digest} a"), None),
            ("00ff  a".into(), None),
            ("what".into(), None),
        ] {
            let listed = parse(&format!("\n{line}\n")).ok();
            let found = listed.as_ref().and_then(|listed| listed.first_key_value());
            assert_eq!(found.map(|(file, (algorithm, _))| (file.as_str(), *algorithm)), expected, "{line}");
        }
        assert!(parse("x").unwrap_err().contains("line 1"));
    }

    proptest! {
        #[test]
        fn written_list_is_read_back(files in prop::collection::btree_map("[a-z0-9][a-z0-9 ()=/.]{0,12}", "[0-9a-f]{64}", 0..5)) {
            let plain: String = files.iter().map(|(file, digest)| format!("{digest}  {file}\n")).collect();
            let tagged: String = files.iter().map(|(file, digest)| format!("BLAKE3 ({file}) = {digest}\n")).collect();
            for (text, algorithm) in [(plain, Algorithm::Sha256), (tagged, Algorithm::Blake3)] {
                let expected: Listed =
                    files.iter().map(|(file, digest)| (file.clone(), (algorithm, digest.clone()))).collect();
                // A name may look like the other form.
                if !files.keys().any(|file| file.contains(") = ")) {
                    prop_assert_eq!(parse(&text).unwrap(), expected);
                }
            }
        }
    }
}
