//! Reads the GPUs through NVIDIA's management library (NVML), which comes with the driver and is loaded at start.

use nvml_wrapper::{Device, Nvml};

use crate::gpu::{Reading, Sampler};

/// Opens the library and returns a sampler that reads GPUs.
///
/// # Errors
/// The library cannot be loaded or does not work.
pub(crate) fn open() -> Result<Sampler, String> {
    let nvml = Nvml::init().map_err(|error| error.to_string())?;
    Ok(Box::new(move || readings(&nvml)))
}

fn readings(nvml: &Nvml) -> Vec<Reading> {
    let count = nvml.device_count().unwrap_or(0);
    // A GPU that fails is left out until it is back.
    (0..count).filter_map(|index| reading(&nvml.device_by_index(index).ok()?)).collect()
}

/// The library reports milliwatts, millijoules and percent.
fn reading(gpu: &Device<'_>) -> Option<Reading> {
    let memory = gpu.memory_info().ok();
    Some(Reading {
        uuid: gpu.uuid().ok()?,
        utilization: gpu.utilization_rates().ok().map(|rates| f64::from(rates.gpu) / 100.0),
        memory_total: memory.as_ref().map(|memory| memory.total as f64),
        memory_used: memory.as_ref().map(|memory| memory.used as f64),
        power_usage: gpu.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1000.0),
        power_limit: gpu.power_management_limit().ok().map(|milliwatts| f64::from(milliwatts) / 1000.0),
        energy: gpu.total_energy_consumption().ok().map(|millijoules| millijoules as f64 / 1000.0),
    })
}
