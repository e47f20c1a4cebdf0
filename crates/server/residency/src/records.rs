//! Records of loads: the memory and time that models took, and the form of the records in a file.
//!
//! The file is JSON with a digest over the records, so that a damaged file is recognised and never taken for other numbers. Knows
//! no paths and does no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::amounts::Gpu;
use crate::content::Content;
use crate::memory::MemoryBytes;

/// The records that are kept at most: those measured last.
pub(crate) const MOST: usize = 4096;

/// Every file of records begins with this.
const MARK: &[u8] = br#"{"nereid_model_memory":"#;

/// The form of the file.
const FORM: u32 = 1;

/// A load of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The model's name, for people who read the file.
    pub model: String,
    /// The memory that it took.
    pub memory: MemoryBytes,
    /// The memory of GPUs that its backend reported.
    pub gpus: BTreeMap<Gpu, u64>,
    /// The time that it took.
    pub load_time: Duration,
    /// When it was measured, in seconds since the Unix epoch.
    pub measured: u64,
}

/// Records by what was loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records(BTreeMap<Content, Record>);

/// The reason why a file has no records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The file is not one of records, or has a form of another release.
    Foreign,
    /// The file is one of records, but damaged.
    Damaged(String),
}

/// The member that all forms share.
#[derive(Deserialize)]
struct Form {
    nereid_model_memory: u32,
}

#[derive(Serialize, Deserialize)]
struct Document<'d> {
    nereid_model_memory: u32,
    digest: String,
    #[serde(borrow)]
    models: &'d RawValue,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    model: String,
    content: String,
    server_bytes: u64,
    processes_bytes: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gpu_bytes: BTreeMap<Gpu, u64>,
    load_ms: u64,
    measured: u64,
}

impl Records {
    pub(crate) fn get(&self, content: &Content) -> Option<&Record> {
        self.0.get(content)
    }

    /// The last record of each model, by its name.
    pub(crate) fn by_model(&self) -> BTreeMap<&str, &Record> {
        let mut models = BTreeMap::<_, &Record>::new();
        for record in self.0.values() {
            let last = models.entry(record.model.as_str()).or_insert(record);
            if last.measured < record.measured {
                *last = record;
            }
        }
        models
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a record, in place of an earlier one of the same content.
    pub(crate) fn put(&mut self, content: Content, record: Record) {
        self.0.insert(content, record);
        self.drop_oldest();
    }

    /// Adds the records of others. Of two with the same content, the one measured last stays.
    pub(crate) fn merge(&mut self, others: Self) {
        for (content, record) in others.0 {
            if self.0.get(&content).is_none_or(|known| known.measured <= record.measured) {
                self.0.insert(content, record);
            }
        }
        self.drop_oldest();
    }

    fn drop_oldest(&mut self) {
        if self.0.len() > MOST {
            let mut times: Vec<_> = self.0.values().map(|record| record.measured).collect();
            let excess = times.len() - MOST;
            times.sort_unstable();
            let oldest = times.get(excess - 1).copied().unwrap_or_default();
            let mut left = excess;
            self.0.retain(|_, record| {
                let is_dropped = left > 0 && record.measured <= oldest;
                left -= usize::from(is_dropped);
                !is_dropped
            });
        }
    }

    /// Reads a file's contents.
    ///
    /// # Errors
    /// The contents have no records that could be trusted.
    pub(crate) fn parse(contents: &[u8]) -> Result<Self, Unreadable> {
        if contents.is_empty() {
            return Err(Unreadable::Damaged("it is empty".to_owned()));
        }
        if !contents.starts_with(MARK) {
            return Err(Unreadable::Foreign);
        }
        let damaged = |error: serde_json::Error| Unreadable::Damaged(error.to_string());
        let Form { nereid_model_memory: form } = serde_json::from_slice(contents).map_err(damaged)?;
        if form != FORM {
            return Err(Unreadable::Foreign);
        }
        let document: Document<'_> = serde_json::from_slice(contents).map_err(damaged)?;
        if document.digest != digest(document.models.get()) {
            return Err(Unreadable::Damaged("its digest does not match".to_owned()));
        }
        let entries: Vec<Entry> = serde_json::from_str(document.models.get()).map_err(damaged)?;
        let mut records = Self::default();
        for entry in entries {
            let Entry { model, content, server_bytes, processes_bytes, gpu_bytes: gpus, load_ms, measured } =
                entry;
            let content = Content::parse(&content)
                .ok_or_else(|| Unreadable::Damaged(format!("'{content}' identifies no content")))?;
            let memory = MemoryBytes { server: server_bytes, processes: processes_bytes };
            let load_time = Duration::from_millis(load_ms);
            records.0.insert(content, Record { model, memory, gpus, load_time, measured });
        }
        records.drop_oldest();
        Ok(records)
    }

    /// The contents of a file.
    ///
    /// # Errors
    /// The records cannot be written as JSON.
    pub(crate) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let entry = |(content, record): (&Content, &Record)| Entry {
            model: record.model.clone(),
            content: content.as_str().to_owned(),
            server_bytes: record.memory.server,
            processes_bytes: record.memory.processes,
            gpu_bytes: record.gpus.clone(),
            load_ms: u64::try_from(record.load_time.as_millis()).unwrap_or(u64::MAX),
            measured: record.measured,
        };
        let entries: Vec<_> = self.0.iter().map(entry).collect();
        let models = serde_json::value::to_raw_value(&entries)?;
        let digest = digest(models.get());
        serde_json::to_vec(&Document { nereid_model_memory: FORM, digest, models: &models })
    }
}

fn digest(models: &str) -> String {
    blake3::hash(models.as_bytes()).to_hex().to_string()
}

#[cfg(test)]
mod tests;
