//! Archives as tools write them, and as an attacker would.

use std::fs::{self, File};
use std::io::{Write as _, copy};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use ::tar::{Builder, EntryType, Header};
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder};
use proptest::prelude::*;
use rawzip::path::EntryPath;
use rawzip::{CompressionMethod, ZipArchiveWriter};
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

fn zstd(content: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(content, ruzstd::encoding::CompressionLevel::Fastest)
}

/// A folder to unpack into, with files outside that must not change.
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
        self.unpack_with(archive, limits, Links::Absolute)
    }

    fn unpack_with(&self, archive: &[u8], limits: ArchiveLimits, links: Links) -> Result<(), String> {
        let path = self.root.path().join("archive");
        fs::write(&path, archive).unwrap();
        let outcome = unpack(File::open(&path).unwrap(), &self.target(), limits, links, None);
        fs::remove_file(path).unwrap();
        outcome
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
fn archives_of_common_tools_are_unpacked() {
    let entries: Entries<'_> = &[
        (Directory, "./", "", b""),
        (Directory, "bin/", "", b""),
        (Regular, "bin/activate", "", b"export A=1\n"),
        (Regular, "./lib/python/deep/a.py", "", b"a = 1\n"),
        (Link, "lib/python/b.py", "lib/python/deep/a.py", b""),
        (Symlink, "bin/python3", "/usr/bin/python3", b""),
        (Symlink, "lib/python/link.py", "../python/deep/a.py", b""),
        (Symlink, "lib64", "lib", b""),
        (Symlink, "gone", "no/such/../file", b""),
        (Directory, "empty", "", b""),
    ];
    for archive in [tar(entries), gzip(&tar(entries)), zstd(&tar(entries))] {
        let place = Place::new();
        place.unpack(&archive, ArchiveLimits::default()).unwrap();
        let at = |name: &str| place.target().join(name);
        let read = |name: &str| fs::read_to_string(at(name)).unwrap();
        assert_eq!(read("bin/activate"), "export A=1\n");
        assert_eq!([read("lib/python/b.py"), read("lib/python/link.py")], ["a = 1\n"; 2]);
        assert_eq!(read("lib64/python/link.py"), "a = 1\n");
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
        (&[(Symlink, "l", "..", b""), (Regular, "l/other/secret", "", b"x")], "'l' is not a folder"),
        (
            &[(Directory, "lib", "", b""), (Symlink, "l", "lib", b""), (Regular, "l/a", "", b"")],
            "'l' is not a folder",
        ),
        // Each link stays inside by its words.
        (
            &[(Symlink, "a/b/c/up", "../../..", b""), (Symlink, "esc", "a/b/c/up/../../..", b"")],
            "which leads out",
        ),
        (
            &[(Symlink, "esc", "a/b/c/up/../../..", b""), (Symlink, "a/b/c/up", "../../..", b"")],
            "which leads out",
        ),
        (
            &[(Symlink, "a/up", "..", b""), (Symlink, "labels.txt", "a/up/../other/secret", b"")],
            "which leads out",
        ),
        (&[(Symlink, "x", "none/../../other/secret", b"")], "which leads out"),
        (&[(Symlink, "x", "y", b""), (Symlink, "y", "x", b"")], "which leads out"),
        (&[(Regular, "a/b", "", b""), (Regular, "a/b/c", "", b"")], "'b' is not a folder"),
        (&[(Directory, "a/b", "", b""), (Regular, "a", "", b"")], "'a': "),
        (&[(Symlink, "s", "a", b""), (Link, "h", "s", b"")], "which is not a file"),
        (&[(Directory, "d", "", b""), (Link, "h", "d", b"")], "which is not a file"),
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
        for archive in [tar(entries), gzip(&tar(entries)), zstd(&tar(entries))] {
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
        (b"PK\x03\x04".to_vec(), limits(2000, 9), ""),
        (b"BZh9".to_vec(), limits(2000, 9), "compressed by bzip2"),
        (b"\xfd7zXZ\0".to_vec(), limits(2000, 9), "compressed by xz"),
        (zstd(&tar(entries)), limits(1999, 9), "it has more than 1999 bytes"),
        (zstd(&cut)[..40].to_vec(), limits(2000, 9), ""),
        (b"\x28\xb5\x2f\xfd".to_vec(), limits(2000, 9), ""),
    ] {
        let place = Place::new();
        let error = place.unpack(&archive, limits).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
        assert_eq!(fs::read_dir(place.target()).unwrap().count(), 0, "{part}");
    }
    Place::new().unpack(&tar(entries), limits(2000, 2)).unwrap();
}

#[test]
fn absolute_links_are_refused_where_they_are_not_wanted() {
    for (entries, is_kept) in [
        (&[(Regular, "a", "", b"x" as &[u8]), (Symlink, "b/link", "../a", b"")], true),
        (&[(Regular, "a", "", b"x"), (Symlink, "link", "/etc/passwd", b"")], false),
        (&[(Regular, "a", "", b"x"), (Symlink, "link", "../a", b"")], false),
    ] {
        let outcome = Place::new().unpack_with(&gzip(&tar(entries)), ArchiveLimits::default(), Links::Inside);
        assert_eq!(outcome.is_ok(), is_kept, "{entries:?}: {outcome:?}");
    }
}

#[test]
fn only_a_folder_of_an_image_is_unpacked() {
    let entries: Entries<'_> = &[
        (Symlink, "bin", "/usr/bin", b""),
        (Char, "dev/null", "", b""),
        (Regular, "etc/passwd", "", b"x"),
        (Regular, "models2/x", "", b"x"),
        (Directory, "./models/", "", b""),
        (Regular, "models/1/model.onnx", "", b"model"),
        (Regular, "./models/config.pbtxt", "", b"config"),
    ];
    let place = Place::new();
    let path = place.root.path().join("other/archive");
    fs::write(&path, gzip(&tar(entries))).unwrap();
    let only = |folder| {
        let file = File::open(&path).unwrap();
        unpack(file, &place.target(), ArchiveLimits::default(), Links::Inside, folder)
    };
    only(Some(Path::new("models"))).unwrap();
    let names: Vec<_> =
        fs::read_dir(place.target()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["models"]);
    assert_eq!(fs::read(place.target().join("models/1/model.onnx")).unwrap(), b"model");
    assert!(place.target().join("models/config.pbtxt").exists());
    assert!(only(None).is_err());
}

