//! Archives as tools write them, and as an attacker would.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use tar::{Builder, Header};
use tempfile::TempDir;

use super::*;

/// An entry with any name: the builder of archives would refuse some.
fn entry(builder: &mut Builder<Vec<u8>>, kind: EntryType, name: &str, target: &str, content: &[u8]) {
    let mut header = Header::new_ustar();
    header.set_entry_type(kind);
    header.set_mode(0o6755);
    header.set_mtime(1_234_567_890);
    header.set_size(content.len() as u64);
    let fields = header.as_old_mut();
    fields.name[..name.len()].copy_from_slice(name.as_bytes());
    fields.linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

type Entries<'a> = &'a [(EntryType, &'a str, &'a str, &'a [u8])];

fn tar(entries: Entries<'_>) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, name, target, content) in entries {
        entry(&mut builder, *kind, name, target, content);
    }
    builder.into_inner().unwrap()
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// A folder to unpack into, and beside it what must stay as it is.
struct Place {
    root: TempDir,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("target")).unwrap();
        fs::create_dir(root.path().join("other")).unwrap();
        fs::write(root.path().join("other/secret"), "before").unwrap();
        Self { root }
    }

    fn target(&self) -> PathBuf {
        self.root.path().join("target")
    }

    fn unpack(&self, archive: &[u8], limits: ArchiveLimits) -> Result<(), String> {
        let path = self.root.path().join("archive");
        fs::write(&path, archive).unwrap();
        let mut context = Context::new(&SHA256);
        context.update(archive);
        let outcome = unpack(&path, &hex(context), &self.target(), limits, &|_| {});
        fs::remove_file(path).unwrap();
        outcome.map_err(|error| error.to_string())
    }

    /// All that is outside of the folder.
    fn outside(&self) -> Vec<(PathBuf, u32, String)> {
        let mut found = Vec::new();
        for folder in [self.root.path().to_owned(), self.root.path().join("other")] {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                let mode = path.symlink_metadata().unwrap().mode();
                let content = fs::read_to_string(&path).unwrap_or_default();
                found.push((path, mode, content));
            }
        }
        found.sort();
        found
    }
}

use EntryType::{Block, Char, Directory, Fifo, GNUSparse, Link, Regular, Symlink};

#[test]
fn what_tools_write_is_unpacked() {
    let entries: Entries<'_> = &[
        (Directory, "./", "", b""),
        (Directory, "bin/", "", b""),
        (Regular, "bin/activate", "", b"export A=1\n"),
        (Regular, "./lib/python/deep/a.py", "", b"a = 1\n"),
        (Link, "lib/python/b.py", "lib/python/deep/a.py", b""),
        (Symlink, "bin/python3", "/usr/bin/python3", b""),
        (Symlink, "lib/python/link.py", "../python/deep/a.py", b""),
        (Symlink, "lib64", "lib", b""),
        (Regular, "lib64/through", "", b"in lib\n"),
        (Directory, "empty", "", b""),
    ];
    for archive in [tar(entries), gzip(&tar(entries))] {
        let place = Place::new();
        place.unpack(&archive, ArchiveLimits::default()).unwrap();
        let at = |name: &str| place.target().join(name);
        let read = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!(read("bin/activate"), "export A=1\n");
        assert_eq!([read("lib/python/b.py"), read("lib/python/link.py")], ["a = 1\n"; 2]);
        assert_eq!(read("lib/through"), "in lib\n");
        assert_eq!(fs::read_link(at("bin/python3")).unwrap(), Path::new("/usr/bin/python3"));
        assert!(at("empty").is_dir());
        let found = at("bin/activate").metadata().unwrap();
        assert_eq!((found.permissions().mode() & 0o7700, found.mtime()), (0o700, 1_234_567_890));
    }
}

