//! The last hour of the GPUs, in bounded memory.

use std::collections::VecDeque;

use serde::Serialize;

use crate::documents::rounded;
use crate::history::{INTERVAL, MAX_TICKS, forget, push};

/// Samples of all GPUs together, of 16 bytes each: an hour of eight GPUs. Of more, each is sampled less often.
pub(crate) const MAX_SAMPLES: usize = 8 * MAX_TICKS;
/// GPUs with samples at most. They have the names of hardware, so there are hardly ever others than at the start.
const MAX_GPUS: usize = 64;

/// A reading of a GPU. Values are `None` where the driver reports none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// The UUID.
    pub name: String,
    /// From 0 to 1.
    pub utilization: Option<f64>,
    /// In bytes.
    pub memory_used: Option<f64>,
    /// In bytes.
    pub memory_total: Option<f64>,
    /// In watts.
    pub power: Option<f64>,
}

/// A reading at a tick. Missing values are not numbers.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Seconds since the first tick.
    at: u32,
    /// Index of the GPU among the known ones.
    gpu: u16,
    /// In thousandths; `u16::MAX` if it is missing.
    utilization: u16,
    memory: f32,
    power: f32,
}

impl Sample {
    fn values(&self) -> (u32, f64, f64, f64) {
        let utilization = match self.utilization {
            u16::MAX => f64::NAN,
            thousandths => f64::from(thousandths) / 1000.0,
        };
        (self.at, utilization, rounded(self.memory), rounded(self.power))
    }
}

/// A GPU that was read at least once.
#[derive(Debug)]
struct Known {
    name: String,
    memory_total: Option<f64>,
}

/// The samples.
#[derive(Default)]
pub(crate) struct GpuHistory {
    ticks: usize,
    known: Vec<Known>,
    samples: VecDeque<Sample>,
}

impl GpuHistory {
    /// Adds a tick at this many seconds since the first one.
    pub(crate) fn tick(&mut self, at: u32, readings: &[Gpu]) {
        let stride = (readings.len() * MAX_TICKS).div_ceil(MAX_SAMPLES).max(1);
        let is_sampled = self.ticks.is_multiple_of(stride);
        self.ticks += 1;
        for reading in readings.iter().filter(|_| is_sampled) {
            let known = self.known.iter().position(|known| known.name == reading.name);
            let gpu = match known {
                Some(gpu) => gpu,
                None if self.known.len() == MAX_GPUS => continue,
                None => {
                    self.known.push(Known { name: reading.name.clone(), memory_total: None });
                    self.known.len() - 1
                }
            };
            if let Some(known) = self.known.get_mut(gpu) {
                known.memory_total = reading.memory_total;
            }
            let value = |value: Option<f64>| value.map_or(f32::NAN, |value| value as f32);
            let sample = Sample {
                at,
                gpu: u16::try_from(gpu).unwrap_or(u16::MAX),
                utilization: reading.utilization.map_or(u16::MAX, |share| (1000.0 * share).round() as u16),
                memory: value(reading.memory_used),
                power: value(reading.power),
            };
            push(&mut self.samples, MAX_SAMPLES, sample);
        }
        forget(&mut self.samples, at, |sample| sample.at);
    }

    /// The samples of each GPU after a time, oldest first.
    pub(crate) fn after(&self, at: u32) -> Vec<GpuSeries> {
        let series = |(number, known): (usize, &Known)| GpuSeries {
            name: known.name.clone(),
            memory_total: known.memory_total,
            samples: self
                .samples
                .iter()
                .filter(|sample| sample.at > at && usize::from(sample.gpu) == number)
                .map(Sample::values)
                .collect(),
        };
        self.known.iter().enumerate().map(series).collect()
    }

    /// Bytes that it takes at most.
    #[cfg(test)]
    pub(crate) fn byte_size(&self) -> usize {
        let names: usize = self.known.iter().map(|known| known.name.capacity()).sum();
        names + self.known.capacity() * size_of::<Known>() + self.samples.capacity() * size_of::<Sample>()
    }
}

/// The samples of a GPU: time in seconds since the first tick, share of the time in which it was busy, memory in use in bytes, and
/// power in watts. Values that the driver does not report are null.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct GpuSeries {
    name: String,
    memory_total: Option<f64>,
    samples: Vec<(u32, f64, f64, f64)>,
}

/// The GPUs.
#[derive(Serialize)]
pub(crate) struct GpusDocument {
    /// The time 0 of the samples, in milliseconds since the Unix epoch.
    pub zero: u64,
    /// Seconds between two ticks.
    pub interval: u64,
    /// The time of the last tick.
    pub at: u32,
    pub gpus: Vec<GpuSeries>,
}

impl GpusDocument {
    pub(crate) fn new(zero: u64, at: u32, gpus: Vec<GpuSeries>) -> Self {
        Self { zero, interval: INTERVAL.as_secs(), at, gpus }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(count: usize, busy: f64) -> Vec<Gpu> {
        let gpu = |number| Gpu {
            name: format!("GPU-{number:036}"),
            utilization: Some(busy),
            memory_used: Some(1024.0),
            memory_total: Some(4096.0),
            power: None,
        };
        (0..count).map(gpu).collect()
    }

    #[test]
    fn samples_are_those_of_each_gpu_after_a_time() {
        let mut history = GpuHistory::default();
        history.tick(0, &gpus(2, 0.25));
        history.tick(5, &gpus(1, 0.5));
        history.tick(10, &gpus(2, 1.0));
        let series = |at| {
            let series = history.after(at).into_iter();
            let samples = |one: GpuSeries| one.samples.iter().map(|sample| (sample.0, sample.1)).collect();
            series.map(samples).collect::<Vec<Vec<_>>>()
        };
        assert_eq!(series(0), [vec![(5, 0.5), (10, 1.0)], vec![(10, 1.0)]]);
        assert_eq!(series(10), [vec![], vec![]]);
        let json = serde_json::to_value(GpusDocument::new(7, 10, history.after(5))).unwrap();
        let expected = serde_json::json!({
            "name": format!("GPU-{:036}", 1), "memory_total": 4096.0, "samples": [[10, 1.0, 1024.0, null]]
        });
        assert_eq!((&json["gpus"][1], &json["zero"]), (&expected, &7.into()));
    }

    #[test]
    fn hour_of_any_number_of_gpus_is_kept_within_the_bounds() {
        for count in [0, 1, 8, 9, 64, 100] {
            let mut history = GpuHistory::default();
            for tick in 0..1500 {
                history.tick(tick * 5, &gpus(count, 0.5));
            }
            assert!(history.byte_size() < 100_000, "{count}: {}", history.byte_size());
            let series = history.after(0);
            assert_eq!(series.len(), count.min(MAX_GPUS));
            for one in series {
                let (first, last) = (one.samples[0].0, one.samples.last().unwrap().0);
                let stride = (count * MAX_TICKS).div_ceil(MAX_SAMPLES) as u32;
                assert!(first <= 1499 * 5 - 3600 + stride * 5, "{count}: {first}");
                assert!(last > 1499 * 5 - stride * 5, "{count}: {last}");
            }
        }
    }

    #[test]
    fn gpu_that_is_gone_loses_its_samples_after_an_hour() {
        let mut history = GpuHistory::default();
        history.tick(0, &gpus(1, 0.5));
        history.tick(5, &gpus(1, 0.5));
        for tick in 2..800 {
            history.tick(tick * 5, &[]);
        }
        assert_eq!(history.after(0).iter().map(|one| one.samples.len()).collect::<Vec<_>>(), [0]);
    }
}
