//! Which files there are, and which of them leave first.

use std::collections::{BTreeSet, HashMap};
use std::time::SystemTime;

use super::super::locator::Locator;

/// Files take whole blocks of a disk.
const BLOCK: u64 = 4096;

/// The files of a folder, by their last use.
#[derive(Debug, Default)]
pub(super) struct Index {
    files: HashMap<Locator, Entry>,
    by_use: BTreeSet<(SystemTime, Locator)>,
    size: u64,
}

#[derive(Debug)]
struct Entry {
    size: u64,
    used: SystemTime,
}

impl Index {
    /// Adds a file, or replaces it.
    pub(super) fn add(&mut self, locator: Locator, length: u64, used: SystemTime) {
        self.remove(locator);
        let size = on_disk(length);
        self.size += size;
        self.by_use.insert((used, locator));
        self.files.insert(locator, Entry { size, used });
    }

    /// Changes the time of a file's last use. Returns whether there is one.
    pub(super) fn touch(&mut self, locator: Locator, used: SystemTime) -> bool {
        let Some(entry) = self.files.get_mut(&locator) else { return false };
        self.by_use.remove(&(entry.used, locator));
        self.by_use.insert((used, locator));
        entry.used = used;
        true
    }

    /// Forgets a file.
    pub(super) fn remove(&mut self, locator: Locator) {
        if let Some(Entry { size, used }) = self.files.remove(&locator) {
            self.by_use.remove(&(used, locator));
            self.size -= size;
        }
    }

    /// The file that was not used for the longest time, and when it was.
    pub(super) fn oldest(&self) -> Option<(Locator, SystemTime)> {
        self.by_use.first().map(|(used, locator)| (*locator, *used))
    }

    /// Whether all files and one of this length fit into a room.
    pub(super) fn fits(&self, length: u64, room: u64) -> bool {
        self.size.saturating_add(on_disk(length)) <= room
    }

    /// How many files there are.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }
}

/// The bytes that a file of this length takes.
fn on_disk(length: u64) -> u64 {
    length.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)
}
