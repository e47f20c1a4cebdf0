//! Makes servers for the C interface.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nereid::Server;
use nereid_core::backend_api::Result;
use nereid_core::block_on;
use nereid_cuda::Cuda;
use nereid_triton_host::{ApplicationLog, Embedded, Embedder, Settings};

/// Makes servers of the crate `nereid`.
pub(crate) struct Nereid;

impl Embedder for Nereid {
    fn start(&self, settings: Settings) -> Result<Arc<dyn Embedded>> {
        let log = ApplicationLog::get();
        let settings = with_effect(settings).into_iter();
        let builder = Server::builder().with_log(log.control());
        let builder = settings.fold(builder, |builder, (name, value)| builder.option(name, value));
        Ok(Arc::new(Running(block_on(builder.start())?)))
    }
}

/// The settings without those that the interface passes over and the command line refuses: models to load at start where
/// all models are, and those beside `*`.
fn with_effect(mut settings: Settings) -> Settings {
    let is = |wanted: (&str, &str), (name, value): &(&str, String)| (*name, value.as_str()) == wanted;
    let is_explicit = settings.iter().any(|setting| is(("model-control-mode", "explicit"), setting));
    let loads_all = settings.iter().any(|setting| is(("load-model", "*"), setting));
    settings.retain(|(name, value)| *name != "load-model" || (is_explicit && (!loads_all || value == "*")));
    settings
}

struct Running(Server);

impl Embedded for Running {
    fn server(&self) -> &Arc<nereid_core::Server> {
        self.0.core()
    }

    fn cuda(&self) -> Option<Arc<Cuda>> {
        self.0.cuda().cloned()
    }

    fn metrics(&self) -> Result<String> {
        self.0.metrics()
    }

    fn stop(&self) -> Result<()> {
        block_on(self.0.stop())
    }

    fn set_exit_timeout(&self, timeout: Duration) {
        self.0.set_exit_timeout(timeout);
    }

    fn poll(&self) -> Result<()> {
        self.0.poll()
    }

    fn register(&self, repository: PathBuf, names: BTreeMap<String, String>) -> Result<()> {
        self.0.register_repository(repository, &names)
    }

    fn unregister(&self, repository: PathBuf) -> Result<()> {
        self.0.unregister_repository(repository)
    }
}