/// A zip file of files, folders (ending with a slash) and links (`name -> target`).
fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    zip_by(CompressionMethod::DEFLATE, entries)
}

fn zip_by(method: CompressionMethod, entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = ZipArchiveWriter::new(Vec::new());
    for (name, content) in entries {
        if name.ends_with('/') {
            archive.new_dir(EntryPath::verbatim(name.as_bytes())).create().unwrap();
            continue;
        }
        let (name, content, mode) = match name.split_once(" -> ") {
            Some((name, target)) => (name, target.as_bytes(), 0o120_777),
            None => (*name, *content, 0o100_644),
        };
        let file = archive.new_file(EntryPath::verbatim(name.as_bytes()));
        let (mut entry, config) = file.compression_method(method).unix_permissions(mode).start().unwrap();
        let descriptor = if method == CompressionMethod::DEFLATE {
            let mut writer = config.wrap(DeflateEncoder::new(&mut entry, Compression::fast()));
            copy(&mut &*content, &mut writer).unwrap();
            let (encoder, descriptor) = writer.finish().unwrap();
            encoder.finish().unwrap();
            descriptor
        } else {
            let mut writer = config.wrap(&mut entry);
            copy(&mut &*content, &mut writer).unwrap();
            writer.finish().unwrap().1
        };
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap()
}

#[test]
fn zip_files_are_unpacked() {
    let place = Place::new();
    let large = vec![7; 100_000];
    let archive =
        zip(&[("m/1/model.onnx", &large), ("m/2/", b""), ("./m/config.pbtxt", b"config"), ("ä b", b"")]);
    assert!(archive.len() < 2000, "it is compressed");
    place.unpack(&archive, ArchiveLimits::default()).unwrap();
    Place::new()
        .unpack(&zip_by(CompressionMethod::STORE, &[("a", &large)]), ArchiveLimits::default())
        .unwrap();
    let read = |name: &str| fs::read(place.target().join(name)).unwrap();
    assert_eq!(
        (read("m/1/model.onnx"), read("m/config.pbtxt"), read("ä b")),
        (large, b"config".to_vec(), vec![])
    );
    assert!(place.target().join("m/2").is_dir());
    // Once more, over what is there.
    place.unpack(&archive, ArchiveLimits::default()).unwrap();
}

/// TRI-1019 of the reference: archives of Python environments wrote anywhere.
#[test]
fn zip_files_that_lead_out_or_grow_too_large_are_refused() {
    let limits = |bytes, entries| ArchiveLimits { bytes, entries };
    let good = zip(&[("a", &[7; 1000]), ("b", &[7; 1000])]);
    // Sizes wherever they stand, made small; and a byte of the contents.
    let mut lying = good.clone();
    for at in 0..lying.len() - 4 {
        if lying[at..at + 4] == 1000_u32.to_le_bytes() {
            lying[at..at + 4].copy_from_slice(&1_u32.to_le_bytes());
        }
    }
    let mut damaged = zip_by(CompressionMethod::STORE, &[("a", &[7; 1000])]);
    damaged[500] = 8;
    for (archive, limits, part) in [
        (zip(&[("../other/secret", b"x")]), ArchiveLimits::default(), "leads out"),
        (zip(&[("a/../../other/secret", b"x")]), ArchiveLimits::default(), "leads out"),
        (zip(&[("/tmp/nereid-archive-test", b"x")]), ArchiveLimits::default(), "leads out"),
        (zip(&[("..\\x", b"x")]), ArchiveLimits::default(), "leads out"),
        (zip(&[("link -> /etc/passwd", b"")]), ArchiveLimits::default(), "is not a file or folder"),
        (zip(&[("link -> a", b"")]), ArchiveLimits::default(), "is not a file or folder"),
        (zip(&[]), ArchiveLimits::default(), ""),
        (good.clone(), limits(1999, 9), "it has more than 1999 bytes"),
        (good.clone(), limits(9999, 1), "it has more than 1 entries"),
        (lying, limits(1999, 9), ""),
        (damaged, ArchiveLimits::default(), ""),
        (zip_by(CompressionMethod::BZIP2, &[("a", b"x")]), ArchiveLimits::default(), "not by deflate"),
        (good[..good.len() - 30].to_vec(), ArchiveLimits::default(), ""),
    ] {
        let place = Place::new();
        let before = place.outside();
        let error = place.unpack(&archive, limits).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
        assert_eq!(place.outside(), before, "{part}");
    }
    Place::new().unpack(&good, limits(2000, 2)).unwrap();
    assert!(!Path::new("/tmp/nereid-archive-test").exists());
}

#[test]
fn names_in_a_zip_file_are_listed_without_its_contents() {
    let names = |archive: &[u8]| {
        let place = Place::new();
        let path = place.root.path().join("listed.zip");
        fs::write(&path, archive).unwrap();
        zip_names(File::open(&path).unwrap(), ArchiveLimits { bytes: 9999, entries: 3 })
    };
    let mut damaged = zip_by(CompressionMethod::STORE, &[("m/", b""), ("m/a", &[7; 1000]), ("b", b"")]);
    assert_eq!(names(&damaged).unwrap(), ["m/", "m/a", "b"]);
    damaged[500] = 8;
    assert_eq!(names(&damaged).unwrap(), ["m/", "m/a", "b"]);
    for (archive, part) in [
        (zip(&[("../a", b"x")]), "leads out"),
        (zip(&[("a", b""), ("b", b""), ("c", b""), ("d", b"")]), "it has more than 3 entries"),
        (b"not a zip file".to_vec(), ""),
        (damaged[..1200].to_vec(), ""),
    ] {
        let error = names(&archive).unwrap_err();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn zip_files_are_not_written_through_links_that_are_there() {
    for name in ["l/secret", "l/new/x", "l/"] {
        let place = Place::new();
        symlink(place.root.path().join("other"), place.target().join("l")).unwrap();
        let before = place.outside();
        assert!(place.unpack(&zip(&[(name, b"x")]), ArchiveLimits::default()).is_err(), "{name}");
        assert_eq!(place.outside(), before, "{name}");
    }
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

proptest! {
    #[test]
    fn a_bit_that_flips_in_the_contents_of_a_zip_file_is_noticed(
        contents in proptest::collection::vec(any::<u8>(), 1..3000),
        at in any::<proptest::sample::Index>(),
        bit in 0..8_u8,
    ) {
        const MARK: &[u8] = b"begin";
        let place = Place::new();
        let path = place.root.path().join("verified.zip");
        let verified = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            verify_zip(File::open(&path).unwrap(), ArchiveLimits::default())
        };
        let marked = [MARK, &contents].concat();
        let mut archive = zip_by(CompressionMethod::STORE, &[("a/", b""), ("a/b", &marked), ("c", b"d")]);
        prop_assert_eq!(verified(&archive), Ok(()));
        let start = archive.windows(MARK.len()).position(|found| found == MARK).unwrap();
        archive[start + at.index(marked.len())] ^= 1 << bit;
        prop_assert!(verified(&archive).unwrap_err().starts_with("'a/b': "));
    }
}

/// Paths of few names, so that entries meet each other; some climb.
fn any_path(climbs: bool) -> impl Strategy<Value = String> {
    let names: &'static [&'static str] =
        if climbs { &["a", "b", "c", "up", "..", ".", "other", "secret"] } else { &["a", "b", "c", "up"] };
    proptest::collection::vec(proptest::sample::select(names), 1..6).prop_map(|parts| parts.join("/"))
}

fn any_entry() -> impl Strategy<Value = (EntryType, String, String)> {
    prop_oneof![
        3 => any_path(false).prop_map(|path| (Regular, path, String::new())),
        2 => any_path(false).prop_map(|path| (Directory, path, String::new())),
        4 => (any_path(false), any_path(true)).prop_map(|(path, target)| (Symlink, path, target)),
        1 => (any_path(false), any_path(true)).prop_map(|(path, target)| (Link, path, target)),
        1 => any_path(true).prop_map(|path| (Regular, path, String::new())),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Unpacks several archives over each other, as the layers of an image. Nothing outside may be written, and no link of an
    /// accepted archive may lead there.
    #[test]
    fn layers_of_random_links_reach_nothing_outside(
        layers in proptest::collection::vec(proptest::collection::vec(any_entry(), 1..8), 1..4),
    ) {
        let place = Place::new();
        let before = place.outside();
        let inside = place.target().canonicalize().unwrap();
        for layer in &layers {
            let entries: Vec<_> = layer
                .iter()
                .map(|(kind, path, target)| (*kind, path.as_str(), target.as_str(), b"written".as_slice()))
                .collect();
            let entries: Vec<_> = entries
                .into_iter()
                .map(|(kind, path, target, text)| (kind, path, target, if kind == Regular { text } else { b"" }))
                .collect();
            let outcome = place.unpack_with(&tar(&entries), ArchiveLimits::default(), Links::Inside);
            prop_assert_eq!(place.outside(), before.clone());
            if outcome.is_err() {
                break;
            }
            let mut open = vec![inside.clone()];
            while let Some(folder) = open.pop() {
                for entry in fs::read_dir(folder).unwrap() {
                    let path = entry.unwrap().path();
                    // As a reader would: by the system, through all links.
                    if let Ok(real) = path.canonicalize() {
                        prop_assert!(real.starts_with(&inside), "{path:?} is {real:?}");
                    }
                    if path.symlink_metadata().unwrap().is_dir() {
                        open.push(path);
                    }
                }
            }
        }
    }
}
