//! Models that are as they should be, and others.

use std::fs;
use std::path::Path;

use nereid_core::AgentFolders;
use nereid_core::model_config::ModelConfig;
use tempfile::TempDir;

use super::*;

const KEY: &str = "RWQBAgMEBQYHCAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4";
const OTHER_KEY: &str = "RWQBAgMEBQYHCHm1Vi6P5lT5QHixEuipi6eQH4U65pW+1+DjkQutBJZk";
const MANIFEST: &str = "9a129038d9a00aed0cf6a7ea059ca50a813449061ab87848cf1a13eafdf33b2c  1/model.onnx\nMD5 (config.pbtxt) = 62c94f018208488ccf74c7591c272182\n";
const SIGNATURE: &str = "untrusted comment: signature\nRUQBAgMEBQYHCAsMD7V/L0uXbxUttWzOnUB17jfCAWiK/AcEQVkBae9v1riH8Rc67pAjglngWkrxXsz8SEo5R1snIGutwFTz6Q4=\ntrusted comment: timestamp:1\njAROTKaWdyY1zIg9Fxje/bQUvPaoHS1USLUrw3Kqi1xZyLLyDvraxJr+UsQlme5QK8/HB1IdSi1Zn9ytE0xyAw==\n";
/// By minisign before 0.8.
const OLD_SIGNATURE: &str = "untrusted comment: signature\nRWQBAgMEBQYHCBCI2XubSesubplIGQp8bfzK+1l8kPm6HqGUDBimeMRf1FQblXeA+5Rpo4WjcqOTHtNqYnSbrHFSIEBgVUaHOgE=\ntrusted comment: timestamp:1\nwPgxM/JM820oYkfoLTcRr80n89OIWB+0kqq0BmcT+WqbEF8BAQmzHdM1hy7nIce8iy3JWzrtHub3yugxLicqCg==\n";

fn model(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, contents) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }
    folder
}

/// The outcome of a load of a model in this folder.
fn load(folder: &Path, parameters: &[(&str, &str)]) -> Result<()> {
    let location = ModelLocation::Folder(folder.to_owned());
    let checked = Checksum.begin(context(location.clone(), parameters)).unwrap();
    let outcome = checked.act(AgentAction::Load);
    assert_eq!(checked.location(), location);
    for action in [AgentAction::LoadFail, AgentAction::LoadComplete, AgentAction::Unload] {
        checked.act(action).unwrap();
    }
    outcome
}

fn context(location: ModelLocation, parameters: &[(&str, &str)]) -> AgentContext {
    AgentContext {
        model: "m".to_owned(),
        location,
        config: ModelConfig::default(),
        parameters: parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        folders: AgentFolders::new(|| Err(Error::unsupported("no folders"))),
    }
}

#[test]
fn files_have_the_digests_that_parameters_say() {
    let folder = model(&[("1/model.txt", "abc"), ("config.pbtxt", "")]);
    let (md5, sha256) = (
        "900150983cd24fb0d6963f7d28e17f72",
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    );
    for (parameters, expected) in [
        (&[][..], Ok(())),
        (&[("MD5:1/model.txt", md5), ("sha256:1/model.txt", sha256)], Ok(())),
        (&[("md5:1/model.txt", "900150983CD24FB0D6963F7D28E17F72")], Ok(())),
        (&[("MD5:config.pbtxt", "d41d8cd98f00b204e9800998ecf8427e")], Ok(())),
        (
            &[("MD5:1/model.txt", "0")],
            Err("'1/model.txt' has MD5 900150983cd24fb0d6963f7d28e17f72, expected 0"),
        ),
        (&[("MD5:1/model.txt", md5), ("MD5:config.pbtxt", md5)], Err("'config.pbtxt' has MD5 d41d8cd9")),
        (&[("BLAKE3:1/model.txt", sha256)], Err("'1/model.txt' has BLAKE3 6437b3ac")),
        (&[("MD5:2/model.txt", md5)], Err("cannot check '2/model.txt': No such file")),
        (&[("MD5:1", md5)], Err("cannot check '1': ")),
        (&[("MD5:../x", md5)], Err("cannot check '../x': ")),
        (&[("MD5:/etc/passwd", md5)], Err("cannot check '/etc/passwd': ")),
        (&[("SHA1:1/model.txt", md5)], Err("unknown checksum algorithm 'SHA1'")),
        (&[("MD5", md5)], Err("'MD5' is not of the form ALGORITHM:FILE")),
        (&[("MD5:", md5)], Err("'MD5:' is not of the form ALGORITHM:FILE")),
    ] {
        let outcome = load(folder.path(), parameters);
        match (&outcome, expected) {
            (Ok(()), Ok(())) => {}
            (Err(error), Err(words)) => assert!(error.message().starts_with(words), "{error}"),
            _ => panic!("{parameters:?}: {outcome:?}"),
        }
    }
}

#[test]
fn a_signed_list_covers_all_files() {
    let right = [
        ("1/model.onnx", "weights"),
        ("config.pbtxt", "backend: 'x'"),
        ("list.txt", MANIFEST),
        ("list.txt.minisig", SIGNATURE),
    ];
    let folder = |change: &[(&str, &str)]| model(&[&right[..], change].concat());
    let list = "MINISIGN:list.txt";
    for (change, key, expected) in [
        (&[][..], KEY, None),
        (&[("list.txt.minisig", OLD_SIGNATURE)], KEY, None),
        (&[], OTHER_KEY, Some("signed list 'list.txt': wrong signature")),
        (&[], "no key", Some("signed list 'list.txt': wrong public key")),
        (&[("list.txt", "")], KEY, Some("signed list 'list.txt': wrong signature")),
        (&[("list.txt.minisig", "x")], KEY, Some("signed list 'list.txt': wrong signature")),
        (&[("1/model.onnx", "other")], KEY, Some("'1/model.onnx' has SHA256")),
        (&[("config.pbtxt", "backend: 'y'")], KEY, Some("'config.pbtxt' has MD5")),
        (&[("1/more.py", "")], KEY, Some("'1/more.py' is not in the signed list 'list.txt'")),
        (&[("1/.hidden", "")], KEY, Some("'1/.hidden' is not in the signed list")),
    ] {
        let outcome = load(folder(change).path(), &[(list, key)]);
        match (outcome, expected) {
            (Ok(()), None) => {}
            (Err(error), Some(words)) => assert!(error.message().starts_with(words), "{change:?}: {error}"),
            (outcome, _) => panic!("{change:?}: {outcome:?}"),
        }
    }
    let missing = folder(&[]);
    fs::remove_file(missing.path().join("list.txt.minisig")).unwrap();
    assert!(
        load(missing.path(), &[(list, KEY)])
            .unwrap_err()
            .message()
            .contains("cannot read 'list.txt.minisig'")
    );
    let missing = folder(&[]);
    fs::remove_file(missing.path().join("1/model.onnx")).unwrap();
    assert!(
        load(missing.path(), &[(list, KEY)]).unwrap_err().message().contains("cannot check '1/model.onnx'")
    );
}

#[test]
fn it_needs_files_on_this_machine() {
    assert!(Checksum.needs_files());
    let away = context(ModelLocation::Remote("s3://b/m".into()), &[]);
    let error = Checksum.begin(away).unwrap().act(AgentAction::Load).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unsupported);
}
