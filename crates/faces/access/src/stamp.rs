//! Detects changed files.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The identity, size and times of files; `None` for a missing one. Changed permissions change the time of the inode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp(Vec<Option<[i128; 7]>>);

impl Stamp {
    /// The current stamp of some files.
    pub(crate) fn of<'p>(files: impl IntoIterator<Item = &'p Path>) -> Self {
        let stamp = |file: &Path| {
            let about = fs::metadata(file).ok()?;
            Some([
                about.dev().into(),
                about.ino().into(),
                about.size().into(),
                about.mtime().into(),
                about.mtime_nsec().into(),
                about.ctime().into(),
                about.ctime_nsec().into(),
            ])
        };
        Self(files.into_iter().map(stamp).collect())
    }
}
