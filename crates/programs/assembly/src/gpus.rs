//! The machine's GPUs, from NVIDIA's driver; without its library, from its files.
//!
//! GPUs are numbered as CUDA numbers them: from 0, and only those in `CUDA_VISIBLE_DEVICES`, if it is set.

mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::{env, fs};

use nereid_core::GpuLimits;
use nereid_cuda::{Cuda, CudaError, DRIVER_LIBRARY, PoolSizes, Pools};
use nereid_residency::GpuReader;
use nereid_triton_host::LibraryOptions;

use self::usage::Usage;
use crate::error::StartError;

/// Has a folder for each GPU.
const DRIVER: &str = "/proc/driver/nvidia/gpus";
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Which GPUs are used, and how much of their memory is reserved.
#[derive(Clone, Debug)]
pub struct GpusConfig {
    /// NVIDIA's driver library.
    pub driver: DriverLibrary,
    /// The lowest compute capability of a usable GPU.
    pub min_compute_capability: f64,
    /// Sizes of the memory pools for backends.
    pub pools: PoolSizes,
    /// The share of a GPU's memory, from 0 to 1, above which no model is loaded onto it.
    pub load_limits: BTreeMap<i32, f64>,
}

impl Default for GpusConfig {
    fn default() -> Self {
        Self {
            driver: DriverLibrary::default(),
            min_compute_capability: LibraryOptions::MIN_COMPUTE_CAPABILITY,
            pools: PoolSizes::default(),
            load_limits: BTreeMap::new(),
        }
    }
}

/// The location of NVIDIA's driver library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DriverLibrary {
    /// In the system loader's search path; without one, no GPU memory is used.
    #[default]
    System,
    /// At this path, or under this name in the system loader's search path.
    At(String),
    /// The driver is not loaded: GPU memory is unavailable.
    Unused,
}

impl DriverLibrary {
    /// Name of the library for the dynamic loader; `None` if it is not loaded.
    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::System => Some(DRIVER_LIBRARY),
            Self::At(library) => Some(library),
            Self::Unused => None,
        }
    }
}

/// The GPUs that this process may use.
#[derive(Default)]
pub struct Gpus {
    /// The GPUs' numbers.
    pub numbers: Vec<i32>,
    /// Access to their memory, if the driver's library was loaded.
    pub cuda: Option<Arc<Cuda>>,
}

impl Gpus {
    /// The share of their memory above which no model is loaded. Without the driver, their use is unknown.
    pub(crate) fn limits(&self, limits: &BTreeMap<i32, f64>) -> GpuLimits {
        let Some(cuda) = self.cuda.clone() else { return GpuLimits::default() };
        GpuLimits::new(limits.clone(), move |gpu| {
            let used = cuda.memory_in_use(gpu);
            used.inspect_err(|error| tracing::warn!("cannot read the memory usage of GPU {gpu}: {error}"))
                .ok()
        })
    }

    /// Reads what is in use of their memory. Without the driver or its management library, nothing is known of it.
    pub(crate) fn memory_reader(&self) -> GpuReader {
        let Some(cuda) = self.cuda.as_ref().filter(|_| !self.numbers.is_empty()) else {
            return Box::new(BTreeMap::new);
        };
        match Usage::open(cuda, &self.numbers) {
            Ok(usage) => Box::new(move || usage.read()),
            Err(error) => {
                tracing::warn!("what models take of the memory of GPUs is not measured: {error}");
                Box::new(BTreeMap::new)
            }
        }
    }

    /// Finds the GPUs.
    ///
    /// # Errors
    /// The configured driver library cannot be loaded.
    pub(crate) fn find(config: &GpusConfig) -> Result<Self, StartError> {
        let Some(library) = config.driver.name() else {
            return Ok(Self { numbers: listed(), cuda: None });
        };
        match Cuda::open(library) {
            Ok(cuda) => {
                let numbers = capable(&cuda, config.min_compute_capability);
                Ok(Self { numbers, cuda: Some(cuda) })
            }
            Err(error @ CudaError::NotLoaded { .. }) if config.driver != DriverLibrary::System => {
                Err(StartError::Driver(error))
            }
            Err(error @ CudaError::NotLoaded { .. }) => {
                let numbers = listed();
                if !numbers.is_empty() {
                    tracing::warn!("{error}: the memory of GPUs cannot be used");
                }
                Ok(Self { numbers, cuda: None })
            }
            Err(error) => {
                tracing::warn!("no GPU is used: {error}");
                Ok(Self::default())
            }
        }
    }

