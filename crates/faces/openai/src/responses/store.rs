//! Stored answers, by which later requests continue a conversation.
//!
//! They are in memory, up to a number of bytes, and expire. The answer that was not used for the longest time leaves first. An answer
//! belongs to the principal that asked for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use nereid_core::Principal;
use tokio::time::Instant;

/// Answers expire this long after their last use.
const LIFETIME: Duration = Duration::from_hours(24);

/// Bytes of an answer in addition to its texts.
const OVERHEAD: usize = 1024;

/// Bytes of an item in addition to its text.
const ITEM_OVERHEAD: usize = 256;

/// An answer that takes a larger part of the room is not stored: it would evict most others.
const LARGEST_PART: usize = 4;

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
    /// The identifiers of the answer's items, which are in the last turn.
    pub items: Vec<String>,
}

impl StoredAnswer {
    /// The size in bytes. Turns that several answers share count for each.
    fn size(&self) -> usize {
        let items = ITEM_OVERHEAD * self.items.len();
        OVERHEAD + items + self.document.len() + self.turns.iter().map(|turn| turn.len()).sum::<usize>()
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
        Self(Arc::new(Store::new(bytes)))
    }
}

/// The stored answers of a server.
#[derive(Debug)]
pub(crate) struct Store {
    /// The most bytes.
    room: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<String, Entry>,
    /// The response of each stored item, by identifiers.
    items: HashMap<String, String>,
    /// The identifiers by their last use.
    by_use: BTreeMap<u64, String>,
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
    /// A store for this many bytes.
    pub(crate) fn new(room: usize) -> Self {
        Self { room, table: Mutex::default() }
    }

    /// Whether answers are stored at all.
    pub(crate) fn has_room(&self) -> bool {
        self.room > 0
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
    pub(crate) fn put(&self, id: String, answer: StoredAnswer) -> bool {
        let size = answer.size();
        if size > self.room / LARGEST_PART {
            return false;
        }
        let mut table = self.lock();
        while table.size + size > self.room {
            table.evict();
        }
        table.uses += 1;
        let used = (table.uses, Instant::now());
        table.by_use.insert(used.0, id.clone());
        table.items.extend(answer.items.iter().map(|item| (item.clone(), id.clone())));
        table.entries.insert(id, Entry { answer: Arc::new(answer), used });
        table.size += size;
        true
    }

    /// Uses an answer of a principal.
    pub(crate) fn get(&self, id: &str, principal: Option<&Principal>) -> Option<Arc<StoredAnswer>> {
        let mut table = self.lock();
        let number = table.uses + 1;
        let entry = table.entries.get_mut(id)?;
        if entry.answer.principal.as_ref() != principal {
            return None;
        }
        let (before, _) = std::mem::replace(&mut entry.used, (number, Instant::now()));
        let answer = Arc::clone(&entry.answer);
        table.uses = number;
        if let Some(id) = table.by_use.remove(&before) {
            table.by_use.insert(number, id);
        }
        Some(answer)
    }

    /// The identifier of the answer that has this item.
    pub(crate) fn answer_of(&self, item: &str) -> Option<String> {
        self.lock().items.get(item).cloned()
    }

    /// Removes an answer. Conversations that continue it keep its turns.
    pub(crate) fn remove(&self, id: &str) {
        self.lock().remove(id);
    }
}

impl Table {
    fn oldest(&self) -> Option<&Entry> {
        let (_, id) = self.by_use.first_key_value()?;
        self.entries.get(id)
    }

    /// Removes the answer that was not used for the longest time.
    fn evict(&mut self) {
        if let Some((_, id)) = self.by_use.pop_first() {
            self.remove(&id);
        }
    }

    fn remove(&mut self, id: &str) {
        if let Some(entry) = self.entries.remove(id) {
            self.by_use.remove(&entry.used.0);
            for item in &entry.answer.items {
                self.items.remove(item);
            }
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
            items: Vec::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_expire_after_their_last_use() {
        let store = Store::new(1 << 20);
        assert!(store.put("a".to_owned(), answer(None, 1)) && store.put("b".to_owned(), answer(None, 1)));
        tokio::time::advance(LIFETIME - Duration::from_secs(1)).await;
        assert!(store.get("a", None).is_some());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(store.get("b", None).is_none());
        tokio::time::advance(LIFETIME - Duration::from_secs(2)).await;
        assert!(store.get("a", None).is_some());
        tokio::time::advance(LIFETIME).await;
        assert!(store.get("a", None).is_none());
        assert_eq!(store.lock().size, 0);
    }

    #[test]
    fn items_lead_to_their_answer_as_long_as_it_is_stored() {
        let store = Store::new(1 << 20);
        let with = |items: &[&str]| StoredAnswer {
            items: items.iter().map(|item| (*item).to_owned()).collect(),
            ..answer(None, 1)
        };
        store.put("a".to_owned(), with(&["a1", "a2"]));
        store.put("b".to_owned(), with(&["b1"]));
        let answers = || ["a1", "a2", "b1", "c"].map(|item| store.answer_of(item));
        assert_eq!(answers(), [Some("a".into()), Some("a".into()), Some("b".into()), None]);
        store.remove("a");
        assert_eq!(answers(), [None, None, Some("b".into()), None]);
        store.remove("b");
        assert!(store.lock().items.is_empty() && store.lock().size == 0);
    }

    #[test]
    fn answers_belong_to_their_principal() {
        let store = Store::new(1 << 20);
        let (one, other) = (Principal::new("one"), Principal::new("other"));
        store.put("a".to_owned(), answer(Some("one"), 1));
        store.put("b".to_owned(), answer(None, 1));
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
            let store = Store::new(room);
            let mut model: Vec<(String, usize)> = Vec::new();
            for (number, (what, which, size)) in steps.into_iter().enumerate() {
                let chosen = (!model.is_empty()).then(|| which % model.len());
                match (what, chosen) {
                    (1, Some(place)) => {
                        let used = model.remove(place);
                        prop_assert!(store.get(&used.0, None).is_some());
                        model.push(used);
                    }
                    (2, Some(place)) => store.remove(&model.remove(place).0),
                    _ => {
                        let (id, size) = (number.to_string(), size + OVERHEAD);
                        let fits = size <= room / LARGEST_PART;
                        prop_assert_eq!(store.put(id.clone(), answer(None, size - OVERHEAD)), fits);
                        if fits {
                            model.push((id, size));
                            while model.iter().map(|(_, size)| size).sum::<usize>() > room {
                                model.remove(0);
                            }
                        }
                    }
                }
                let table = store.lock();
                prop_assert_eq!(table.size, model.iter().map(|(_, size)| size).sum::<usize>());
                prop_assert!(table.by_use.values().eq(model.iter().map(|(id, _)| id)));
                prop_assert_eq!(table.entries.len(), model.len());
            }
        }
    }
}
