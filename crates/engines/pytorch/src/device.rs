//! Where models run, and which of libtorch's libraries that takes.
//!
//! Loads nothing.

use nereid_backend_api::{InstanceKind, ModelConfig};
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::proto::model_instance_group::Kind;

/// The libraries in libtorch's folder that models on GPUs and torchvision may need, in the order in which they are loaded. Builds
/// for the CPU lack the first two.
pub(crate) const COMPANIONS: [&str; 3] = ["libc10_cuda.so", CUDA, "libtorch.so"];

/// The library with libtorch's operators for GPUs.
pub(crate) const CUDA: &str = "libtorch_cuda.so";

/// Where a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    Cpu,
    /// The GPU of this number.
    Gpu(i32),
    /// The devices in the file, where its parts were saved. Inputs are on the CPU.
    AsSaved,
}

impl Device {
    /// The device of an instance.
    pub(crate) fn of(kind: InstanceKind) -> Self {
        match kind {
            InstanceKind::Gpu(number) => Self::Gpu(number),
            InstanceKind::Model => Self::AsSaved,
            InstanceKind::Cpu => Self::Cpu,
        }
    }

    /// The devices of a model's instances.
    pub(crate) fn of_groups(config: &ModelConfig) -> Vec<Self> {
        let of_group = |group: &ModelInstanceGroup| match group.kind() {
            Kind::Gpu => group.gpus.iter().copied().map(Self::Gpu).collect(),
            Kind::Model => vec![Self::AsSaved],
            Kind::Cpu | Kind::Auto => vec![Self::Cpu],
        };
        config.instance_group.iter().flat_map(of_group).collect()
    }

    /// The shim's number for it.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Gpu(number) => number,
            Self::Cpu => -1,
            Self::AsSaved => -2,
        }
    }
}

#[cfg(test)]
mod tests {
    use nereid_testkit::normalised;

    use super::*;

    #[test]
    fn devices_are_those_of_the_instance_groups() {
        for (groups, expected) in [
            ("", &[Device::Cpu][..]),
            ("instance_group { kind: KIND_MODEL }", &[Device::AsSaved]),
            (
                "instance_group [ { kind: KIND_GPU gpus: [ 1, 0 ] count: 2 }, { kind: KIND_CPU } ]",
                &[Device::Gpu(1), Device::Gpu(0), Device::Cpu],
            ),
        ] {
            let config = normalised("m", &format!("backend: 'pytorch' {groups}"));
            assert_eq!(Device::of_groups(&config), expected, "{groups}");
        }
        assert_eq!(
            [InstanceKind::Gpu(3), InstanceKind::Cpu, InstanceKind::Model]
                .map(|kind| Device::of(kind).number()),
            [3, -1, -2]
        );
    }
}
