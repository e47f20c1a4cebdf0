//! Creates servers for the C interface.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nereid::Server;
use nereid_core::backend_api::{Result, block_on};
use nereid_cuda::Cuda;
use nereid_triton_host::{ApplicationLog, Embedded, Embedder, Settings};

/// Creates servers of the crate `nereid`.
pub(crate) struct Nereid;

impl Embedder for Nereid {
    fn start(&self, settings: Settings) -> Result<Arc<dyn Embedded>> {
        let log = ApplicationLog::get();
        let Settings { mut options, is_strict, listens } = settings;
        if !is_strict {
            options = with_effect(options);
        }
        let builder = Server::builder().with_log(log.control());
        let builder = options.into_iter().fold(builder, |builder, (name, value)| builder.option(name, value));
        let builder = if listens { builder.listen() } else { builder };
        Ok(Arc::new(ApplicationServer(block_on(builder.start())?)))
    }

    fn start_log(&self) {
        nereid_logging::start_for_applications();
    }
}

/// Removes options that the interface ignores but the command line refuses: startup models if all models are loaded,
/// and any in addition to `*`.
fn with_effect(mut options: Options) -> Options {
    let is =
        |wanted: (&str, &str), (name, value): &(Cow<'_, str>, String)| (&**name, value.as_str()) == wanted;
    let is_explicit = options.iter().any(|option| is(("model-control-mode", "explicit"), option));
    let loads_all = options.iter().any(|option| is(("load-model", "*"), option));
    options.retain(|(name, value)| *name != "load-model" || (is_explicit && (!loads_all || value == "*")));
    options
}

/// Names and values.
type Options = Vec<(Cow<'static, str>, String)>;

struct ApplicationServer(Server);

impl Embedded for ApplicationServer {
    fn server(&self) -> &Arc<nereid_core::Server> {
        self.0.core()
    }

    fn cuda(&self) -> Option<Arc<Cuda>> {
        self.0.cuda().cloned()
    }

    fn addresses(&self) -> Vec<(&'static str, String)> {
        self.0.addresses().map(|(protocol, address)| (protocol, address.to_string())).collect()
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
        block_on(self.0.register_repository(repository, &names))
    }

    fn unregister(&self, repository: PathBuf) -> Result<()> {
        self.0.unregister_repository(repository)
    }
}
