//! Stored answers, by which later requests continue a conversation.
//!
//! They are in memory, up to a number of bytes, in a folder if there is one, and expire. The answer that was not used for the longest
//! time leaves first. An answer belongs to the principal that asked for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use nereid_core::Principal;
use tokio::time::Instant;

use super::folder::{AnswerFolder, Folder};
use super::locator::Locator;

/// Answers expire this long after their last use.
pub(super) const LIFETIME: Duration = Duration::from_hours(24);

/// Bytes of an answer in addition to its texts.
const OVERHEAD: usize = 1024;

/// An answer that takes a larger part of the room is not stored: it would evict most others.
pub(super) const LARGEST_PART: usize = 4;

/// The items of one request and its answer, as a JSON array.
pub(crate) type Turn = Arc<str>;

/// A stored answer.
#[derive(Debug)]
pub(crate) struct StoredAnswer {
    pub principal: Option<Principal>,
    /// The model that gave it.
    pub model: String,
    /// The model's adapter.
    pub lora: Option<String>,
    /// The JSON of the answer.
    pub document: Bytes,
    /// The conversation, the answer included.
    pub turns: Vec<Turn>,
}

impl StoredAnswer {
    /// The size in bytes. Turns that several answers share count for each.
    pub(super) fn size(&self) -> usize {
        OVERHEAD + self.document.len() + self.turns.iter().map(|turn| turn.len()).sum::<usize>()
    }
}

/// Room for stored answers, which faces share with its clones.
#[derive(Clone, Debug)]
pub struct AnswerStore(pub(crate) Arc<Store>);

impl AnswerStore {
    /// The room of a server without a setting, in bytes.
    pub const DEFAULT_BYTES: usize = 64 << 20;

    /// Room for this many bytes; 0 to store no answers.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Store::new(bytes, None)))
    }

    /// Like [`new`](Self::new), with files. Without them if the folder cannot be used, which is a warning.
    pub fn with_folder(bytes: usize, folder: AnswerFolder) -> Self {
        let folder = Folder::open(folder).map_err(|problem| {
            tracing::warn!("answers are in memory alone: {problem}");
        });
        Self(Arc::new(Store::new(bytes, folder.ok())))
    }
}

/// The stored answers of a server.
#[derive(Debug)]
pub(crate) struct Store {
    /// The most bytes in memory.
    room: usize,
    table: Mutex<Table>,
    folder: Option<Folder>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Locator, Entry>,
    /// The answers by their last use.
    by_use: BTreeMap<u64, Locator>,
    uses: u64,
    size: usize,
}

#[derive(Debug)]
struct Entry {
    answer: Arc<StoredAnswer>,
    /// The number of the last use, and its time.
    used: (u64, Instant),
}

impl Store {
    /// A store for this many bytes in memory.
    fn new(room: usize, folder: Option<Folder>) -> Self {
        Self { room, table: Mutex::default(), folder }
    }

    /// Whether answers are stored at all.
    pub(crate) fn has_room(&self) -> bool {
        self.room > 0 || self.folder.is_some()
    }

    /// Whether [`get`](Self::get) and [`remove`](Self::remove) may wait for a disk.
    pub(crate) fn has_files(&self) -> bool {
        self.folder.is_some()
    }

    /// The table, without expired answers.
    fn lock(&self) -> MutexGuard<'_, Table> {
        // Nothing panics under this lock.
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        while table.oldest().is_some_and(|entry| entry.used.1.elapsed() >= LIFETIME) {
            table.evict();
        }
        table
    }

    /// Stores an answer. Returns whether there was room.
    pub(crate) fn put(&self, locator: Locator, answer: StoredAnswer) -> bool {
        let answer = Arc::new(answer);
        let is_in_memory = self.keep(locator, Arc::clone(&answer));
        let is_in_folder = self.folder.as_ref().is_some_and(|folder| folder.put(locator, answer));
        is_in_memory || is_in_folder
    }

    /// Stores an answer in memory, if there is room.
    fn keep(&self, locator: Locator, answer: Arc<StoredAnswer>) -> bool {
        let size = answer.size();
        if size > self.room / LARGEST_PART {
            return false;
        }
        let mut table = self.lock();
        // Another request may have read the same file.
        table.remove(locator);
        while table.size + size > self.room {
            table.evict();
        }
        table.uses += 1;
        let used = (table.uses, Instant::now());
        table.by_use.insert(used.0, locator);
        table.entries.insert(locator, Entry { answer, used });
        table.size += size;
        true
    }

    /// Uses an answer of a principal.
    pub(crate) fn get(&self, locator: Locator, principal: Option<&Principal>) -> Option<Arc<StoredAnswer>> {
        let is_own = |answer: &StoredAnswer| answer.principal.as_ref() == principal;
        let known = self.lock().entries.get(&locator).map(|entry| Arc::clone(&entry.answer));
        if let Some(answer) = known {
            let answer = Some(answer).filter(|answer| is_own(answer))?;
            self.lock().touch(locator);
            self.folder.iter().for_each(|folder| folder.touch(locator));
            return Some(answer);
        }
        let folder = self.folder.as_ref()?;
        let answer = folder.get(locator).filter(|answer| is_own(answer))?;
        self.keep(locator, Arc::clone(&answer));
        folder.touch(locator);
        if !folder.has(locator) {
            // Removed meanwhile.
            self.lock().remove(locator);
        }
        Some(answer)
    }

    /// Removes an answer. Conversations that continue it keep its turns.
    pub(crate) fn remove(&self, locator: Locator) {
        // First the file, from which a request may be reading the answer into memory.
        self.folder.iter().for_each(|folder| folder.remove(locator));
        self.lock().remove(locator);
    }
}

