//! Memory usage of GPUs, from NVIDIA's management library (NVML), which comes with the driver and is loaded at run time.
//!
//! The driver library itself knows it, too, but only once it has a context on the GPU, which takes memory there.

use std::collections::BTreeMap;

use nereid_cuda::Cuda;
use nereid_residency::GpuUse;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

/// Reads the memory usage of GPUs.
pub(crate) struct Usage {
    nvml: Nvml,
    /// The GPUs' numbers and addresses.
    gpus: Vec<(i32, String)>,
}

impl Usage {
    /// Opens the library, for these GPUs of the driver.
    ///
    /// # Errors
    /// The library cannot be loaded or does not work.
    pub(crate) fn open(cuda: &Cuda, numbers: &[i32]) -> Result<Self, String> {
        let nvml = Nvml::init().map_err(|error| error.to_string())?;
        let gpus = cuda.devices().filter(|gpu| numbers.contains(&gpu.number));
        let gpus = gpus.map(|gpu| (gpu.number, gpu.pci_address.clone())).collect();
        Ok(Self { nvml, gpus })
    }

    /// The GPUs by their numbers. One that fails is left out until it is back.
    pub(crate) fn read(&self) -> BTreeMap<i32, GpuUse> {
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

fn memory_use(gpu: &Device<'_>) -> Result<GpuUse, NvmlError> {
    let bytes = gpu.memory_info()?.used;
    // The driver may list no processes, or none of other users.
    let mut processes = BTreeMap::new();
    for process in gpu.running_compute_processes().unwrap_or_default() {
        if let ProcessInfo { pid, used_gpu_memory: UsedGpuMemory::Used(bytes), .. } = process {
            *processes.entry(pid).or_default() += bytes;
        }
    }
    Ok(GpuUse { bytes, processes })
}
