//! The files of an unpacked tree. A file that is the same in a newer tree keeps its stamp, so that only the models that
//! changed are loaded again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nereid_core::backend_api::{Result, block_on};
use nereid_repository::{LocalStore, Object, ObjectKind, Store};

/// How much of two files is compared at a time.
const PIECE: usize = 64 << 10;

/// A tree's files.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    pub store: LocalStore,
    /// The sizes and stamps of files, by path. Stamps of the store itself change whenever the cache adds or removes a link
    /// to a file.
    stamps: Stamps,
}

type Stamps = BTreeMap<String, (u64, String)>;

impl Files {
    /// The tree in a folder, compared with the one before it. Reads the files of both.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(super) fn new(root: PathBuf, earlier: Option<&Self>) -> Result<Self> {
        let store = LocalStore::new(root.clone());
        let mut stamps: Stamps = sizes_and_stamps(block_on(store.stat("", Instant::now()))?).collect();
        for (path, (size, stamp)) in &mut stamps {
            let Some((earlier, (size_before, before))) =
                earlier.and_then(|earlier| Some((earlier, earlier.stamps.get(path)?)))
            else {
                continue;
            };
            // A file that cannot be read counts as changed.
            if size == size_before
                && are_equal(&root.join(path), &earlier.root.join(path)).unwrap_or_default()
            {
                stamp.clone_from(before);
            }
        }
        Ok(Self { root, store, stamps })
    }

    /// As [`Store::stat`].
    pub(super) async fn stat(&self, folder: &str, as_of: Instant) -> Result<Vec<Object>> {
        let mut objects = self.store.stat(folder, as_of).await?;
        for Object { path, kind } in &mut objects {
            let ObjectKind::File { stamp, .. } = kind else { continue };
            let known = if folder.is_empty() {
                self.stamps.get(path)
            } else {
                self.stamps.get(&format!("{folder}/{path}"))
            };
            if let Some((_, known)) = known {
                stamp.clone_from(known);
            }
        }
        Ok(objects)
    }
}

/// Sizes and stamps of files, by path.
fn sizes_and_stamps(objects: Vec<Object>) -> impl Iterator<Item = (String, (u64, String))> {
    objects.into_iter().filter_map(|Object { path, kind }| match kind {
        ObjectKind::File { size, stamp } => Some((path, (size, stamp))),
        ObjectKind::Folder => None,
    })
}

/// Whether two files have the same contents.
fn are_equal(one: &Path, other: &Path) -> io::Result<bool> {
    let open = |path| Ok::<_, io::Error>(BufReader::with_capacity(PIECE, File::open(path)?));
    let (mut one, mut other) = (open(one)?, open(other)?);
    loop {
        let (left, right) = (one.fill_buf()?, other.fill_buf()?);
        let length = left.len().min(right.len());
        if length == 0 {
            return Ok(left.len() == right.len());
        }
        if left[..length] != right[..length] {
            return Ok(false);
        }
        one.consume(length);
        other.consume(length);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use tempfile::TempDir;

    use super::*;

    fn tree(contents: &BTreeMap<String, Vec<u8>>) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, bytes) in contents {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        folder
    }

    fn stamps(files: &Files, folder: &str) -> BTreeMap<String, String> {
        let objects = block_on(files.stat(folder, Instant::now())).unwrap();
        sizes_and_stamps(objects).map(|(path, (_, stamp))| (path, stamp)).collect()
    }

    #[test]
    fn long_files_are_compared_to_their_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let contents: Vec<u8> = (0..3 * PIECE + 5).map(|index| (index / 7) as u8).collect();
        fs::write(path("one"), &contents).unwrap();
        for (change, expected) in
            [(None, true), (Some(0), false), (Some(PIECE), false), (Some(3 * PIECE + 4), false)]
        {
            let mut other = contents.clone();
            if let Some(change) = change {
                other[change] ^= 1;
            }
            fs::write(path("other"), &other).unwrap();
            assert_eq!(are_equal(&path("one"), &path("other")).unwrap(), expected, "{change:?}");
        }
        for shorter in [0, 1, PIECE, 3 * PIECE + 4] {
            fs::write(path("other"), &contents[..shorter]).unwrap();
            assert!(!are_equal(&path("one"), &path("other")).unwrap(), "{shorter}");
            assert!(!are_equal(&path("other"), &path("one")).unwrap(), "{shorter}");
        }
        assert!(are_equal(&path("one"), &path("none")).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_file_keeps_its_stamp_as_long_as_its_contents(
            versions in vec(btree_map("[ab]/[12]/[xy]", vec(0..2_u8, 0..3), 1..6), 1..5)
        ) {
            let trees: Vec<_> = versions.iter().map(tree).collect();
            let mut files = Files::new(trees[0].path().to_owned(), None).unwrap();
            let mut before = stamps(&files, "");
            for (pair, tree) in versions.windows(2).zip(&trees[1..]) {
                files = Files::new(tree.path().to_owned(), Some(&files)).unwrap();
                let now = stamps(&files, "");
                prop_assert!(now.keys().eq(pair[1].keys()));
                for (path, stamp) in &now {
                    let is_same = pair[0].get(path) == pair[1].get(path);
                    prop_assert_eq!(before.get(path) == Some(stamp), is_same, "{}", path);
                    // In a listing of a part as well.
                    let (folder, name) = path.split_at(1);
                    let below = stamps(&files, folder);
                    prop_assert_eq!(below.get(&name[1..]), Some(stamp));
                }
                before = now;
            }
        }
    }

    #[test]
    fn links_and_times_change_no_stamp() {
        let contents =
            BTreeMap::from([("m/a".to_owned(), b"one".to_vec()), ("m/b".to_owned(), vec![7; 100_000])]);
        let tree = tree(&contents);
        let files = Files::new(tree.path().to_owned(), None).unwrap();
        let before = stamps(&files, "m");
        for name in ["a", "b"] {
            let path = tree.path().join("m").join(name);
            fs::hard_link(&path, tree.path().join(name)).unwrap();
            File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        assert_eq!(stamps(&files, "m"), before);
        assert!(Files::new(tree.path().join("none"), None).is_err());
    }
}
