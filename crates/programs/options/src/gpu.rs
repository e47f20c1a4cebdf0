//! The options about GPUs: which are used, and how much memory backends may borrow.

use std::collections::BTreeMap;

use clap::{ArgAction, Args};
use nereid_assembly::DriverLibrary;
use nereid_cuda::PoolSizes;
use nereid_triton_host::LibraryOptions;

use super::values::{boolean, byte_size};
use super::without_effect;

/// Which GPUs are used: the same for serving and for checking.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "GPUs")]
pub(crate) struct DriverOptions {
    /// NVIDIA's driver library, as a path or a name for the dynamic loader; empty to use no GPU memory. Default:
    /// libcuda.so.1, if it is installed.
    #[arg(long, value_name = "PATH")]
    pub cuda_driver_library: Option<String>,

    /// Minimum compute capability of the GPUs to use.
    #[arg(long, value_name = "VERSION", default_value_t = LibraryOptions::MIN_COMPUTE_CAPABILITY, value_parser = capability)]
    pub min_supported_compute_capability: f64,
}

impl DriverOptions {
    /// The library to load.
    pub(crate) fn library(&self) -> DriverLibrary {
        match &self.cuda_driver_library {
            None => DriverLibrary::System,
            Some(library) if library.is_empty() => DriverLibrary::Unused,
            Some(library) => DriverLibrary::At(library.clone()),
        }
    }
}

/// Sizes of the memory pools for backends.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "GPUs")]
pub(crate) struct PoolOptions {
    /// Bytes of pinned host memory that backends may borrow, if there is a GPU; 0 for none.
    #[arg(long, value_name = "BYTES", default_value_t = PoolSizes::PINNED, value_parser = byte_size())]
    pub pinned_memory_pool_byte_size: u64,

    /// Bytes of a GPU's memory that backends may borrow; 0 for none. May be given several times; the last value for a
    /// GPU counts. Default: 67108864 of each GPU.
    #[arg(long, value_name = "GPU:BYTES", value_parser = gpu_bytes, action = ArgAction::Append)]
    pub cuda_memory_pool_byte_size: Vec<(i32, u64)>,
}

impl PoolOptions {
    /// The sizes as the pools expect them.
    pub(crate) fn sizes(&self) -> PoolSizes {
        PoolSizes {
            pinned: self.pinned_memory_pool_byte_size,
            devices: self.cuda_memory_pool_byte_size.iter().copied().collect(),
        }
    }
}

/// Options of GPUs.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "GPUs")]
pub(crate) struct DeviceOptions {
    /// Accepted, without effect: the server never accesses one GPU's memory from another, and backends may enable peer
    /// access themselves.
    #[arg(long, value_name = "BOOL", value_parser = boolean(), action = ArgAction::Set)]
    enable_peer_access: Option<bool>,

    /// Bytes of address space for each implicit state that grows, on a GPU. Accepted, without effect: states grow without
    /// it. May be given several times.
    #[arg(long, value_name = "GPU:BYTES", value_parser = gpu_bytes, action = ArgAction::Append)]
    cuda_virtual_address_size: Vec<(i32, u64)>,

    /// Refuse to load models onto a GPU with more than this fraction of its memory in use. May be given several times;
    /// the last value for a GPU counts.
    #[arg(long, value_name = "GPU:FRACTION", value_parser = load_limit, action = ArgAction::Append)]
    model_load_gpu_limit: Vec<(i32, f64)>,
}

impl DeviceOptions {
    /// The share of a GPU's memory above which no model is loaded onto it, by GPU.
    pub(super) fn load_limits(&self) -> BTreeMap<i32, f64> {
        self.model_load_gpu_limit.iter().copied().collect()
    }

    /// Warnings about given options that have no effect.
    pub(super) fn advice(&self) -> impl Iterator<Item = String> {
        let access = without_effect(
            "no GPU reads the memory of another, and backends may let theirs do so by themselves",
            [(self.enable_peer_access == Some(true), "--enable-peer-access")],
        );
        let states = without_effect(
            "no address space is set apart for states",
            [(!self.cuda_virtual_address_size.is_empty(), "--cuda-virtual-address-size")],
        );
        access.chain(states)
    }
}

fn capability(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "must be a number such as 7.5".into())
}

/// Reads a number of bytes of a GPU.
pub(super) fn gpu_bytes(text: &str) -> Result<(i32, u64), String> {
    let form = "must be GPU:BYTES, such as 0:67108864";
    let (gpu, size) = text.split_once(':').ok_or(form)?;
    let gpu = gpu.parse().ok().filter(|gpu: &i32| *gpu >= 0);
    let gpu = gpu.ok_or_else(|| format!("the GPU is not a non-negative integer; {form}"))?;
    let size = size.parse().map_err(|_| format!("the size is not a non-negative integer; {form}"))?;
    Ok((gpu, size))
}

