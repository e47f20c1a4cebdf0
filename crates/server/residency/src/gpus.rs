//! What is in use of the memory of GPUs, as their driver counts it.

use std::collections::BTreeMap;

use crate::amounts::Gpu;
use crate::memory::descends;

/// What is in use of a GPU's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuUse {
    /// Bytes that all programs take.
    pub bytes: u64,
    /// Bytes that each process takes, by its number. In a container, the driver may know the processes by other numbers than they do.
    pub processes: BTreeMap<u32, u64>,
}

/// Reads what is in use of each GPU; GPUs that cannot be read are left out.
pub type GpuReader = Box<dyn Fn() -> BTreeMap<i32, GpuUse> + Send + Sync>;

/// What is in use of each GPU at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuReading(BTreeMap<Gpu, Taken>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Taken {
    all: GpuUse,
    /// Bytes of the server and of the processes that it started; `None` if the driver lists none of them.
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

    /// What these processes take, and those that they started; `None` where processes are not known by their numbers.
    pub(crate) fn of_processes(&self, processes: &[u32]) -> Option<BTreeMap<Gpu, u64>> {
        self.0.values().any(|taken| taken.own.is_some()).then(|| {
            let of_gpu = |(gpu, taken): (&Gpu, &Taken)| (*gpu, taken.all.of(processes).unwrap_or(0));
            self.0.iter().map(of_gpu).collect()
        })
    }

    /// How much the server has added on a GPU since `before`, if `freed` was given back meanwhile. If the driver lists no process of the
    /// server, whatever was added counts.
    pub(crate) fn added(&self, gpu: Gpu, before: &Self, freed: u64) -> u64 {
        let (Some(now), before) = (self.0.get(&gpu), before.0.get(&gpu)) else { return 0 };
        let (now, before) = match now.own {
            Some(own) => (own, before.and_then(|before| before.own).unwrap_or(0)),
            // Not read before: nobody knows what was added.
            None => (now.all.bytes, before.map_or(u64::MAX, |before| before.all.bytes)),
        };
        now.saturating_add(freed).saturating_sub(before)
    }
}

impl GpuUse {
    /// What these processes take, and those that they started; `None` if none of them is listed.
    fn of(&self, processes: &[u32]) -> Option<u64> {
        let own = self.processes.iter().filter(|(process, _)| descends(**process, processes));
        own.map(|(_, bytes)| *bytes).reduce(u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process of nobody here.
    const OTHER: u32 = u32::MAX;

    fn reading(gpus: &[(Gpu, u64, &[(u32, u64)])]) -> GpuReading {
        let gpu_use =
            |bytes: u64, list: &[(u32, u64)]| GpuUse { bytes, processes: list.iter().copied().collect() };
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
