//! The memory of each model: declared, measured when it was loaded (in this run of the server, or in an earlier one), or estimated
//! from its files.
//!
//! Models are loaded in parallel, and what a process takes is one number. So a measurement spans all loads that overlap: it begins
//! with the first and ends with the last, and what was added is divided among them by their expected sizes. The same holds for the
//! memory of GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use nereid_core::{GpuMemory, MeasuredMemory, MemoryBasis, ModelMemory};

use crate::amounts::{Amount, Gpu};
use crate::content::Content;
use crate::gpus::GpuReading;
use crate::memory::{MemoryBytes, Part, divide};
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
    /// Whether the model chooses its GPUs itself.
    pub chooses_gpus: bool,
    /// The bytes of its files.
    pub files: u64,
    /// The identity of what is loaded.
    pub content: Content,
}

/// Memory usage at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub memory: MemoryBytes,
    pub gpus: GpuReading,
}

/// The memory of a loaded model that its processes and its backend show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The memory of the model's own processes, if it has any.
    pub processes: Option<u64>,
    /// Their memory on each GPU; `None` if the model has no processes, or the driver does not list them.
    pub gpus: Option<BTreeMap<Gpu, u64>>,
    /// The memory of GPUs that its backend reports.
    pub reported_gpus: BTreeMap<Gpu, u64>,
}

impl Known {
    fn gpu(&self, gpu: Gpu) -> Option<u64> {
        let of_processes = || Some(self.gpus.as_ref()?.get(&gpu).copied().unwrap_or(0));
        self.reported_gpus.get(&gpu).copied().or_else(of_processes)
    }
}

/// The end of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended {
    /// Whether the model is in memory.
    pub is_loaded: bool,
    /// How long the load took.
    pub took: Duration,
    /// The memory in use after it.
    pub now: Reading,
    pub known: Known,
    /// The time in seconds since the Unix epoch.
    pub at: u64,
}

#[derive(Clone, Debug, Default)]
struct ModelSize {
    description: Description,
    measured: Option<MemoryBytes>,
    /// The memory of GPUs that the backend reported, or else what was measured.
    gpus: BTreeMap<Gpu, u64>,
    /// When it was measured, in seconds since the Unix epoch.
    at: u64,
    /// Whether `measured` is from an earlier run of the server.
    is_recorded: bool,
    load_time: Option<Duration>,
    /// The memory of the model's processes, once it has grown after the load.
    grown: Option<u64>,
    /// The grown memory of the processes on each GPU.
    grown_gpus: BTreeMap<Gpu, u64>,
}

impl ModelSize {
    fn measured(&self) -> Option<MemoryBytes> {
        let processes = |measured: MemoryBytes| self.grown.unwrap_or(measured.processes);
        self.measured.map(|measured| MemoryBytes { processes: processes(measured), ..measured })
    }

    /// The known memory of GPUs.
    fn known_gpus(&self) -> BTreeMap<Gpu, u64> {
        let mut gpus = self.gpus.clone();
        gpus.extend(&self.grown_gpus);
        gpus
    }

    /// Lower bound of the model's memory. A measurement misses memory that another model left behind.
    fn least(&self) -> u64 {
        ((self.description.files as f64 * RATIO.start()) as u64).max(LEAST)
    }

    /// The same for a GPU.
    fn least_of_gpu(&self, gpu: Gpu) -> u64 {
        if self.description.gpu_instances.contains_key(&gpu) { self.least() } else { 0 }
    }
}

