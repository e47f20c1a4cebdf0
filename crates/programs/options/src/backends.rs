//! The options about configurations and backends: the same for serving and for checking.

use std::env;
use std::path::PathBuf;

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgAction, Args};
use nereid_assembly::{BackendSetting, BackendsConfig, GpusConfig, PlatformConfig};
use nereid_cuda::PoolSizes;
use nereid_repository::ReadOptions;

use super::gpu::DriverOptions;
use super::values::boolean;

/// Triton's default backend directory.
const BACKENDS: &str = "/opt/tritonserver/backends";

/// Options of model configurations and backends.
#[derive(Debug, Args)]
#[command(next_help_heading = "Configurations and backends")]
pub(crate) struct ConfigurationOptions {
    /// TOML file with options: `http-port = 8000`. A list sets an option several times. The command line overrides the
    /// environment (NEREID_HTTP_PORT), which overrides the file.
    #[arg(long, value_name = "FILE", help_heading = "General")]
    pub config_file: Option<PathBuf>,

    /// Do not complete configurations from the models' files; every model needs a complete one.
    #[arg(long)]
    pub disable_auto_complete_config: bool,

    /// Deprecated: true is --disable-auto-complete-config.
    #[arg(long, value_name = "BOOL", value_parser = boolean(), action = ArgAction::Set)]
    pub strict_model_config: Option<bool>,

    /// Read a model's configuration from configs/NAME.pbtxt in its folder, where that file exists.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub model_config_name: Option<String>,

    /// Folder with a subfolder for each installed backend. Default: the folder backends next to this program, or else
    /// /opt/tritonserver/backends.
    #[arg(long, value_name = "PATH")]
    pub backend_directory: Option<PathBuf>,

    /// Setting of a backend, or of all backends if none is named. May be given several times.
    #[arg(long, value_name = "[BACKEND,]SETTING=VALUE", value_parser = backend_setting, action = ArgAction::Append)]
    pub backend_config: Vec<BackendSetting>,

    #[command(flatten)]
    pub driver: DriverOptions,
}

impl ConfigurationOptions {
    /// How to read model folders.
    pub(crate) fn read_options(&self) -> ReadOptions {
        let strict = self.disable_auto_complete_config || self.strict_model_config == Some(true);
        ReadOptions {
            complete: !strict,
            config_name: self.model_config_name.clone(),
            ..ReadOptions::default()
        }
    }

    /// The folder with a folder for each installed backend.
    pub(crate) fn backend_directory(&self) -> PathBuf {
        self.backend_directory.clone().unwrap_or_else(default_backend_directory)
    }

    /// The platform: location of backends, GPUs, and memory pools of these sizes.
    pub(crate) fn platform(&self, pools: PoolSizes) -> PlatformConfig {
        PlatformConfig {
            backends: BackendsConfig {
                directory: self.backend_directory(),
                settings: self.backend_config.clone(),
                program: None,
            },
            gpus: GpusConfig {
                driver: self.driver.library(),
                min_compute_capability: self.driver.min_supported_compute_capability,
                pools,
                ..GpusConfig::default()
            },
        }
    }

    /// A warning if one of these options is deprecated.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match (self.strict_model_config, self.disable_auto_complete_config) {
            (None, _) => None,
            (Some(false), true) => {
                Some("--disable-auto-complete-config overrides the deprecated --strict-model-config=false")
            }
            (Some(true), _) => {
                Some("--strict-model-config has been deprecated: use --disable-auto-complete-config")
            }
            (Some(false), false) => Some(
                "--strict-model-config has been deprecated: configurations are completed unless \
                 --disable-auto-complete-config is given",
            ),
        }
    }
}

/// The backend directory, if no option names one: the folder `backends` next to this program, or else Triton's.
pub fn default_backend_directory() -> PathBuf {
    let next_to_program = || Some(env::current_exe().ok()?.parent()?.parent()?.join("backends"));
    next_to_program().filter(|folder| folder.is_dir()).unwrap_or_else(|| PathBuf::from(BACKENDS))
}

/// Triton's form: the backend up to the first comma, the setting up to the next equals sign, and the value.
fn backend_setting(text: &str) -> Result<BackendSetting, String> {
    let (backend, setting) = match text.split_once(',') {
        Some(("", _)) => return Err("the backend before the comma is missing".into()),
        Some((backend, setting)) => (Some(backend.to_owned()), setting),
        None => (None, text),
    };
    match setting.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok(BackendSetting { backend, key: key.to_owned(), value: value.to_owned() })
        }
        _ => Err("must be [BACKEND,]SETTING=VALUE".into()),
    }
}
