//! The rights of a process.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::cgroups::Cpus;

/// How much a process is confined. Each level includes the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Not at all.
    Off,
    /// No new privileges, and no access to the memory and the descriptors of other processes, nor signals to them: valid
    /// models do without.
    #[default]
    Basic,
    /// Files, network, processes and system calls are refused unless the policy allows them, as far as the kernel can.
    On,
    /// As `On`; a kernel that cannot enforce all of it is an error.
    Required,
}

/// The reach of a process's sockets. Each value includes the ones before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Network {
    /// Nothing: only pairs of connected sockets can be created.
    #[default]
    Off,
    /// Unix sockets.
    Local,
    /// Everything.
    On,
}

/// The rights of a process. Paths that do not exist when it starts are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// How much of this is enforced: files and network from [`Level::On`], everything else from [`Level::Basic`].
    pub level: Level,
    /// Files and folders to read and execute, in addition to the system's programs and libraries.
    pub readable: Vec<PathBuf>,
    /// Files and folders to read and write.
    pub writable: Vec<PathBuf>,
    /// Names of variables that the process inherits in addition to [common ones](crate) without secrets, from [`Level::On`] on.
    pub variables: Vec<String>,
    /// The reach of its sockets.
    pub network: Network,
    /// Whether the process uses GPUs: their devices stay open.
    pub gpus: bool,
    /// The most private memory of each process, in bytes, and the most memory of all that it starts together where the system has
    /// delegated control groups.
    pub memory: Option<u64>,
    /// How many processors the process and those that it starts may use together.
    pub cpus: Option<Cpus>,
}

/// An unknown word for a level or a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The words that are known.
    pub known: &'static str,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}", self.known)
    }
}

impl std::error::Error for ParseError {}

impl FromStr for Level {
    type Err = ParseError;

    fn from_str(word: &str) -> Result<Self, ParseError> {
        match word {
            "off" => Ok(Self::Off),
            "basic" => Ok(Self::Basic),
            "on" => Ok(Self::On),
            "required" => Ok(Self::Required),
            _ => Err(ParseError { known: "off, basic, on or required" }),
        }
    }
}

impl FromStr for Network {
    type Err = ParseError;

    fn from_str(word: &str) -> Result<Self, ParseError> {
        match word {
            "off" => Ok(Self::Off),
            "local" => Ok(Self::Local),
            "on" => Ok(Self::On),
            _ => Err(ParseError { known: "off, local or on" }),
        }
    }
}

impl Policy {
    /// Whether files, network and system calls are confined.
    pub fn is_closed(&self) -> bool {
        self.level >= Level::On
    }

    /// The sockets that the process may create. CUDA exchanges descriptors over Unix sockets.
    pub(crate) fn sockets(&self) -> Network {
        if self.gpus { self.network.max(Network::Local) } else { self.network }
    }
}