fn load_limit(text: &str) -> Result<(i32, f64), String> {
    let limit = text.split_once(':').and_then(|(gpu, limit)| Some((gpu.parse().ok()?, limit.parse().ok()?)));
    let limit = limit.filter(|(gpu, limit)| *gpu >= 0 && (0.0..=1.0).contains(limit));
    limit.ok_or_else(|| "must be GPU:FRACTION with a fraction from 0 to 1, such as 0:0.8".into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Both {
        #[command(flatten)]
        driver: DriverOptions,
        #[command(flatten)]
        pools: PoolOptions,
        #[command(flatten)]
        devices: DeviceOptions,
    }

    fn parsed(arguments: &[&str]) -> Result<Both, clap::Error> {
        Both::try_parse_from(["nereid"].iter().chain(arguments))
    }

    #[test]
    fn defaults_match_the_reference() {
        let Both { driver, pools, devices } = parsed(&[]).unwrap();
        assert_eq!(driver.library(), DriverLibrary::System);
        assert!((driver.min_supported_compute_capability - 6.0).abs() < f64::EPSILON);
        assert_eq!(pools.sizes(), PoolSizes { pinned: 268_435_456, devices: [].into() });
        assert_eq!(devices.advice().count(), 0);
    }

    #[test]
    fn options_without_effect_are_reported() {
        for (argument, reported) in [
            ("--enable-peer-access=true", Some("--enable-peer-access has no effect: ")),
            // Peer access is never enabled, so no warning.
            ("--enable-peer-access=False", None),
            ("--cuda-virtual-address-size=0:1048576", Some("--cuda-virtual-address-size has no effect: ")),
            ("--model-load-gpu-limit=0:0.5", None),
        ] {
            let advice: Vec<_> = parsed(&[argument]).unwrap().devices.advice().collect();
            assert_eq!(advice.len(), usize::from(reported.is_some()), "{argument}: {advice:?}");
            assert!(advice.iter().all(|line| line.starts_with(reported.unwrap())), "{advice:?}");
        }
    }

    #[test]
    fn last_limit_of_a_gpu_wins() {
        let flags = ["0:0.5", "1:1", "0:0"].map(|limit| format!("--model-load-gpu-limit={limit}"));
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        assert_eq!(parsed(&flags).unwrap().devices.load_limits(), [(0, 0.0), (1, 1.0)].into());
    }

    #[test]
    fn last_pool_size_of_a_gpu_wins() {
        let flags = ["0:1", "1:2", "0:3"].map(|size| format!("--cuda-memory-pool-byte-size={size}"));
        let flags: Vec<_> = flags.iter().map(String::as_str).collect();
        assert_eq!(parsed(&flags).unwrap().pools.sizes().devices, [(0, 3), (1, 2)].into());
    }

    #[test]
    fn driver_library_may_be_named_or_disabled() {
        let named = parsed(&["--cuda-driver-library=/somewhere/libcuda.so"]).unwrap().driver;
        assert_eq!(named.library(), DriverLibrary::At("/somewhere/libcuda.so".into()));
        assert_eq!(parsed(&["--cuda-driver-library="]).unwrap().driver.library(), DriverLibrary::Unused);
    }

    #[test]
    fn malformed_gpu_options_are_refused() {
        for flag in [
            "--cuda-memory-pool-byte-size=0",
            "--cuda-memory-pool-byte-size=:1",
            "--cuda-memory-pool-byte-size=-1:1",
            "--cuda-memory-pool-byte-size=0:-1",
            "--cuda-memory-pool-byte-size=0:1:2",
            "--cuda-memory-pool-byte-size=0:18446744073709551616",
            "--pinned-memory-pool-byte-size=-1",
            "--pinned-memory-pool-byte-size=1M",
            "--min-supported-compute-capability=x",
            "--min-supported-compute-capability=NaN",
            "--min-supported-compute-capability=-1",
            "--enable-peer-access=yes",
            "--cuda-virtual-address-size=0",
            "--cuda-virtual-address-size=x:1",
            "--cuda-virtual-address-size=0:x",
            "--model-load-gpu-limit=0",
            "--model-load-gpu-limit=x:0.5",
            "--model-load-gpu-limit=0:x",
            "--model-load-gpu-limit=-1:0.5",
            "--model-load-gpu-limit=0:1.5",
            "--model-load-gpu-limit=0:NaN",
            "--model-load-gpu-limit=0:-1",
        ] {
            assert!(parsed(&[flag]).is_err(), "{flag}");
        }
    }
}