#[test]
fn an_archive_that_leads_out_or_holds_special_files_is_refused() {
    let long = "x".repeat(40);
    let cases: &[(Entries<'_>, &str)] = &[
        (&[(Regular, "../other/secret", "", b"x")], "'../other/secret' leads out"),
        (&[(Regular, "a/../../other/secret", "", b"x")], "leads out"),
        (&[(Regular, "/tmp/nereid-archive-test", "", b"x")], "leads out"),
        (&[(Directory, "../new", "", b"")], "leads out"),
        (&[(Symlink, "../link", "x", b"")], "leads out"),
        (&[(Symlink, "a/link", "../../other", b"")], "is a link to '../../other', which leads out"),
        (&[(Symlink, "l", "..", b""), (Regular, "l/other/secret", "", b"x")], "which leads out"),
        (&[(Link, "secret", "../other/secret", b"")], "which leads out"),
        (&[(Link, "passwd", "/etc/passwd", b"")], "which leads out"),
        (&[(Link, "none", "no/such/file", b"")], "No such file"),
        (&[(Char, "null", "", b"")], "'null' is not a file, folder or link"),
        (&[(Block, "disk", "", b"")], "'disk' is not a file, folder or link"),
        (&[(Fifo, "pipe", "", b"")], "'pipe' is not a file, folder or link"),
        (&[(GNUSparse, "sparse", "", b"")], "'sparse' is not a file, folder or link"),
        (&[(EntryType::new(b'Z'), &long, "", b"")], "is not a file, folder or link"),
        (&[], "it is empty"),
    ];
    for (entries, part) in cases {
        for archive in [tar(entries), gzip(&tar(entries))] {
            let place = Place::new();
            let before = place.outside();
            let error = match place.unpack(&archive, ArchiveLimits::default()) {
                // An archive without an entry begins like no tar file.
                Err(error) if entries.is_empty() && error.contains("of an unknown format") => continue,
                outcome => outcome.unwrap_err(),
            };
            assert!(error.contains(part), "{entries:?}: {error}");
            assert_eq!(place.outside(), before, "{entries:?}");
        }
    }
    assert!(!Path::new("/tmp/nereid-archive-test").exists());
}

#[test]
fn nothing_is_written_through_links_that_lead_out() {
    let place = Place::new();
    let other = place.root.path().join("other");
    let other = other.to_str().unwrap();
    let secret = format!("{other}/secret");
    let before = place.outside();
    let cases: &[Entries<'_>] = &[
        &[(Symlink, "l", other, b""), (Regular, "l/secret", "", b"x")],
        &[(Symlink, "l", other, b""), (Regular, "l/new/file", "", b"x")],
        &[(Symlink, "l", other, b""), (Directory, "l/new", "", b"")],
        &[(Symlink, "l", other, b""), (Symlink, "l/new", "x", b"")],
        &[(Symlink, "l", other, b""), (Link, "copy", "l/secret", b"")],
        &[(Symlink, "l", other, b""), (Symlink, "m", "l", b""), (Regular, "m/secret", "", b"x")],
        &[(Symlink, "s", &secret, b""), (Link, "copy", "s", b""), (Regular, "copy", "", b"x")],
        // A file takes the link's place.
        &[(Symlink, "s", &secret, b""), (Regular, "s", "", b"x")],
        &[(Symlink, "l", other, b""), (Directory, "l", "", b"")],
    ];
    for (index, entries) in cases.iter().enumerate() {
        let outcome = place.unpack(&tar(entries), ArchiveLimits::default());
        assert_eq!(place.outside(), before, "{entries:?}: {outcome:?}");
        assert_eq!(outcome.is_ok(), index == 7, "{entries:?}: {outcome:?}");
        fs::remove_dir_all(place.target()).unwrap();
        fs::create_dir(place.target()).unwrap();
    }
}

#[test]
fn limits_and_other_formats_are_refused_before_anything_is_written() {
    let entries: Entries<'_> = &[(Regular, "a", "", &[7; 1000]), (Regular, "b", "", &[7; 1000])];
    let limits = |bytes, entries| ArchiveLimits { bytes, entries };
    let mut bomb = Builder::new(Vec::new());
    entry(&mut bomb, EntryType::GNULongName, "././@LongLink", "", &vec![b'x'; (1 << 20) + 1]);
    entry(&mut bomb, Regular, "a", "", b"");
    let cut = tar(entries);
    for (archive, limits, part) in [
        (tar(entries), limits(1999, 9), "it has more than 1999 bytes"),
        (gzip(&tar(entries)), limits(1999, 9), "it has more than 1999 bytes"),
        (tar(entries), limits(2000, 1), "it has more than 1 entries"),
        (
            gzip(&bomb.into_inner().unwrap()),
            limits(1 << 30, 9),
            "the description of an entry has 1048577 bytes",
        ),
        (cut[..1200].to_vec(), limits(2000, 9), ""),
        (gzip(&cut)[..40].to_vec(), limits(2000, 9), ""),
        (b"".to_vec(), limits(2000, 9), "of an unknown format"),
        (vec![b'x'; 4000], limits(2000, 9), "of an unknown format"),
        (gzip(&[b'x'; 4000]), limits(2000, 9), ""),
        (b"PK\x03\x04".to_vec(), limits(2000, 9), "this one is a zip file"),
        (b"BZh9".to_vec(), limits(2000, 9), "compressed by bzip2"),
        (b"\xfd7zXZ\0".to_vec(), limits(2000, 9), "compressed by xz"),
        (b"\x28\xb5\x2f\xfd".to_vec(), limits(2000, 9), "compressed by zstd"),
    ] {
        let place = Place::new();
        let error = place.unpack(&archive, limits).unwrap_err();
        assert!(error.contains("/archive: ") && error.contains(part), "{part}: {error}");
        assert_eq!(fs::read_dir(place.target()).unwrap().count(), 0, "{part}");
    }
    Place::new().unpack(&tar(entries), limits(2000, 2)).unwrap();
}

#[test]
fn an_archive_that_changed_since_it_was_looked_at_is_refused() {
    let place = Place::new();
    let path = place.root.path().join("archive");
    fs::write(&path, tar(&[(Regular, "a", "", b"a")])).unwrap();
    let error =
        unpack(&path, &"0".repeat(32), &place.target(), ArchiveLimits::default(), &|_| {}).unwrap_err();
    assert!(error.to_string().ends_with("it changed while it was read"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_archive_changes_anything_outside_of_the_folder(
        entries in prop::collection::vec(
            (
                prop::sample::select(vec![Regular, Directory, Symlink, Symlink, Link]),
                prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "..", ".", "", "secret"]), 1..4),
                prop::collection::vec(prop::sample::select(vec!["a", "b", "..", "", "other", "OTHER", "secret"]), 1..4),
            ),
            1..8,
        ),
        is_linked in any::<bool>(),
    ) {
        let place = Place::new();
        let other = place.root.path().join("other").to_str().unwrap().to_owned();
        if is_linked {
            symlink(&other, place.target().join("a")).unwrap();
        }
        let before = place.outside();
        let mut builder = Builder::new(Vec::new());
        for (kind, name, target) in entries {
            let target = target.join("/").replace("OTHER", &other);
            entry(&mut builder, kind, &name.join("/"), &target, b"");
        }
        // Most are refused, some at their last entry.
        let _ = place.unpack(&builder.into_inner().unwrap(), ArchiveLimits::default());
        prop_assert_eq!(place.outside(), before);
    }
}
