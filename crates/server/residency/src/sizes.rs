//! The memory of each model: declared, measured when it was loaded (in this run of the server, or in an earlier one), or estimated
//! from its files.
//!
//! Models are loaded in parallel, and what a process takes is one number. So a measurement spans all loads that overlap: it begins
//! with the first and ends with the last, and what was added is divided among them by their expected sizes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::content::Content;
use crate::memory::MemoryBytes;
use crate::records::{Record, Records};

/// No model takes less: its threads, its configuration, its statistics.
const LEAST: u64 = 64 << 10;

/// How far memory may differ from files: a model may keep its weights in a mapped file, or unpack them.
const RATIO: std::ops::RangeInclusive<f64> = 0.25..=10.0;

/// The sizes of models in memory, and of those that were.
#[derive(Default)]
pub(crate) struct Sizes {
    models: BTreeMap<String, ModelSize>,
    /// Memory and times of loads by content.
    records: Records,
    measurement: Option<Measurement>,
}

/// A model before its load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Description {
    /// The memory that its configuration declares.
    pub declared: Option<u64>,
    /// The bytes of its files.
    pub files: u64,
    /// The identity of what is loaded.
    pub content: Content,
}

/// The end of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Whether the model is in memory.
    pub is_loaded: bool,
    /// How long the load took.
    pub took: Duration,
    /// The memory in use after it.
    pub now: MemoryBytes,
    /// The time in seconds since the Unix epoch.
    pub at: u64,
}

#[derive(Clone, Debug, Default)]
struct ModelSize {
    description: Description,
    measured: Option<MemoryBytes>,
    /// Whether `measured` is from an earlier run of the server.
    is_recorded: bool,
    load_time: Option<Duration>,
}

/// A measurement of loads that overlap.
struct Measurement {
    before: MemoryBytes,
    /// Bytes of models that were evicted during the measurement.
    freed: u64,
    /// How many loads are in progress.
    running: usize,
    /// The loads that ended well.
    loaded: Vec<String>,
    /// How many loads began.
    began: usize,
}

impl Sizes {
    /// Begins with the records of earlier runs.
    pub(crate) fn with_records(records: Records) -> Self {
        Self { records, ..Self::default() }
    }

    /// Notes what is known of a model before its load. What was measured counts for the same content only.
    pub(crate) fn describe(&mut self, name: &str, description: Description) {
        let model = self.models.entry(name.to_owned()).or_default();
        if model.description.content != description.content {
            let known = self.records.get(&description.content);
            model.measured = known.map(|record| record.memory);
            model.load_time = known.map(|record| record.load_time);
            model.is_recorded = known.is_some();
        }
        model.description = description;
    }

    /// The memory that a model takes, or is expected to take.
    pub(crate) fn of(&self, name: &str) -> u64 {
        let Some(model) = self.models.get(name) else { return LEAST };
        if let Some(declared) = model.description.declared {
            return declared;
        }
        let files = model.description.files as f64;
        let least = ((files * RATIO.start()) as u64).max(LEAST);
        match model.measured {
            // Memory that another model left behind is taken without being counted.
            Some(measured) => measured.total().max(least),
            None => ((files * self.ratio()) as u64).max(least),
        }
    }

    /// How long a model takes to be loaded, going by its loads so far.
    pub(crate) fn load_time(&self, name: &str) -> Option<Duration> {
        self.models.get(name)?.load_time
    }

    /// The memory that was measured for a model.
    pub(crate) fn measured(&self, name: &str) -> Option<MemoryBytes> {
        self.models.get(name)?.measured
    }

    /// Memory by bytes of files, as measured so far.
    fn ratio(&self) -> f64 {
        let measured =
            self.models.values().filter_map(|model| Some((model.measured?.total(), model.description.files)));
        let (memory, files) = measured.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if files == 0 { 1.0 } else { (memory as f64 / files as f64).clamp(*RATIO.start(), *RATIO.end()) }
    }

    /// A load begins.
    pub(crate) fn begin(&mut self, now: MemoryBytes) {
        let new = Measurement { before: now, freed: 0, running: 0, loaded: Vec::new(), began: 0 };
        let measurement = self.measurement.get_or_insert(new);
        measurement.running += 1;
        measurement.began += 1;
    }

    /// A model has left the memory.
    pub(crate) fn freed(&mut self, bytes: u64) {
        if let Some(measurement) = &mut self.measurement {
            measurement.freed += bytes;
        }
    }

    /// A load has ended. With the last one, what was added is divided. Returns the records of the loads that this completes.
    pub(crate) fn end(&mut self, name: &str, ended: Ended) -> Vec<(Content, Record)> {
        let Some(measurement) = &mut self.measurement else { return Vec::new() };
        measurement.running = measurement.running.saturating_sub(1);
        if ended.is_loaded {
            measurement.loaded.push(name.to_owned());
            if let Some(model) = self.models.get_mut(name) {
                // The mean, as other loads or a cold cache may have slowed down one of them.
                let mean = |before: Duration| before / 2 + ended.took / 2;
                model.load_time = Some(model.load_time.map_or(ended.took, mean));
            }
        }
        if measurement.running > 0 {
            return Vec::new();
        }
        let Some(Measurement { before, freed, loaded, began, .. }) = self.measurement.take() else {
            return Vec::new();
        };
        let now = MemoryBytes { server: ended.now.server + freed, ..ended.now };
        let added = now.since(before);
        let expected: Vec<_> = loaded.iter().map(|name| self.of(name)).collect();
        let whole: u64 = expected.iter().sum();
        let mut records = Vec::new();
        for (name, expected) in loaded.into_iter().zip(expected) {
            let share = added.share(expected, whole);
            let Some(model) = self.models.get_mut(&name) else { continue };
            let memory = match model.measured {
                Some(before) if began > 1 => before,
                // Halfway: the model may take less by now, or take memory that another one left behind.
                Some(before) if model.is_recorded && before.total() > share.total() => before.mean(share),
                Some(before) if before.total() >= share.total() => before,
                _ => share,
            };
            (model.measured, model.is_recorded) = (Some(memory), model.is_recorded && began > 1);
            let load_time = model.load_time.unwrap_or_default();
            let record = Record { model: name, memory, load_time, measured: ended.at };
            self.records.put(model.description.content.clone(), record.clone());
            records.push((model.description.content.clone(), record));
        }
        records
    }
}

#[cfg(test)]
mod tests;
