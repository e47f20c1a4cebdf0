//! Checks of models by the engines of a machine, before a model is loaded.

use nereid_core::backend_api::{ModelContext, Result};

/// The engines of a machine. They load neither a library nor a model for these checks.
pub trait Engines {
    /// Checks that an engine for the model's backend is installed.
    ///
    /// # Errors
    /// The library to install.
    fn check_engine(&self, model: &ModelContext) -> Result<()>;

    /// Checks that the configuration lists what the engine cannot find out.
    ///
    /// # Errors
    /// The part that is missing.
    fn check_config(&self, model: &ModelContext) -> Result<()>;

    /// Checks the file of a version.
    ///
    /// # Errors
    /// The reason why the engine would refuse the file.
    fn check_file(&self, model: &ModelContext) -> Result<()>;
}
