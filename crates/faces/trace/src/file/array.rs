//! A file with a growing JSON array. It is valid JSON after each step, even a failed one.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

/// The file operations needed here.
pub(super) trait Storage: Write + Seek {
    /// Cuts it off.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

impl Storage for File {
    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

pub(super) struct ArrayFile<S = File> {
    file: S,
    /// Offset of the closing bracket.
    end: u64,
}

impl ArrayFile {
    /// Creates a file with an empty array, replacing any existing one.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let created = File::create(path).and_then(Self::begin);
        if created.is_err() && fs::metadata(path).is_ok_and(|file| file.is_file()) {
            // An empty file is not an array, so it is removed. The write error is the one to report.
            let _ = fs::remove_file(path);
        }
        created
    }
}

impl<S: Storage> ArrayFile<S> {
    fn begin(mut file: S) -> io::Result<Self> {
        file.write_all(b"[]")?;
        Ok(Self { file, end: 1 })
    }

    /// Appends elements: `text` contains them, separated by commas.
    ///
    /// The elements are written behind the closing bracket, and take effect when the bracket is overwritten. So on a
    /// full disk, cutting the file off at the old end of the array is enough.
    pub(super) fn append(&mut self, text: &str) -> io::Result<()> {
        let written = self.put(self.end + 1, &[text, "]"].concat());
        let separator = if self.end > 1 { "," } else { " " };
        let written = written.and_then(|()| self.put(self.end, separator));
        match &written {
            Ok(()) => self.end += 1 + text.len() as u64,
            // If that fails as well, the first error is the one to report.
            Err(_) => drop(self.file.cut(self.end + 1)),
        }
        written
    }

    fn put(&mut self, place: u64, text: &str) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(place))?;
        self.file.write_all(text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file on a nearly full disk.
    struct Small {
        contents: io::Cursor<Vec<u8>>,
        room: usize,
    }

    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let left = self.room.saturating_sub(self.contents.position() as usize);
            match bytes.len().min(left) {
                0 => Err(io::ErrorKind::StorageFull.into()),
                // Writes as much as fits before it fails.
                count => self.contents.write(&bytes[..count]),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Small {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.contents.seek(to)
        }
    }

    impl Storage for Small {
        fn cut(&mut self, length: u64) -> io::Result<()> {
            self.contents.get_mut().truncate(length as usize);
            Ok(())
        }
    }

    proptest! {
        /// Free space varies while elements are appended.
        #[test]
        fn full_disk_loses_only_elements_that_do_not_fit(
            steps in prop::collection::vec((1..40_usize, 0..200_usize), 0..20),
        ) {
            let mut file = ArrayFile::begin(Small { contents: io::Cursor::default(), room: 2 }).unwrap();
            let mut expected = Vec::new();
            for (length, room) in steps {
                file.file.room = room;
                let text = "x".repeat(length);
                if file.append(&format!("\"{text}\"")).is_ok() {
                    expected.push(text);
                }
                let read: Vec<String> = serde_json::from_slice(file.file.contents.get_ref()).unwrap();
                prop_assert_eq!(&read, &expected);
            }
        }
    }

    #[test]
    fn the_array_is_complete_after_each_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "what was there before").unwrap();
        let mut file = ArrayFile::create(&path).unwrap();
        let text = || fs::read_to_string(&path).unwrap();
        assert_eq!(text(), "[]");
        file.append("1,2").unwrap();
        assert_eq!(text(), "[ 1,2]");
        file.append("3").unwrap();
        assert_eq!(text(), "[ 1,2,3]");
    }

    #[test]
    fn impossible_paths_are_reported() {
        assert!(ArrayFile::create(Path::new("/proc/none/a")).is_err());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        // A device that refuses all writes.
        assert!(ArrayFile::create(Path::new("/dev/full")).is_err());
    }
}
