//! The memory of each model: declared, measured when it was loaded (in this run of the server, or in an earlier one), or estimated
//! from its files.
//!
//! Models are loaded in parallel, and what a process takes is one number. So a measurement spans all loads that overlap: it begins
//! with the first and ends with the last, and what was added is divided among them by their expected sizes.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use nereid_core::{MeasuredMemory, MemoryBasis, ModelMemory};

use crate::amounts::{Amount, Gpu};
use crate::content::Content;
use crate::memory::{MemoryBytes, share};
use crate::records::{Record, Records};

/// No model takes less: its threads, its configuration, its statistics.
const LEAST: u64 = 64 << 10;

/// How far memory may differ from files: a model may keep its weights in a mapped file, or unpack them.
const RATIO: std::ops::RangeInclusive<f64> = 0.25..=10.0;

/// The part of their memory that a model's processes grow by at least before that counts, and how many bytes.
const GROWN: u64 = 8;
const LEAST_GROWTH: u64 = 4 << 20;

/// Processes count less once they have freed at least one part in this many.
const SHRUNK: u64 = 4;

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
    /// The memory of GPUs that its configuration declares.
    pub declared_gpus: Option<BTreeMap<Gpu, u64>>,
    /// How many of its instances run on each GPU.
    pub gpu_instances: BTreeMap<Gpu, u64>,
    /// The bytes of its files.
    pub files: u64,
    /// The identity of what is loaded.
    pub content: Content,
}

/// The end of a load.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// Whether the model is in memory.
    pub is_loaded: bool,
    /// How long the load took.
    pub took: Duration,
    /// The memory in use after it.
    pub now: MemoryBytes,
    /// The memory of the model's own processes, if it has any.
    pub processes: Option<u64>,
    /// The memory of GPUs that its backend reports.
    pub gpus: BTreeMap<Gpu, u64>,
    /// The time in seconds since the Unix epoch.
    pub at: u64,
}

#[derive(Clone, Debug, Default)]
struct ModelSize {
    description: Description,
    measured: Option<MemoryBytes>,
    /// The memory of GPUs that the backend reported.
    gpus: BTreeMap<Gpu, u64>,
    /// When it was measured, in seconds since the Unix epoch.
    at: u64,
    /// Whether `measured` is from an earlier run of the server.
    is_recorded: bool,
    load_time: Option<Duration>,
    /// The memory of the model's processes, once it has grown after the load.
    grown: Option<u64>,
}

impl ModelSize {
    fn measured(&self) -> Option<MemoryBytes> {
        let processes = |measured: MemoryBytes| self.grown.unwrap_or(measured.processes);
        self.measured.map(|measured| MemoryBytes { processes: processes(measured), ..measured })
    }
}

