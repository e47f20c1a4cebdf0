//! Affinity of a thread: its CPU cores, and the NUMA node of its memory.
//!
//! A [`Placement`] is parsed from the operator's settings for a host policy, under the reference's names, and applied
//! to the calling thread. Threads started by it afterwards inherit it. Knows neither instances nor the names of
//! policies.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod memory;

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// The setting for the CPU cores.
pub const CPU_CORES: &str = "cpu-cores";
/// The setting for the NUMA node.
pub const NUMA_NODE: &str = "numa-node";

/// The CPU cores and memory for a thread; by default any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Core numbers; `None`: chosen by the OS.
    cores: Option<Vec<usize>>,
    /// NUMA node; `None`: chosen by the OS.
    node: Option<u32>,
}

/// An invalid placement setting.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingError {
    /// The setting is unknown.
    #[error("unknown setting '{0}' (available: {NUMA_NODE}, {CPU_CORES})")]
    Unknown(String),
    /// The list of cores is malformed.
    #[error("{CPU_CORES} is '{0}'; expected ranges such as 0-3 or 0-3,8-11, with numbers below {most}", most = CpuSet::MAX_CPU)]
    Cores(String),
    /// The node number is malformed.
    #[error("{NUMA_NODE} is '{0}'; expected a node number from 0 to {most}", most = memory::MOST_NODES - 1)]
    Node(String),
}

/// A placement that the OS refuses.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// None of the cores exists, or the process may not use them.
    #[error("cannot run on processors {cores}: {source}")]
    Cores {
        /// The requested cores.
        cores: String,
        /// The OS error.
        source: io::Error,
    },
    /// The node does not exist, or the process may not choose one.
    #[error("cannot use the memory of NUMA node {node}: {source}")]
    Node {
        /// The requested node.
        node: u32,
        /// The OS error.
        source: io::Error,
    },
}

impl Placement {
    /// Applies a setting.
    ///
    /// # Errors
    /// The setting is unknown, or its value is malformed.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        match name {
            CPU_CORES => {
                self.cores = Some(cores(value).ok_or_else(|| SettingError::Cores(value.to_owned()))?);
            }
            NUMA_NODE => {
                let node = value.parse().ok().filter(|node| *node < memory::MOST_NODES);
                self.node = Some(node.ok_or_else(|| SettingError::Node(value.to_owned()))?);
            }
            _ => return Err(SettingError::Unknown(name.to_owned())),
        }
        Ok(())
    }

    /// Whether everything is left to the OS.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Places the calling thread.
    ///
    /// # Errors
    /// The OS refuses the placement.
    pub fn apply(&self) -> Result<(), PlacementError> {
        if let Some(cores) = &self.cores {
            let mut set = CpuSet::new();
            cores.iter().for_each(|core| set.set(*core));
            sched_setaffinity(None, &set).map_err(|error| PlacementError::Cores {
                cores: cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                source: error.into(),
            })?;
        }
        if let Some(node) = self.node {
            memory::bind(node).map_err(|source| PlacementError::Node { node, source })?;
        }
        Ok(())
    }
}

/// The numbers in ranges such as `0-3,8-11`.
fn cores(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-')?;
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests;
