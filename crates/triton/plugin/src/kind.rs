//! The kinds of plugins: the names of their libraries, their exports, and their imports.

use std::fmt;
use std::path::Path;

use crate::host::{self, HostFunction};
use crate::library::{Plugin, PluginError};

/// A kind of plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The kind's name in messages.
    name: &'static str,
    /// The prefix of its libraries' file names; the plugin's name and `.so` follow.
    prefix: &'static str,
    /// The functions that each of its libraries exports.
    required: &'static [&'static str],
    /// The host's function with which its libraries check the host's version of their API.
    api_version: &'static str,
}

impl Kind {
    /// Backends, as `tritonbackend.h` describes them.
    pub const BACKEND: Self = Self {
        name: "backend",
        prefix: "libtriton_",
        required: &["TRITONBACKEND_ModelInstanceExecute"],
        api_version: "TRITONBACKEND_ApiVersion",
    };

    /// Libraries that choose a model's batches: the batching part of `tritonbackend.h`. They have no names of their
    /// own, and a library without functions is ignored.
    pub const BATCHING_STRATEGY: Self =
        Self { name: "batching strategy", prefix: "batchstrategy", required: &[], ..Self::BACKEND };

    /// Repository agents, as `tritonrepoagent.h` describes them.
    pub const REPOSITORY_AGENT: Self = Self {
        name: "repository agent",
        prefix: "libtritonrepoagent_",
        required: &["TRITONREPOAGENT_ModelAction"],
        api_version: "TRITONREPOAGENT_ApiVersion",
    };

    /// Response caches, as `tritoncache.h` describes them.
    pub const CACHE: Self = Self {
        name: "cache",
        prefix: "libtritoncache_",
        required: &[
            "TRITONCACHE_CacheInitialize",
            "TRITONCACHE_CacheFinalize",
            "TRITONCACHE_CacheLookup",
            "TRITONCACHE_CacheInsert",
        ],
        api_version: "TRITONCACHE_ApiVersion",
    };

    /// The file name of a plugin's library: `libtriton_python.so` for the backend `python`.
    pub fn library_name(&self, plugin: &str) -> String {
        format!("{}{plugin}.so", self.prefix)
    }

    /// Loads a plugin's library for the life of the process, since it may have threads of its own.
    ///
    /// `host` are the functions that this program exports to it. The library's initializers run, so the file must be
    /// trusted like the program itself.
    ///
    /// # Errors
    /// The file is not a plugin of this kind, or the program does not export a function that it needs.
    pub fn load(&self, path: &Path, host: &[&[HostFunction]]) -> Result<Plugin, PluginError> {
        host::check(self.api_version, host)?;
        let plugin = Plugin::open(*self, path)?;
        self.required.iter().try_for_each(|name| plugin.check(name))?;
        Ok(plugin)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_name_consists_of_kind_and_plugin() {
        assert_eq!(Kind::BACKEND.library_name("python"), "libtriton_python.so");
        assert_eq!(Kind::BATCHING_STRATEGY.library_name(""), "batchstrategy.so");
        assert_eq!(Kind::REPOSITORY_AGENT.library_name("checksum"), "libtritonrepoagent_checksum.so");
        assert_eq!(Kind::CACHE.library_name("redis"), "libtritoncache_redis.so");
    }
}