/// A measurement of loads that overlap.
struct Measurement {
    before: MemoryBytes,
    /// The memory of models that were evicted during the measurement.
    freed: MemoryBytes,
    /// How many loads are in progress.
    running: usize,
    /// The loads that ended well, with the memory of the models' own processes.
    loaded: Vec<(String, Option<u64>)>,
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
            model.gpus = known.map(|record| record.gpus.clone()).unwrap_or_default();
            model.at = known.map_or(0, |record| record.measured);
            model.is_recorded = known.is_some();
        }
        (model.description, model.grown) = (description, None);
    }

    /// The memory that a model takes, or is expected to take.
    pub(crate) fn of(&self, name: &str) -> u64 {
        let Some(model) = self.models.get(name) else { return LEAST };
        if let Some(declared) = model.description.declared {
            return declared;
        }
        let files = model.description.files as f64;
        let least = ((files * RATIO.start()) as u64).max(LEAST);
        match model.measured() {
            // Memory that another model left behind is taken without being counted.
            Some(measured) => measured.total().max(least),
            None => ((files * self.ratio()) as u64).max(least),
        }
    }

    /// The memory that a model takes of each GPU, or is expected to take. An estimate has its files once for each instance there.
    pub(crate) fn of_gpus(&self, name: &str) -> BTreeMap<Gpu, u64> {
        let Some(model) = self.models.get(name) else { return BTreeMap::new() };
        if let Some(declared) = &model.description.declared_gpus {
            return declared.clone();
        }
        if !model.gpus.is_empty() {
            return model.gpus.clone();
        }
        let instances = model.description.gpu_instances.iter();
        instances
            .map(|(gpu, count)| (*gpu, model.description.files.saturating_mul(*count).max(LEAST)))
            .collect()
    }

    /// All memory that a model takes, or is expected to take.
    pub(crate) fn amount(&self, name: &str) -> Amount {
        Amount { host: self.of(name), gpus: self.of_gpus(name) }
    }

    /// How long a model takes to be loaded, going by its loads so far.
    pub(crate) fn load_time(&self, name: &str) -> Option<Duration> {
        self.models.get(name)?.load_time
    }

    /// The memory of models; `None` for those that were neither described nor loaded in an earlier run.
    pub(crate) fn memory<'n>(&self, names: impl Iterator<Item = &'n str>) -> Vec<Option<ModelMemory>> {
        let mut recorded = None;
        let of_name = |name| match self.models.get(name) {
            Some(model) => {
                let basis = match (model.description.declared, model.measured) {
                    (Some(_), _) => MemoryBasis::Declared,
                    (None, Some(_)) if model.is_recorded => MemoryBasis::Recorded,
                    (None, Some(_)) => MemoryBasis::Measured,
                    (None, None) => MemoryBasis::Files,
                };
                let measured = model.measured().map(|memory| measured(memory, model.at));
                let gpus = self.of_gpus(name).into_iter().collect();
                Some(ModelMemory { measured, budget: self.of(name), basis, gpus })
            }
            None => {
                let records = recorded.get_or_insert_with(|| self.records.by_model());
                let record = records.get(name)?;
                let (memory, budget) = (record.memory, record.memory.total().max(LEAST));
                let measured = Some(measured(memory, record.measured));
                let gpus = record.gpus.iter().map(|(gpu, bytes)| (*gpu, *bytes)).collect();
                Some(ModelMemory { measured, budget, basis: MemoryBasis::Recorded, gpus })
            }
        };
        names.map(of_name).collect()
    }

    /// Counts what a loaded model's processes take now, if they have grown or shrunk by enough. Returns whether the model counts
    /// more than before.
    pub(crate) fn follow(&mut self, name: &str, processes: u64) -> bool {
        let Some(model) = self.models.get_mut(name) else { return false };
        let Some(at_load) = model.measured.map(|measured| measured.processes) else { return false };
        let counted = model.grown.unwrap_or(at_load);
        let has_grown = processes > counted.saturating_add((counted / GROWN).max(LEAST_GROWTH));
        // Memory that comes and goes with the requests counts as long as most of it is there.
        let has_shrunk = model.grown.is_some() && processes < counted - counted / SHRUNK;
        if has_grown || has_shrunk {
            model.grown = (processes > at_load).then_some(processes);
        }
        has_grown && model.description.declared.is_none()
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
        let new = Measurement {
            before: now,
            freed: MemoryBytes::default(),
            running: 0,
            loaded: Vec::new(),
            began: 0,
        };
        let measurement = self.measurement.get_or_insert(new);
        measurement.running += 1;
        measurement.began += 1;
    }

    /// A model has left the memory.
    pub(crate) fn freed(&mut self, name: &str) {
        let unmeasured = MemoryBytes { server: self.of(name), processes: 0 };
        let memory = self.models.get(name).and_then(ModelSize::measured).unwrap_or(unmeasured);
        if let Some(measurement) = &mut self.measurement {
            measurement.freed = measurement.freed.plus(memory);
        }
    }

    /// A load has ended. With the last one, what was added is divided. Returns the records of the loads that this completes.
    pub(crate) fn end(&mut self, name: &str, ended: Ended) -> Vec<(Content, Record)> {
        let Some(measurement) = &mut self.measurement else { return Vec::new() };
        measurement.running = measurement.running.saturating_sub(1);
        if ended.is_loaded {
            measurement.loaded.push((name.to_owned(), ended.processes));
            if let Some(model) = self.models.get_mut(name) {
                model.gpus = ended.gpus;
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
        let mut added = ended.now.plus(freed).since(before);
        // Where a model's processes are known, no other one has a share in them.
        added.processes = added.processes.saturating_sub(loaded.iter().filter_map(|(_, own)| *own).sum());
        let expected: Vec<_> = loaded.iter().map(|(name, _)| self.of(name)).collect();
        let all: u64 = expected.iter().sum();
        let others = loaded.iter().zip(&expected).filter(|((_, own), _)| own.is_none());
        let others: u64 = others.map(|(_, expected)| expected).sum();
        let mut records = Vec::new();
        for ((name, own), expected) in loaded.into_iter().zip(expected) {
            let Some(model) = self.models.get_mut(&name) else { continue };
            let processes = own.unwrap_or_else(|| share(added.processes, expected, others));
            let share = MemoryBytes { server: share(added.server, expected, all), processes };
            let is_alone = began == 1;
            let mut memory = match model.measured {
                Some(before) if !is_alone => before,
                // Halfway: the model may take less by now, or take memory that another one left behind.
                Some(before) if model.is_recorded && before.total() > share.total() => before.mean(share),
                Some(before) if before.total() >= share.total() => before,
                _ => share,
            };
            memory.processes = own.unwrap_or(memory.processes);
            if model.measured.is_none() || is_alone || own.is_some() {
                (model.is_recorded, model.at) = (false, ended.at);
            }
            model.measured = Some(memory);
            let load_time = model.load_time.unwrap_or_default();
            let (gpus, measured) = (model.gpus.clone(), model.at);
            let record = Record { model: name, memory, gpus, load_time, measured };
            self.records.put(model.description.content.clone(), record.clone());
            records.push((model.description.content.clone(), record));
        }
        records
    }
}

/// A measurement for documents.
fn measured(MemoryBytes { server, processes }: MemoryBytes, at: u64) -> MeasuredMemory {
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(at)).unwrap_or(UNIX_EPOCH);
    MeasuredMemory { server, processes, at }
}

#[cfg(test)]
mod tests;