/// A measurement of loads that overlap.
struct Measurement {
    before: Reading,
    /// The memory of models that were evicted during the measurement.
    freed: MemoryBytes,
    freed_gpus: BTreeMap<Gpu, u64>,
    /// How many loads are in progress.
    running: usize,
    /// The loads that ended well.
    loaded: Vec<(String, Known)>,
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
        model.grown_gpus.clear();
    }

    /// The memory that a model takes, or is expected to take.
    pub(crate) fn of(&self, name: &str) -> u64 {
        let Some(model) = self.models.get(name) else { return LEAST };
        if let Some(declared) = model.description.declared {
            return declared;
        }
        let files = model.description.files as f64;
        let least = model.least();
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
        let known = model.known_gpus();
        if !known.is_empty() {
            let counted = |(gpu, bytes): (Gpu, u64)| (gpu, bytes.max(model.least_of_gpu(gpu)));
            return known.into_iter().map(counted).collect();
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
                let (known, gpus) = (model.known_gpus(), self.of_gpus(name));
                Some(ModelMemory { measured, budget: self.of(name), basis, gpus: gpu_memory(&known, &gpus) })
            }
            None => {
                let records = recorded.get_or_insert_with(|| self.records.by_model());
                let record = records.get(name)?;
                let (memory, budget) = (record.memory, record.memory.total().max(LEAST));
                let measured = Some(measured(memory, record.measured));
                let gpus = gpu_memory(&record.gpus, &record.gpus);
                Some(ModelMemory { measured, budget, basis: MemoryBasis::Recorded, gpus })
            }
        };
        names.map(of_name).collect()
    }

    /// Counts what a loaded model's processes take now, of the machine's memory and of GPUs, if they have grown or shrunk by enough.
    /// Returns whether the model counts more than before.
    pub(crate) fn follow(&mut self, name: &str, processes: u64, gpus: Option<&BTreeMap<Gpu, u64>>) -> bool {
        let Some(model) = self.models.get_mut(name) else { return false };
        let Some(at_load) = model.measured.map(|measured| measured.processes) else { return false };
        let mut has_grown = false;
        if let Some((grown, counts_more)) = followed(at_load, model.grown, processes) {
            model.grown = grown;
            has_grown |= counts_more && model.description.declared.is_none();
        }
        for (gpu, bytes) in gpus.into_iter().flatten() {
            let at_load = model.gpus.get(gpu).copied().unwrap_or(0);
            let Some((grown, counts_more)) = followed(at_load, model.grown_gpus.get(gpu).copied(), *bytes)
            else {
                continue;
            };
            match grown {
                Some(grown) => model.grown_gpus.insert(*gpu, grown),
                None => model.grown_gpus.remove(gpu),
            };
            has_grown |= counts_more && model.description.declared_gpus.is_none();
        }
        has_grown
    }

    /// Memory by bytes of files, as measured so far.
    fn ratio(&self) -> f64 {
        let measured =
            self.models.values().filter_map(|model| Some((model.measured?.total(), model.description.files)));
        let (memory, files) = measured.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if files == 0 { 1.0 } else { (memory as f64 / files as f64).clamp(*RATIO.start(), *RATIO.end()) }
    }

    /// A load begins.
    pub(crate) fn begin(&mut self, now: Reading) {
        let new = Measurement {
            before: now,
            freed: MemoryBytes::default(),
            freed_gpus: BTreeMap::new(),
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
        let model = self.models.get(name);
        let memory = model.and_then(ModelSize::measured).unwrap_or(unmeasured);
        let gpus = model.map(ModelSize::known_gpus).unwrap_or_default();
        if let Some(measurement) = &mut self.measurement {
            measurement.freed = measurement.freed.plus(memory);
            for (gpu, bytes) in gpus {
                let freed = measurement.freed_gpus.entry(gpu).or_default();
                *freed = freed.saturating_add(bytes);
            }
        }
    }

    /// A load has ended. With the last one, what was added is divided. Returns the records of the loads that this completes.
    pub(crate) fn end(&mut self, name: &str, ended: Ended) -> Vec<(Content, Record)> {
        let Some(measurement) = &mut self.measurement else { return Vec::new() };
        measurement.running = measurement.running.saturating_sub(1);
        if ended.is_loaded {
            measurement.loaded.push((name.to_owned(), ended.known));
            if let Some(model) = self.models.get_mut(name) {
                // The mean, as other loads or a cold cache may have slowed down one of them.
                let mean = |before: Duration| before / 2 + ended.took / 2;
                model.load_time = Some(model.load_time.map_or(ended.took, mean));
            }
        }
        if measurement.running > 0 {
            return Vec::new();
        }
        let Some(measurement) = self.measurement.take() else { return Vec::new() };
        let is_alone = measurement.began == 1;
        let gpus = self.added_gpus(&measurement, &ended.now);
        let Measurement { before, freed, loaded, .. } = measurement;
        let added = ended.now.memory.plus(freed).since(before.memory);
        let part = |known, name: &str| Part { known, expected: self.of(name) };
        let servers: Vec<_> = loaded.iter().map(|(name, _)| part(None, name)).collect();
        let processes: Vec<_> = loaded.iter().map(|(name, known)| part(known.processes, name)).collect();
        let shares = divide(added.server, &servers).into_iter().zip(divide(added.processes, &processes));
        let mut records = Vec::new();
        for (((name, known), (server, processes)), gpus) in loaded.into_iter().zip(shares).zip(gpus) {
            let Some(model) = self.models.get_mut(&name) else { continue };
            let share = MemoryBytes { server, processes };
            let mut memory = match model.measured {
                Some(before) if !is_alone => before,
                // Halfway: the model may take less by now, or take memory that another one left behind.
                Some(before) if model.is_recorded && before.total() > share.total() => before.mean(share),
                Some(before) if before.total() >= share.total() => before,
                _ => share,
            };
            memory.processes = known.processes.unwrap_or(memory.processes);
            model.measure_gpus(&known, gpus, is_alone);
            if model.measured.is_none() || is_alone || known.processes.is_some() {
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

    /// The memory that each load added on each GPU.
    fn added_gpus(&self, measurement: &Measurement, now: &Reading) -> Vec<BTreeMap<Gpu, u64>> {
        let mut all = vec![BTreeMap::new(); measurement.loaded.len()];
        for gpu in now.gpus.gpus() {
            let freed = measurement.freed_gpus.get(&gpu).copied().unwrap_or(0);
            let added = now.gpus.added(gpu, &measurement.before.gpus, freed);
            let parts = measurement.loaded.iter().map(|(name, known)| {
                let chosen = |model: &ModelSize| match model.description.chooses_gpus {
                    true => model.description.files.max(LEAST),
                    false => 0,
                };
                let expected = self.of_gpus(name).get(&gpu).copied();
                let expected = expected.or_else(|| self.models.get(name).map(chosen)).unwrap_or(0);
                Part { known: known.gpu(gpu), expected }
            });
            let shares = divide(added, &parts.collect::<Vec<_>>());
            for (gpus, share) in all.iter_mut().zip(shares) {
                gpus.insert(gpu, share);
            }
        }
        all
    }
}

impl ModelSize {
    /// Notes what a load took of GPUs: what the backend reports, or else its share of what was added.
    fn measure_gpus(&mut self, known: &Known, shares: BTreeMap<Gpu, u64>, is_alone: bool) {
        if !known.reported_gpus.is_empty() {
            self.gpus.clone_from(&known.reported_gpus);
            return;
        }
        for (gpu, share) in shares {
            let bytes = match self.gpus.get(&gpu).copied() {
                _ if known.gpu(gpu).is_some() => share,
                Some(before) if !is_alone => before,
                // As for the memory of the machine.
                Some(before) if self.is_recorded && before > share => before.midpoint(share),
                Some(before) => before.max(share),
                None => share,
            };
            // Models take nothing of most GPUs.
            if bytes > 0 || self.description.gpu_instances.contains_key(&gpu) {
                self.gpus.insert(gpu, bytes);
            } else {
                self.gpus.remove(&gpu);
            }
        }
    }
}

/// The new count of processes that had `at_load` bytes at first, counted as `counted` later, and have `now` bytes; and whether it grew.
/// `None` if the count stays.
fn followed(at_load: u64, counted: Option<u64>, now: u64) -> Option<(Option<u64>, bool)> {
    let before = counted.unwrap_or(at_load);
    let has_grown = now > before.saturating_add((before / GROWN).max(LEAST_GROWTH));
    // Memory that comes and goes with the requests counts as long as most of it is there.
    let has_shrunk = counted.is_some() && now < before - before / SHRUNK;
    (has_grown || has_shrunk).then(|| ((now > at_load).then_some(now), has_grown))
}

/// The memory of GPUs for documents: what is known, and what counts.
fn gpu_memory(known: &BTreeMap<Gpu, u64>, budgets: &BTreeMap<Gpu, u64>) -> Vec<GpuMemory> {
    let gpus: BTreeSet<_> = known.keys().chain(budgets.keys()).copied().collect();
    let of_gpu = |gpu| GpuMemory {
        gpu,
        measured: known.get(&gpu).copied(),
        budget: budgets.get(&gpu).copied().unwrap_or(0),
    };
    gpus.into_iter().map(of_gpu).collect()
}

/// A measurement for documents.
fn measured(MemoryBytes { server, processes }: MemoryBytes, at: u64) -> MeasuredMemory {
    let at = UNIX_EPOCH.checked_add(Duration::from_secs(at)).unwrap_or(UNIX_EPOCH);
    MeasuredMemory { server, processes, at }
}

#[cfg(test)]
mod tests;
