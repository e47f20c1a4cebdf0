//! What is in use of the memory of GPUs, by NVIDIA's management library (NVML), which comes with the driver and is loaded at run time.
//!
//! The driver library itself knows it, too, but only once it has a context on the GPU, which takes memory there.

use std::collections::BTreeMap;

use nereid_cuda_driver::Cuda;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

/// Reads the memory in use of GPUs.
pub struct Usage {
    nvml: Nvml,
    /// The GPUs' numbers and addresses.
    gpus: Vec<(i32, String)>,
}

/// What is in use of a GPU's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes that all programs take.
    pub bytes: u64,
    /// Bytes that each process takes, by its number, as far as the driver tells.
    pub processes: BTreeMap<u32, u64>,
}

impl Usage {
    /// Opens the library, for these GPUs of the driver.
    ///
    /// # Errors
    /// The library cannot be loaded or does not work.
    pub fn open(cuda: &Cuda, numbers: &[i32]) -> Result<Self, String> {
        let nvml = Nvml::init().map_err(|error| error.to_string())?;
        let gpus = cuda.devices().filter(|gpu| numbers.contains(&gpu.number));
        let gpus = gpus.map(|gpu| (gpu.number, gpu.pci_address.clone())).collect();
        Ok(Self { nvml, gpus })
    }

    /// The GPUs by their numbers. One that fails is left out until it is back.
    pub fn read(&self) -> BTreeMap<i32, MemoryUse> {
        let read = |address: &str| memory_use(&self.nvml.device_by_pci_bus_id(address)?);
        let gpus = self.gpus.iter().filter_map(|(number, address)| {
            let read = read(address);
            let read =
                read.inspect_err(|error| tracing::debug!("cannot read the memory of GPU {number}: {error}"));
            Some((*number, read.ok()?))
        });
        gpus.collect()
    }
}

impl std::fmt::Debug for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Usage").field(&self.gpus).finish()
    }
}

fn memory_use(gpu: &Device<'_>) -> Result<MemoryUse, NvmlError> {
    let bytes = gpu.memory_info()?.used;
    // Some systems tell the memory of no process, or of none to other users.
    let mut processes = BTreeMap::new();
    for process in gpu.running_compute_processes().unwrap_or_default() {
        if let ProcessInfo { pid, used_gpu_memory: UsedGpuMemory::Used(bytes), .. } = process {
            *processes.entry(pid).or_default() += bytes;
        }
    }
    Ok(MemoryUse { bytes, processes })
}