    /// The pools of their memory for backends.
    pub(crate) fn pools(&self, sizes: &PoolSizes) -> Pools {
        self.cuda.as_ref().map_or_else(Pools::default, |cuda| Pools::new(cuda, &self.numbers, sizes))
    }
}

/// The numbers of the driver's GPUs of at least this compute capability.
fn capable(cuda: &Cuda, least: f64) -> Vec<i32> {
    let capable = cuda.devices().filter(|gpu| {
        let capability = f64::from(gpu.capability.major) + f64::from(gpu.capability.minor) / 10.0;
        let is_capable = capability >= least;
        let used = if is_capable { "used" } else { "not used: --min-supported-compute-capability is higher" };
        tracing::info!(
            "GPU {}, {} with compute capability {}, is {used}",
            gpu.number,
            gpu.name,
            gpu.capability
        );
        is_capable
    });
    capable.map(|gpu| gpu.number).collect()
}

/// The numbers of the GPUs that the file system lists.
fn listed() -> Vec<i32> {
    let visible = env::var_os(VISIBLE).map(|names| names.to_string_lossy().into_owned());
    let count = visible_count(&uuids(Path::new(DRIVER)), visible.as_deref());
    (0..).take(count).collect()
}

/// The UUID of each GPU, in the order of their addresses; empty if the driver does not report it.
fn uuids(driver: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(driver) else { return Vec::new() };
    // Sorted by address, because folders are unordered.
    let gpus: BTreeSet<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let uuid = |gpu: &Path| {
        let information = fs::read_to_string(gpu.join("information")).ok()?;
        let uuid = information.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?;
        Some(uuid.trim().to_owned())
    };
    gpus.iter().map(|gpu| uuid(gpu).unwrap_or_default()).collect()
}

/// Number of GPUs visible to CUDA: those listed before the first unknown or repeated name.
fn visible_count(uuids: &[String], visible: Option<&str>) -> usize {
    let Some(visible) = visible else { return uuids.len() };
    let mut seen = BTreeSet::new();
    let known = visible.split(',').map(str::trim).take_while(|name| {
        let gpu = match name.parse::<usize>() {
            Ok(number) => (number < uuids.len()).then(|| number.to_string()),
            // A partition of a GPU, which the driver does not list here.
            Err(_) if name.starts_with("MIG-") => (!uuids.is_empty()).then(|| (*name).to_owned()),
            Err(_) => {
                let mut found = uuids.iter().enumerate().filter(|(_, uuid)| uuid.starts_with(name));
                match (found.next(), found.next()) {
                    (Some((number, _)), None) if name.starts_with("GPU-") => Some(number.to_string()),
                    _ => None,
                }
            }
        };
        gpu.is_some_and(|gpu| seen.insert(gpu))
    });
    known.count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_counted_as_cuda_shows_them() {
        let uuids = ["GPU-aa11", "GPU-ab22", "GPU-cc33"].map(str::to_owned);
        let count = |visible| visible_count(&uuids, visible);
        assert_eq!(count(None), 3);
        for (visible, expected) in [
            ("", 0),
            ("-1", 0),
            ("NoDevFiles", 0),
            ("0", 1),
            ("2, 0", 2),
            ("0,1,2", 3),
            ("0,3,1", 1),
            ("1,1", 1),
            ("GPU-aa,GPU-c", 2),
            ("GPU-a", 0),
            ("GPU-cc33,2", 1),
            ("MIG-x,MIG-y", 2),
        ] {
            assert_eq!(count(Some(visible)), expected, "{visible}");
            assert_eq!(visible_count(&[], Some(visible)), 0, "{visible}");
        }
    }

    #[test]
    fn the_driver_shows_each_gpu_in_a_folder() {
        let driver = tempfile::tempdir().unwrap();
        for (address, text) in [
            ("0000:4b:00.0", "Model: \t Some GPU\nGPU UUID: \t GPU-2\nDevice Minor: \t 1\n"),
            ("0000:1a:00.0", "Model: \t Some GPU\nGPU UUID: \t GPU-1\nDevice Minor: \t 0\n"),
        ] {
            fs::create_dir(driver.path().join(address)).unwrap();
            fs::write(driver.path().join(address).join("information"), text).unwrap();
        }
        fs::create_dir(driver.path().join("0000:9a:00.0")).unwrap();
        assert_eq!(uuids(driver.path()), ["GPU-1", "GPU-2", ""]);
        assert_eq!(uuids(&driver.path().join("nothing")), [""; 0]);
    }
}