impl Table {
    fn oldest(&self) -> Option<&Entry> {
        let (_, locator) = self.by_use.first_key_value()?;
        self.entries.get(locator)
    }

    /// Makes an answer the one that was used last.
    fn touch(&mut self, locator: Locator) {
        let number = self.uses + 1;
        let Some(entry) = self.entries.get_mut(&locator) else { return };
        let (before, _) = std::mem::replace(&mut entry.used, (number, Instant::now()));
        self.uses = number;
        self.by_use.remove(&before);
        self.by_use.insert(number, locator);
    }

    /// Removes the answer that was not used for the longest time.
    fn evict(&mut self) {
        if let Some((_, locator)) = self.by_use.pop_first() {
            self.remove(locator);
        }
    }

    fn remove(&mut self, locator: Locator) {
        if let Some(entry) = self.entries.remove(&locator) {
            self.by_use.remove(&entry.used.0);
            self.size -= entry.answer.size();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(principal: Option<&str>, size: usize) -> StoredAnswer {
        StoredAnswer {
            principal: principal.map(Principal::new),
            model: "m".to_owned(),
            lora: None,
            document: Bytes::from(vec![b'x'; size]),
            turns: Vec::new(),
        }
    }

    /// A store in memory alone, with names as locators.
    struct Named(Store);

    impl Named {
        fn new(room: usize) -> Self {
            Self(Store::new(room, None))
        }

        fn put(&self, id: &str, answer: StoredAnswer) -> bool {
            self.0.put(Locator::of_answer(id), answer)
        }

        fn get(&self, id: &str, principal: Option<&Principal>) -> Option<Arc<StoredAnswer>> {
            self.0.get(Locator::of_answer(id), principal)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_expire_after_their_last_use() {
        let store = Named::new(1 << 20);
        assert!(store.put("a", answer(None, 1)) && store.put("b", answer(None, 1)));
        tokio::time::advance(LIFETIME - Duration::from_secs(1)).await;
        assert!(store.get("a", None).is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(store.get("b", None).is_none());
        tokio::time::advance(LIFETIME - Duration::from_secs(2)).await;
        assert!(store.get("a", None).is_some());
        tokio::time::advance(LIFETIME).await;
        assert!(store.get("a", None).is_none());
        assert_eq!(store.0.lock().size, 0);
    }

    #[test]
    fn answers_belong_to_their_principal() {
        let store = Named::new(1 << 20);
        let (one, other) = (Principal::new("one"), Principal::new("other"));
        store.put("a", answer(Some("one"), 1));
        store.put("b", answer(None, 1));
        for (id, principal, is_found) in [
            ("a", Some(&one), true),
            ("a", Some(&other), false),
            ("a", None, false),
            ("b", None, true),
            ("b", Some(&one), false),
            ("c", None, false),
        ] {
            assert_eq!(store.get(id, principal).is_some(), is_found, "{id} {principal:?}");
        }
    }

    proptest! {
        /// However answers come, are used and leave, the store keeps to its room and evicts the least recently used.
        #[test]
        fn room_is_kept(
            room in 0_usize..20_000,
            steps in prop::collection::vec((0_u8..3, 0_usize..12, 0_usize..6000), 0..60),
        ) {
            let store = Named::new(room);
            let mut model: Vec<(String, usize)> = Vec::new();
            for (number, (what, which, size)) in steps.into_iter().enumerate() {
                let chosen = (!model.is_empty()).then(|| which % model.len());
                match (what, chosen) {
                    (1, Some(place)) => {
                        let used = model.remove(place);
                        prop_assert!(store.get(&used.0, None).is_some());
                        model.push(used);
                    }
                    (2, Some(place)) => store.0.remove(Locator::of_answer(&model.remove(place).0)),
                    _ => {
                        let (id, size) = (number.to_string(), size + OVERHEAD);
                        let fits = size <= room / LARGEST_PART;
                        prop_assert_eq!(store.put(&id, answer(None, size - OVERHEAD)), fits);
                        if fits {
                            model.push((id, size));
                            while model.iter().map(|(_, size)| size).sum::<usize>() > room {
                                model.remove(0);
                            }
                        }
                    }
                }
                let table = store.0.lock();
                prop_assert_eq!(table.size, model.iter().map(|(_, size)| size).sum::<usize>());
                let expected = model.iter().map(|(id, _)| Locator::of_answer(id));
                prop_assert!(table.by_use.values().copied().eq(expected));
                prop_assert_eq!(table.entries.len(), model.len());
            }
        }
    }
}
