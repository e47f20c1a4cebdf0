//! The memory of each model: declared, measured when it was loaded, or estimated from its files.
//!
//! Models are loaded in parallel, and what a process takes is one number. So a measurement spans all loads that overlap: it begins
//! with the first and ends with the last, and what was added is divided among them by their expected sizes.

use std::collections::BTreeMap;

use crate::memory::MemoryBytes;

/// No model takes less: its threads, its configuration, its statistics.
const LEAST: u64 = 64 << 10;

/// How far memory may differ from files: a model may keep its weights in a mapped file, or unpack them.
const RATIO: std::ops::RangeInclusive<f64> = 0.25..=10.0;

/// The sizes of models in memory, and of those that were.
#[derive(Default)]
pub(crate) struct Sizes {
    models: BTreeMap<String, ModelSize>,
    measurement: Option<Measurement>,
}

#[derive(Clone, Copy, Debug, Default)]
struct ModelSize {
    declared: Option<u64>,
    measured: Option<MemoryBytes>,
    files: u64,
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
    /// Records what is known of a model before its load.
    pub(crate) fn describe(&mut self, name: &str, declared: Option<u64>, files: u64) {
        let model = self.models.entry(name.to_owned()).or_default();
        (model.declared, model.files) = (declared, files);
    }

    /// The memory that a model takes, or is expected to take.
    pub(crate) fn of(&self, name: &str) -> u64 {
        let model = self.models.get(name).copied().unwrap_or_default();
        if let Some(declared) = model.declared {
            return declared;
        }
        let least = ((model.files as f64 * RATIO.start()) as u64).max(LEAST);
        match model.measured {
            // Memory that another model left behind is taken without being counted.
            Some(measured) => measured.total().max(least),
            None => ((model.files as f64 * self.ratio()) as u64).max(least),
        }
    }

    /// The memory that was measured for a model.
    pub(crate) fn measured(&self, name: &str) -> Option<MemoryBytes> {
        self.models.get(name)?.measured
    }

    /// Memory by bytes of files, as measured so far.
    fn ratio(&self) -> f64 {
        let measured = self.models.values().filter_map(|model| Some((model.measured?.total(), model.files)));
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

    /// A load has ended. With the last one, what was added is divided.
    pub(crate) fn end(&mut self, name: &str, is_loaded: bool, now: MemoryBytes) {
        let Some(measurement) = &mut self.measurement else { return };
        measurement.running = measurement.running.saturating_sub(1);
        measurement.loaded.extend(is_loaded.then(|| name.to_owned()));
        if measurement.running > 0 {
            return;
        }
        let Some(Measurement { before, freed, loaded, began, .. }) = self.measurement.take() else { return };
        let now = MemoryBytes { server: now.server + freed, ..now };
        let added = now.since(before);
        let expected: Vec<_> = loaded.iter().map(|name| self.of(name)).collect();
        let whole: u64 = expected.iter().sum();
        for (name, expected) in loaded.iter().zip(expected) {
            let share = added.share(expected, whole);
            let Some(model) = self.models.get_mut(name) else { continue };
            model.measured = match model.measured {
                Some(before) if began > 1 => Some(before),
                Some(before) if before.total() >= share.total() => Some(before),
                _ => Some(share),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(bytes: u64) -> MemoryBytes {
        MemoryBytes { server: bytes, processes: 0 }
    }

    const MB: u64 = 1_000_000;

    #[test]
    fn a_declared_size_comes_before_a_measured_and_an_estimated_one() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.of("a"), LEAST);
        sizes.describe("a", None, 40 * MB);
        assert_eq!(sizes.of("a"), 40 * MB);
        sizes.begin(server(MB));
        sizes.end("a", true, MemoryBytes { server: 61 * MB, processes: 20 * MB });
        assert_eq!(sizes.of("a"), 80 * MB);
        assert_eq!(sizes.measured("a"), Some(MemoryBytes { server: 60 * MB, processes: 20 * MB }));
        // Models that were never loaded are expected to differ from their files as the others did.
        sizes.describe("b", None, 10 * MB);
        assert_eq!(sizes.of("b"), 20 * MB);
        sizes.describe("a", Some(7), 40 * MB);
        assert_eq!((sizes.of("a"), sizes.of("b")), (7, 20 * MB));
    }

    #[test]
    fn loads_that_overlap_share_what_was_added_by_their_expected_sizes() {
        let mut sizes = Sizes::default();
        for (name, files) in [("a", 10), ("b", 30), ("broken", 100)] {
            sizes.describe(name, None, files * MB);
        }
        sizes.begin(server(5 * MB));
        sizes.begin(server(6 * MB));
        sizes.begin(server(7 * MB));
        sizes.end("b", true, server(70 * MB));
        sizes.freed(4 * MB);
        sizes.end("broken", false, server(70 * MB));
        assert_eq!(sizes.measured("b"), None);
        sizes.end("a", true, server(81 * MB));
        assert_eq!((sizes.of("a"), sizes.of("b"), sizes.measured("broken")), (20 * MB, 60 * MB, None));
        // A load alone corrects the share, but memory that another model left behind does not.
        for (grown, expected) in [(50, 50), (3, 50), (60, 60)] {
            sizes.begin(server(100 * MB));
            sizes.end("a", true, server((100 + grown) * MB));
            assert_eq!(sizes.of("a"), expected * MB);
        }
    }

    #[test]
    fn a_load_that_took_no_new_memory_has_a_least_size() {
        let mut sizes = Sizes::default();
        sizes.describe("a", None, 40 * MB);
        sizes.begin(server(MB));
        sizes.end("a", true, server(MB));
        assert_eq!(sizes.of("a"), 10 * MB);
        sizes.end("a", true, server(MB));
    }
}
