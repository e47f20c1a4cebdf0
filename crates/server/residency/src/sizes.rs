//! The memory of each model: declared, measured when it was loaded (in this run of the server, or in an earlier one), or estimated
//! from its files.

mod measurement;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use nereid_core::{GpuMemory, MeasuredMemory, MemoryBasis, ModelMemory};

use crate::amounts::{Amount, Gpu};
use crate::content::Content;
use crate::gpus::GpuReading;
use crate::memory::MemoryBytes;
use crate::records::Records;
use measurement::Measurement;

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
    /// Memory taken so far by a model that is not measured yet, while other loads go on.
    so_far: Option<MemoryBytes>,
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
        let measured = self.measured.or(self.so_far);
        measured.map(|measured| MemoryBytes { processes: processes(measured), ..measured })
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
            (model.measured, model.so_far) = (known.map(|record| record.memory), None);
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
        self.models.get(name).map_or(LEAST, |model| self.taken(model, model.measured()))
    }

    /// Expected memory of a model, without what its load has taken so far.
    fn expected(&self, name: &str) -> u64 {
        let measured = |model: &ModelSize| model.measured.and(model.measured());
        self.models.get(name).map_or(LEAST, |model| self.taken(model, measured(model)))
    }

    fn taken(&self, model: &ModelSize, measured: Option<MemoryBytes>) -> u64 {
        if let Some(declared) = model.description.declared {
            return declared;
        }
        let files = model.description.files as f64;
        let least = model.least();
        match measured {
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
                let basis = match (model.description.declared, model.measured()) {
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
        let measured = model.measured.or(model.so_far);
        let Some(at_load) = measured.map(|measured| measured.processes) else { return false };
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
        let total = |model: &ModelSize| Some(model.measured.or(model.so_far)?.total());
        let measured =
            self.models.values().filter_map(|model| Some((total(model)?, model.description.files)));
        let (memory, files) = measured.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        if files == 0 { 1.0 } else { (memory as f64 / files as f64).clamp(*RATIO.start(), *RATIO.end()) }
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
