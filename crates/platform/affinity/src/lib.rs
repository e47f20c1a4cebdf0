//! Affinity of a thread: its processors, and the NUMA node of its memory.
//!
//! A [`Placement`] is read from the settings that operators give a host policy, under the reference's names, and
//! applied to the calling thread. Threads that it starts afterwards inherit it. Knows nothing of instances, nor of how
//! policies are named.

mod memory;

use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

/// The setting that says which processors.
pub const CPU_CORES: &str = "cpu-cores";
/// The setting that says which node's memory.
pub const NUMA_NODE: &str = "numa-node";

/// The processors and the memory that a thread is to use; by default any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Numbers of processors; nothing leaves them to the system.
    cores: Option<Vec<usize>>,
    /// The number of a NUMA node; nothing leaves it to the system.
    node: Option<u32>,
}

/// A setting that says no placement.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingError {
    /// There is no such setting.
    #[error("there is no setting '{0}'; there are {NUMA_NODE} and {CPU_CORES}")]
    Unknown(String),
    /// The list of processors is malformed.
    #[error("{CPU_CORES} is '{0}'; expected ranges such as 0-3 or 0-3,8-11, with numbers below {most}", most = CpuSet::MAX_CPU)]
    Cores(String),
    /// The node is malformed.
    #[error("{NUMA_NODE} is '{0}'; expected a node number from 0 to {most}", most = memory::MOST_NODES - 1)]
    Node(String),
}

/// A placement that the system refuses.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// The processors: none of them is there, or none may be used.
    #[error("cannot run on processors {cores}: {source}")]
    Cores {
        /// Those that were asked for.
        cores: String,
        /// What the system says.
        source: io::Error,
    },
    /// The node: it is not there, or the process may not choose.
    #[error("cannot use the memory of NUMA node {node}: {source}")]
    Node {
        /// The one that was asked for.
        node: u32,
        /// What the system says.
        source: io::Error,
    },
}

impl Placement {
    /// Takes over a setting.
    ///
    /// # Errors
    /// It is not one of those above, or its value is not of its form.
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

    /// Whether it leaves everything to the system.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Places the calling thread.
    ///
    /// # Errors
    /// The system refuses it.
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
