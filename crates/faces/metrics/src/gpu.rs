//! The machine's GPUs: their load, memory, power and energy.
//!
//! Formats only; [`nvml`](crate::nvml) reads the values.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::text::{Labels, Number, Text};

/// A GPU at one moment. Values that it does not report are left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The GPU's own identifier.
    pub uuid: String,
    /// Between 0 and 1.
    pub utilization: Option<f64>,
    /// In bytes.
    pub memory_total: Option<f64>,
    /// In bytes.
    pub memory_used: Option<f64>,
    /// In watts.
    pub power_usage: Option<f64>,
    /// In watts.
    pub power_limit: Option<f64>,
    /// In joules, since an unknown time in the past.
    pub energy: Option<f64>,
}

struct Family {
    name: &'static str,
    help: &'static str,
    value: fn(&Reading) -> Option<f64>,
}

const GAUGES: [Family; 5] = [
    Family {
        name: "nv_gpu_utilization",
        help: "GPU utilization, from 0 to 1",
        value: |reading| reading.utilization,
    },
    Family {
        name: "nv_gpu_memory_total_bytes",
        help: "GPU memory, in bytes",
        value: |reading| reading.memory_total,
    },
    Family {
        name: "nv_gpu_memory_used_bytes",
        help: "GPU memory in use, in bytes",
        value: |reading| reading.memory_used,
    },
    Family {
        name: "nv_gpu_power_usage",
        help: "GPU power usage, in watts",
        value: |reading| reading.power_usage,
    },
    Family {
        name: "nv_gpu_power_limit",
        help: "GPU power limit, in watts",
        value: |reading| reading.power_limit,
    },
];

const ENERGY: Family = Family {
    name: "nv_energy_consumption",
    help: "GPU energy consumption since the server started, in joules",
    value: |reading| reading.energy,
};

/// The names of all families here.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    GAUGES.iter().chain([&ENERGY]).map(|family| family.name)
}

/// Reads all GPUs.
pub(crate) type Sampler = Box<dyn FnMut() -> Vec<Reading> + Send>;

/// Reads the GPUs on demand, but not more often than an interval.
pub(crate) struct Gpus(Mutex<State>);

struct State {
    read: Sampler,
    interval: Duration,
    at: Instant,
    last: Vec<Reading>,
    /// Energy consumed by each GPU at its first reading.
    before: BTreeMap<String, f64>,
}

impl Gpus {
    /// Energy counts from now on.
    pub(crate) fn new(read: Sampler, interval: Duration) -> Self {
        let mut state =
            State { read, interval, at: Instant::now(), last: Vec::new(), before: BTreeMap::new() };
        state.refresh();
        Self(Mutex::new(state))
    }

    pub(crate) fn readings(&self) -> Vec<Reading> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.at.elapsed() >= state.interval {
            state.refresh();
        }
        state.last.clone()
    }
}

impl State {
    fn refresh(&mut self) {
        let mut readings = (self.read)();
        for reading in &mut readings {
            if let Some(energy) = &mut reading.energy {
                let before = self.before.entry(reading.uuid.clone()).or_insert(*energy);
                *energy = (*energy - *before).max(0.0);
            }
        }
        self.last = readings;
        self.at = Instant::now();
    }
}

pub(crate) fn write_gauges(text: &mut Text, readings: &[Reading]) {
    GAUGES.iter().for_each(|family| write(text, readings, family, "gauge"));
}

pub(crate) fn write_counters(text: &mut Text, readings: &[Reading]) {
    write(text, readings, &ENERGY, "counter");
}

fn write(text: &mut Text, readings: &[Reading], family: &Family, kind: &str) {
    let known: Vec<_> =
        readings.iter().filter_map(|reading| Some((&reading.uuid, (family.value)(reading)?))).collect();
    if !known.is_empty() {
        text.family(family.name, kind, family.help);
    }
    for (uuid, value) in known {
        text.sample(family.name, "", &Labels::default().and("gpu_uuid", uuid), Number(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(uuid: &str, energy: f64) -> Reading {
        Reading { uuid: uuid.into(), energy: Some(energy), ..Reading::default() }
    }

    #[test]
    fn values_that_a_gpu_does_not_report_are_left_out() {
        let full = Reading {
            uuid: "GPU-1".into(),
            utilization: Some(0.25),
            memory_total: Some(1024.0),
            memory_used: Some(512.0),
            power_usage: Some(70.5),
            power_limit: Some(700.0),
            energy: Some(3.5),
        };
        let readings = [full, Reading { utilization: Some(1.0), ..reading("GPU-2", 0.0) }];
        let mut text = Text::default();
        write_counters(&mut text, &readings);
        write_gauges(&mut text, &readings[1..]);
        let expected = "# HELP nv_energy_consumption GPU energy consumption since the server started, in joules\n\
                        # TYPE nv_energy_consumption counter\n\
                        nv_energy_consumption{gpu_uuid=\"GPU-1\"} 3.5\nnv_energy_consumption{gpu_uuid=\"GPU-2\"} 0\n\
                        # HELP nv_gpu_utilization GPU utilization, from 0 to 1\n# TYPE nv_gpu_utilization gauge\n\
                        nv_gpu_utilization{gpu_uuid=\"GPU-2\"} 1\n";
        assert_eq!(text.into_string(), expected);
        let mut text = Text::default();
        write_gauges(&mut text, &readings[..1]);
        let text = text.into_string();
        for line in
            ["memory_total_bytes{gpu_uuid=\"GPU-1\"} 1024\n", "memory_used_bytes{gpu_uuid=\"GPU-1\"} 512\n"]
        {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("power_usage{gpu_uuid=\"GPU-1\"} 70.5\n"), "{text}");
        assert!(text.contains("power_limit{gpu_uuid=\"GPU-1\"} 700\n"), "{text}");
        let mut none = Text::default();
        write_counters(&mut none, &[]);
        write_gauges(&mut none, &[]);
        assert_eq!(none.into_string(), "");
    }

    #[test]
    fn energy_counts_from_the_first_reading() {
        let mut readings = vec![
            vec![reading("a", 90.0), reading("b", 7.0)],
            vec![],
            vec![reading("a", 112.5)],
            vec![reading("a", 100.0), reading("b", 5.0)],
        ];
        let gpus = Gpus::new(Box::new(move || readings.pop().unwrap_or_default()), Duration::ZERO);
        let energies = || gpus.readings().into_iter().map(|it| it.energy.unwrap()).collect::<Vec<_>>();
        assert_eq!(energies(), [12.5]);
        assert_eq!(energies(), [0.0; 0]);
        assert_eq!(energies(), [0.0, 2.0]);
        let still = Gpus::new(Box::new(|| vec![reading("a", 1.0)]), Duration::from_secs(3600));
        let read = still.0.lock().unwrap().at;
        still.readings();
        assert_eq!(still.0.lock().unwrap().at, read);
    }
}
