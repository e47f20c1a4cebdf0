//! A file with a growing JSON array. It is valid JSON after each step, even a failed one.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;

pub(super) struct ArrayFile {
    file: File,
    /// Where the closing bracket stands.
    end: u64,
}

impl ArrayFile {
    /// A file with an empty array, in the place of what may be there.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let mut file = File::create(path)?;
        file.write_all(b"[]")?;
        Ok(Self { file, end: 1 })
    }

    /// Appends elements, which `text` has with commas between them.
    pub(super) fn append(&mut self, text: &str) -> io::Result<()> {
        let comma = if self.end > 1 { "," } else { "" };
        let written = self.replace_end(&[comma, text, "]"]);
        match &written {
            Ok(()) => self.end += (comma.len() + text.len()) as u64,
            // What was there before is not lost with what cannot be added. If even that cannot be done, the first error
            // says enough.
            Err(_) => drop(self.file.set_len(self.end).and_then(|()| self.replace_end(&["]"]))),
        }
        written
    }

    fn replace_end(&mut self, texts: &[&str]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(self.end))?;
        self.file.write_all(texts.concat().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_array_is_complete_after_each_step() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "what was there before").unwrap();
        let mut file = ArrayFile::create(&path).unwrap();
        let text = || fs::read_to_string(&path).unwrap();
        assert_eq!(text(), "[]");
        file.append("1,2").unwrap();
        assert_eq!(text(), "[1,2]");
        file.append("3").unwrap();
        assert_eq!(text(), "[1,2,3]");
    }

    #[test]
    fn where_no_file_can_be_that_is_said() {
        assert!(ArrayFile::create(Path::new("/proc/none/a")).is_err());
    }

    #[test]
    fn a_full_disk_is_an_error() {
        // A device that takes nothing.
        assert!(ArrayFile::create(Path::new("/dev/full")).is_err());
    }
}
