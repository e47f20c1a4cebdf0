//! Measures the memory of loads, also of those that overlap.
//!
//! Models are loaded in parallel, and what a process takes is one number. So a measurement spans all loads that overlap: it begins
//! with the first and ends with the last, and what was added is divided among them by their expected sizes. The same holds for the
//! memory of GPUs. Under steady demand, loads overlap without end: what has ended counts by what was added so far, and a measurement
//! of many loads ends before the last of them does.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Ended, Known, LEAST, ModelSize, Reading, Sizes};
use crate::amounts::Gpu;
use crate::content::Content;
use crate::memory::{MemoryBytes, Part, divide};
use crate::records::Record;

/// The ended loads after which a measurement ends, though others are in progress.
pub(super) const MOST: usize = 64;

/// A measurement of loads that overlap.
pub(super) struct Measurement {
    before: Reading,
    /// The memory of models that were evicted during the measurement.
    freed: MemoryBytes,
    freed_gpus: BTreeMap<Gpu, u64>,
    /// The models whose loads are in progress.
    running: Vec<String>,
    /// The loads that ended well.
    loaded: Vec<(String, Known)>,
    /// How many loads began.
    began: usize,
}

/// A load's part of what was added.
#[derive(Default)]
struct Share {
    memory: MemoryBytes,
    gpus: BTreeMap<Gpu, u64>,
}

impl Measurement {
    fn new(before: Reading) -> Self {
        Self {
            before,
            freed: MemoryBytes::default(),
            freed_gpus: BTreeMap::new(),
            running: Vec::new(),
            loaded: Vec::new(),
            began: 0,
        }
    }

    /// Goes on with the loads in progress, which have added this much so far.
    fn rest(running: Vec<String>, before: Reading, shares: impl Iterator<Item = Share>) -> Self {
        let began = running.len() + 1;
        let mut rest = Self { running, began, ..Self::new(before) };
        shares.for_each(|share| rest.free(share.memory, share.gpus));
        rest
    }

    /// Counts as added what is in use no longer.
    fn free(&mut self, memory: MemoryBytes, gpus: BTreeMap<Gpu, u64>) {
        self.freed = self.freed.plus(memory);
        for (gpu, bytes) in gpus {
            let freed = self.freed_gpus.entry(gpu).or_default();
            *freed = freed.saturating_add(bytes);
        }
    }

    /// The loads that ended well, then those in progress, of whose processes nothing is known.
    fn loads(&self) -> impl Iterator<Item = (&str, Option<&Known>)> {
        let loaded = self.loaded.iter().map(|(name, known)| (name.as_str(), Some(known)));
        loaded.chain(self.running.iter().map(|name| (name.as_str(), None)))
    }
}

impl Sizes {
    /// The load of a model begins.
    pub(crate) fn begin(&mut self, name: &str, now: Reading) {
        let measurement = self.measurement.get_or_insert_with(|| Measurement::new(now));
        measurement.running.push(name.to_owned());
        measurement.began += 1;
    }

    /// A model has left the memory.
    pub(crate) fn freed(&mut self, name: &str) {
        let unmeasured = MemoryBytes { server: self.of(name), processes: 0 };
        let model = self.models.get(name);
        let memory = model.and_then(ModelSize::measured).unwrap_or(unmeasured);
        let gpus = model.map(ModelSize::known_gpus).unwrap_or_default();
        if let Some(measurement) = &mut self.measurement {
            measurement.free(memory, gpus);
        }
    }

