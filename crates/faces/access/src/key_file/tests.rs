//! The file of keys: what it accepts and refuses, and changes by several writers.

use std::thread;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn place() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    (folder, path)
}

#[test]
fn key_is_valid_from_its_creation_until_it_is_revoked_or_expires() {
    let (_folder, path) = place();
    let lasting = KeyFile::add(&path, "team-a", Expiry::Never, "of the\nnight's jobs ").unwrap();
    let ending = KeyFile::add(&path, "team-b", "2027-12-31".parse().unwrap(), "").unwrap();
    let keys = KeyFile::read(&path).unwrap();
    let principal =
        |key: &NewKey, now| keys.verify(key.text.as_bytes(), now).map(|entry| entry.principal.name());
    let end = ending.expiry.end();
    assert_eq!(principal(&lasting, now()), Ok("team-a"));
    assert_eq!(principal(&lasting, u64::MAX - 1), Ok("team-a"));
    assert_eq!(principal(&ending, end - 1), Ok("team-b"));
    assert!(principal(&ending, end).unwrap_err().contains("expired"));
    assert!(keys.is_valid(ending.id, end - 1) && !keys.is_valid(ending.id, end));
    let notes: Vec<_> = keys.entries().iter().map(|entry| entry.note.clone()).collect();
    assert_eq!(notes, ["of the night's jobs", ""]);

    let revoked = KeyFile::revoke(&path, &id_digits(lasting.id)).unwrap();
    assert_eq!(revoked.principal.name(), "team-a");
    let keys = KeyFile::read(&path).unwrap();
    assert!(keys.verify(lasting.text.as_bytes(), 0).unwrap_err().contains("revoked"));
    assert!(!keys.is_valid(lasting.id, 0) && keys.is_valid(ending.id, 0));
    for unknown in ["", "x", &id_digits(lasting.id)] {
        assert!(matches!(KeyFile::revoke(&path, unknown), Err(KeyFileError::Unknown { .. })), "{unknown}");
    }
    // The last key may be revoked, too.
    KeyFile::revoke(&path, &id_digits(ending.id)).unwrap();
    assert_eq!(KeyFile::read(&path).unwrap().entries().len(), 0);
}

#[test]
fn file_holds_no_secret_and_keeps_its_mode_and_its_links() {
    let (folder, path) = place();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let first = KeyFile::add(&path, "a", Expiry::Never, "").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let second = KeyFile::add(&link, "a", Expiry::Never, "").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    let text = fs::read_to_string(&path).unwrap();
    for key in [first, second] {
        assert!(text.contains(&id_digits(key.id)));
        let secret = key.text.rsplit('_').next().unwrap();
        assert!(!text.contains(&secret[..16]), "{text}");
    }
}

#[test]
fn keys_of_writers_at_the_same_time_are_all_kept() {
    let (_folder, path) = place();
    let writers = (0..4).map(|writer| {
        let path = path.clone();
        thread::spawn(move || {
            let add = |_| KeyFile::add(&path, &format!("p{writer}"), Expiry::Never, "").unwrap().id;
            let mut ids: Vec<_> = (0..5).map(add).collect();
            KeyFile::revoke(&path, &id_digits(ids.pop().unwrap())).unwrap();
            ids
        })
    });
    let writers: Vec<_> = writers.collect();
    let mut added: Vec<_> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
    let mut found: Vec<_> = KeyFile::read(&path).unwrap().entries().iter().map(|entry| entry.id).collect();
    added.sort();
    found.sort();
    assert_eq!(found, added);
}

#[test]
fn malformed_files_are_refused_with_the_line() {
    let (_folder, path) = place();
    let hash = "0".repeat(64);
    let good = format!("0123456789abcdef team-a never 2026-11-26 {hash} a note");
    fs::write(&path, format!("{HEAD}\n\n# a remark\n{good}\n")).unwrap();
    assert_eq!(KeyFile::read(&path).unwrap().entries()[0].to_string(), good);
    for (line, reason) in [
        ("0123456789abcdeg team-a never 2026-11-26 HASH".to_owned(), "not an id"),
        ("0123456789abcdef team/a never 2026-11-26 HASH".to_owned(), "not the name of a principal"),
        ("0123456789abcdef team-a 2027-13-01 2026-11-26 HASH".to_owned(), "not a day"),
        ("0123456789abcdef team-a never 2026-11-26 HAS".to_owned(), "64 hexadecimal digits"),
        ("0123456789abcdef team-a never 2026-11-26".to_owned(), "lacks a hash"),
        ("0123456789abcdef".to_owned(), "lacks a principal"),
        (good.clone(), "also on line 2"),
    ] {
        fs::write(&path, format!("{HEAD}\n{good}\n{}\n", line.replace("HASH", &hash))).unwrap();
        let error = KeyFile::read(&path).unwrap_err().to_string();
        assert!(error.contains("keys:3: ") && error.contains(reason), "{line}: {error}");
        // What is broken is not written over.
        assert!(KeyFile::add(&path, "a", Expiry::Never, "").is_err());
    }
    for text in ["", "\n", "id principal", good.as_str()] {
        fs::write(&path, text).unwrap();
        assert!(
            KeyFile::read(&path).unwrap_err().to_string().contains("keys:1: not a file of keys"),
            "{text}"
        );
    }
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert!(KeyFile::read(&path).unwrap_err().to_string().contains("cannot read"));
    fs::remove_file(&path).unwrap();
    assert!(KeyFile::revoke(&path, "0123456789abcdef").is_err() && !path.exists());
    assert!(KeyFile::read(&path).unwrap_err().to_string().contains("No such file"));
}

proptest! {
    #[test]
    fn random_and_changed_keys_prove_nothing(at in 0_usize..105, to in "[0-9a-f_]", garbage in "[ -~]{0,120}") {
        let key = NewKey::random(Expiry::Never).unwrap();
        let entry = KeyEntry {
            id: key.id,
            principal: Principal::new("a"),
            expiry: Expiry::Never,
            created: String::new(),
            note: String::new(),
            hash: KeyHash::of(key.text.as_bytes()),
        };
        let keys = KeyFile([(key.id, entry)].into());
        let mut changed = key.text.clone();
        let at = at % changed.len();
        changed.replace_range(at..=at, &to);
        for text in [&changed, &garbage, &format!("nereid_{}_{garbage}", id_digits(key.id))] {
            prop_assert_eq!(keys.verify(text.as_bytes(), 0).is_ok(), *text == key.text);
        }
        prop_assert!(keys.verify(key.text.as_bytes(), 0).is_ok());
    }
}

#[test]
fn a_million_random_keys_are_refused() {
    let (_folder, path) = place();
    let known: Vec<_> = (0..20).map(|_| KeyFile::add(&path, "a", Expiry::Never, "").unwrap()).collect();
    let keys = KeyFile::read(&path).unwrap();
    // Any sequence of different numbers will do: xorshift.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for number in 0..1_000_000 {
        let mut text = known[number % known.len()].text.clone().into_bytes();
        let digit = b"0123456789abcdef"[random() as usize % 16];
        // Every other key is a known one with one character changed.
        let place = random() as usize % text.len();
        if number % 2 == 0 {
            text[place] = if text[place] == digit { b'-' } else { digit };
        } else {
            text = format!("nereid_{:016x}_never_{:016x}{:016x}", random(), random(), random()).into_bytes();
        }
        assert!(keys.verify(&text, 0).is_err(), "{}", String::from_utf8_lossy(&text));
    }
    assert!(known.iter().all(|key| keys.verify(key.text.as_bytes(), 0).is_ok()));
}
