//! Memory usage of GPUs, as their driver counts it.

use std::collections::BTreeMap;

use crate::amounts::Gpu;
use crate::memory::descends;

/// Memory usage of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    /// Bytes in use by all processes.
    pub bytes: u64,
    /// Bytes per process ID. The driver's IDs may belong to another PID namespace than the server's.
    pub processes: BTreeMap<u32, u64>,
}

/// Reads the memory usage of each GPU. The result lacks GPUs that cannot be read.
pub type GpuReader = Box<dyn Fn() -> BTreeMap<i32, GpuUse> + Send + Sync>;

/// Memory usage of all GPUs at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuReading(BTreeMap<Gpu, Taken>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Taken {
    all: GpuUse,
    /// Bytes in use by the server and its descendants; `None` if the driver does not list them.
    own: Option<u64>,
}

impl GpuReading {
    pub(crate) fn of(gpus: BTreeMap<Gpu, GpuUse>) -> Self {
        let server = [std::process::id()];
        let taken = |all: GpuUse| Taken { own: all.of(&server), all };
        Self(gpus.into_iter().map(|(gpu, all)| (gpu, taken(all))).collect())
    }

    /// The GPUs that were read.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = Gpu> {
        self.0.keys().copied()
    }

    /// Bytes in use by these processes and their descendants; `None` if the driver uses the IDs of another PID namespace.
    pub(crate) fn of_processes(&self, processes: &[u32]) -> Option<BTreeMap<Gpu, u64>> {
        self.0.values().any(|taken| taken.own.is_some()).then(|| {
            let of_gpu = |(gpu, taken): (&Gpu, &Taken)| (*gpu, taken.all.of(processes).unwrap_or(0));
            self.0.iter().map(of_gpu).collect()
        })
    }

    /// Bytes that the server allocated on a GPU since `before`, given that it freed `freed` bytes. Includes the allocations of other
    /// programs if the driver does not list the server.
    pub(crate) fn added(&self, gpu: Gpu, before: &Self, freed: u64) -> u64 {
        let (Some(now), before) = (self.0.get(&gpu), before.0.get(&gpu)) else { return 0 };
        let (now, before) = match now.own {
            Some(own) => (own, before.and_then(|before| before.own).unwrap_or(0)),
            // The first reading of a GPU has nothing to compare with.
            None => (now.all.bytes, before.map_or(u64::MAX, |before| before.all.bytes)),
        };
        now.saturating_add(freed).saturating_sub(before)
    }
}

impl GpuUse {
    /// Bytes in use by these processes and their descendants; `None` if the driver does not list them.
    fn of(&self, processes: &[u32]) -> Option<u64> {
        let own = self.processes.iter().filter(|(process, _)| descends(**process, processes));
        own.map(|(_, bytes)| *bytes).reduce(u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ID of an unrelated process.
    const OTHER: u32 = u32::MAX;

    /// Process IDs and bytes.
    type Processes = [(u32, u64)];

    fn reading(gpus: &[(Gpu, u64, &Processes)]) -> GpuReading {
        let gpu_use =
            |bytes: u64, list: &Processes| GpuUse { bytes, processes: list.iter().copied().collect() };
        GpuReading::of(gpus.iter().map(|(gpu, bytes, list)| (*gpu, gpu_use(*bytes, list))).collect())
    }

    #[test]
    fn what_other_programs_take_counts_only_where_processes_are_not_known() {
        let own = std::process::id();
        let before = reading(&[(0, 100, &[(OTHER, 100)]), (1, 100, &[(OTHER, 50), (own, 50)]), (2, 5, &[])]);
        let now = reading(&[
            (0, 700, &[(OTHER, 400), (own, 300)]),
            (1, 500, &[(OTHER, 400), (own, 90)]),
            (2, 45, &[(OTHER, 45)]),
            (3, 900, &[(OTHER, 900)]),
            (4, 900, &[(own, 30)]),
        ]);
        for (gpu, freed, expected) in
            [(0, 0, 300), (1, 0, 40), (1, 7, 47), (2, 0, 40), (2, 3, 43), (3, 9, 0), (4, 0, 30), (5, 8, 0)]
        {
            assert_eq!(now.added(gpu, &before, freed), expected, "GPU {gpu}");
        }
        // The server has left the GPU.
        assert_eq!(before.added(0, &now, 300), 0);
        assert_eq!(now.gpus().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn processes_of_a_model_are_known_by_their_numbers_or_not_at_all() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let known = reading(&[(0, 9, &[(own, 1), (child.id(), 5), (OTHER, 3)]), (1, 9, &[(OTHER, 9)])]);
        assert_eq!(known.of_processes(&[child.id()]), Some([(0, 5), (1, 0)].into()));
        assert_eq!(known.of_processes(&[own]), Some([(0, 6), (1, 0)].into()));
        assert_eq!(known.of_processes(&[]), Some([(0, 0), (1, 0)].into()));
        let hidden = reading(&[(0, 9, &[(OTHER, 3)]), (1, 9, &[])]);
        assert_eq!(hidden.of_processes(&[child.id()]), None);
        assert_eq!(reading(&[]).of_processes(&[own]), None);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