    /// A load has ended. Returns the records of the loads that are measured now.
    pub(crate) fn end(&mut self, name: &str, ended: Ended) -> Vec<(Content, Record)> {
        let Some(mut measurement) = self.measurement.take() else { return Vec::new() };
        if let Some(place) = measurement.running.iter().position(|running| running == name) {
            measurement.running.swap_remove(place);
        }
        if ended.is_loaded {
            if let Some(model) = self.models.get_mut(name) {
                // The mean, as other loads or a cold cache may have slowed down one of them.
                let mean = |before: Duration| before / 2 + ended.took / 2;
                model.load_time = Some(model.load_time.map_or(ended.took, mean));
            }
            measurement.loaded.push((name.to_owned(), ended.known));
        }
        let mut shares = self.shares(&measurement, &ended.now).into_iter();
        if !measurement.running.is_empty() && measurement.loaded.len() < MOST {
            for ((name, known), share) in measurement.loaded.iter().zip(shares) {
                if let Some(model) = self.models.get_mut(name) {
                    model.count(known, share, ended.at);
                }
            }
            self.measurement = Some(measurement);
            return Vec::new();
        }
        let is_alone = measurement.began == 1;
        let mut records = Vec::new();
        for ((name, known), share) in measurement.loaded.into_iter().zip(shares.by_ref()) {
            let Some(model) = self.models.get_mut(&name) else { continue };
            let memory = model.measure(&known, share, is_alone, ended.at);
            let load_time = model.load_time.unwrap_or_default();
            let (gpus, measured) = (model.gpus.clone(), model.at);
            let record = Record { model: name, memory, gpus, load_time, measured };
            self.records.put(model.description.content.clone(), record.clone());
            records.push((model.description.content.clone(), record));
        }
        if !measurement.running.is_empty() {
            self.measurement = Some(Measurement::rest(measurement.running, ended.now, shares));
        }
        records
    }

    /// Divides what was added among the loads, in the order of [`Measurement::loads`].
    fn shares(&self, measurement: &Measurement, now: &Reading) -> Vec<Share> {
        let added = now.memory.plus(measurement.freed).since(measurement.before.memory);
        let has_ended = measurement.running.is_empty();
        let (mut servers, mut processes) = (Vec::new(), Vec::new());
        for (name, known) in measurement.loads() {
            let expected = self.expected(name);
            servers.push(Part { known: None, expected });
            // Unknown processes may belong to loads in progress.
            let is_possible = has_ended || known.is_none();
            let known = known.and_then(|known| known.processes);
            processes.push(Part { known, expected: if is_possible { expected } else { 0 } });
        }
        let memory = divide(added.server, &servers).into_iter().zip(divide(added.processes, &processes));
        let memory = memory.map(|(server, processes)| MemoryBytes { server, processes });
        let gpus = self.added_gpus(measurement, now);
        memory.zip(gpus).map(|(memory, gpus)| Share { memory, gpus }).collect()
    }

    /// The memory that each load added on each GPU.
    fn added_gpus(&self, measurement: &Measurement, now: &Reading) -> Vec<BTreeMap<Gpu, u64>> {
        let mut all = vec![BTreeMap::new(); measurement.loads().count()];
        for gpu in now.gpus.gpus() {
            let freed = measurement.freed_gpus.get(&gpu).copied().unwrap_or(0);
            let added = now.gpus.added(gpu, &measurement.before.gpus, freed);
            let parts = measurement.loads().map(|(name, known)| {
                let chosen = |model: &ModelSize| match model.description.chooses_gpus {
                    true => model.description.files.max(LEAST),
                    false => 0,
                };
                let expected = self.of_gpus(name).get(&gpu).copied();
                let expected = expected.or_else(|| self.models.get(name).map(chosen)).unwrap_or(0);
                Part { known: known.and_then(|known| known.gpu(gpu)), expected }
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
    /// Counts what a load has added, while others that overlap go on.
    fn count(&mut self, known: &Known, share: Share, at: u64) {
        let Share { memory, gpus } = share;
        let certain = |gpu: &Gpu| known.gpu(*gpu).is_some();
        self.measure_gpus(known, gpus.into_iter().filter(|(gpu, _)| certain(gpu)).collect(), false);
        match (&mut self.measured, known.processes) {
            (Some(measured), Some(processes)) => measured.processes = processes,
            (Some(_), None) => {}
            (None, _) => (self.so_far, self.at) = (Some(memory), at),
        }
    }

    /// Notes what a load took, and returns what counts from now on.
    fn measure(&mut self, known: &Known, share: Share, is_alone: bool, at: u64) -> MemoryBytes {
        let Share { memory: share, gpus } = share;
        let mut memory = match self.measured {
            Some(before) if !is_alone => before,
            // Halfway: the model may take less by now, or take memory that another one left behind.
            Some(before) if self.is_recorded && before.total() > share.total() => before.mean(share),
            Some(before) if before.total() >= share.total() => before,
            _ => share,
        };
        memory.processes = known.processes.unwrap_or(memory.processes);
        self.measure_gpus(known, gpus, is_alone);
        if self.measured.is_none() || is_alone || known.processes.is_some() {
            (self.is_recorded, self.at) = (false, at);
        }
        (self.measured, self.so_far) = (Some(memory), None);
        memory
    }

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
