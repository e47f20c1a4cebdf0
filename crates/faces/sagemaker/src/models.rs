//! The models of a multi-model endpoint, which SageMaker passes as folders under names of its choice.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use nereid_core::backend_api::{Error, ErrorCode, Result};
use nereid_core::{ModelId, ModelStatus, Overrides, Scope, ScopedName, Server, VersionState};
use nereid_http::{Call, Reply, RequestBody, reply};
use nereid_kserve::{Inference, KserveHttp};
use nereid_protocol::{Action, repository};
use serde::{Deserialize, Serialize};
use tokio::task::{JoinHandle, spawn, spawn_blocking};
use tokio::time::timeout;

use crate::{Folders, TARGET, memory, target};

/// Time limit of an unload. SageMaker waits 360 seconds for its reply.
const UNLOAD_TIMEOUT: Duration = Duration::from_secs(350);

/// Folders that no model is loaded from.
const NOT_MODELS: [&str; 3] = ["/dev", "/proc", "/sys"];

/// The models that were loaded through this face.
pub(crate) struct Models {
    kserve: KserveHttp,
    folders: Arc<dyn Folders>,
    /// By their names.
    loaded: Mutex<BTreeMap<String, LoadedModel>>,
}

/// A model that was loaded.
#[derive(Clone)]
struct LoadedModel {
    /// Folder of the model's repository.
    url: PathBuf,
    /// The archive that the load named, or else the model.
    target: String,
}

/// SageMaker's load request.
#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    model_name: String,
    #[serde(default)]
    url: PathBuf,
}

/// A model as SageMaker lists it.
#[derive(Serialize)]
struct ModelListing<'a> {
    #[serde(rename = "modelName")]
    name: &'a str,
    #[serde(rename = "modelUrl")]
    url: &'a Path,
}

#[derive(Serialize)]
struct List<'a> {
    models: Vec<ModelListing<'a>>,
}

impl Models {
    /// No model yet. `kserve` answers requests to those that come.
    pub(crate) fn new(kserve: KserveHttp, folders: Arc<dyn Folders>) -> Self {
        Self { kserve, folders, loaded: Mutex::default() }
    }

    /// Lists the ready models that the caller may see.
    pub(crate) fn list(&self, call: &Call<'_>) -> Reply {
        let (table, loaded) = (self.server().models(), self.lock());
        let ready = loaded.iter().filter(|(name, _)| table.find(call.scoped(name), None).is_ok());
        let ready = ready.filter(|(name, _)| call.may(Action::Index, Some(name)));
        let models = ready.map(|(name, model)| ModelListing { name, url: &model.url }).collect();
        listed(&List { models })
    }

    /// The source folder of a model.
    pub(crate) fn get(&self, name: &str, call: &Call<'_>) -> Reply {
        match self.visible(name, &call.scope) {
            Some(model) => listed(&ModelListing { name, url: &model.url }),
            None => reply::empty(StatusCode::NOT_FOUND),
        }
    }

    /// A model that was loaded, if the scope has it.
    fn visible(&self, name: &str, scope: &Scope) -> Option<LoadedModel> {
        let model = self.lock().get(name).cloned()?;
        let is_visible = || {
            let table = self.server().models();
            let mut namespaces = table.namespaces(name);
            namespaces.any(|namespace| {
                scope.contains(&ModelId { name: name.to_owned(), namespace: namespace.clone() })
            })
        };
        (scope.is_all() || is_visible()).then_some(model)
    }

    /// Checks that a model is loaded, from the archive that the request's headers name, if they name one. A client that may
    /// use one model must not reach another by a header.
    fn check(&self, name: &str, call: &Call<'_>) -> Result<(), Box<Reply>> {
        let Some(model) = self.visible(name, &call.scope) else {
            return Err(Box::new(reply::empty(StatusCode::NOT_FOUND)));
        };
        match target(call.headers) {
            Some(target) if target != model.target.as_bytes() => {
                let message = format!(
                    "model '{name}' was loaded from '{}', not from '{}', which {TARGET} names",
                    model.target,
                    String::from_utf8_lossy(target)
                );
                Err(Box::new(reply::error_text(StatusCode::BAD_REQUEST, &message)))
            }
            _ => Ok(()),
        }
    }

    /// Sends a request to a model.
    pub(crate) async fn invoke(&self, name: &str, call: &Call<'_>, body: RequestBody) -> Reply {
        if let Err(refused) = self.check(name, call) {
            return *refused;
        }
        self.kserve.infer(name, Inference::Infer, call, body).await
    }

    /// Loads a model.
    pub(crate) async fn load(self: Arc<Self>, call: &Call<'_>, mut body: RequestBody) -> Reply {
        let request = body.take_joined(body.len()).unwrap_or_default();
        let request: Request = match serde_json::from_slice(&request) {
            Ok(request) => request,
            Err(error) => {
                let message = format!("cannot parse the request to load a model: {error}");
                return reply::error_text(StatusCode::BAD_REQUEST, &message);
            }
        };
        // The request names a folder, whose files may be code.
        let permitted =
            [Action::Load, Action::LoadFiles].map(|action| call.permit(action, &request.model_name));
        if let Some(refused) = permitted.into_iter().find_map(Result::err) {
            return *refused;
        }
        let target = target(call.headers).map(String::from_utf8_lossy);
        let target = target.map_or_else(|| request.model_name.clone(), Cow::into_owned);
        tracing::info!("loading SageMaker's model '{target}'");
        // A separate task, so that a disconnecting client does not leave a half-registered model.
        let scope = call.scope.clone().and(call.scope_of(Action::LoadFiles));
        finished(spawn(async move { self.load_model(request, target, &scope).await })).await
    }

    async fn load_model(
        &self,
        Request { model_name: name, url }: Request,
        target: String,
        scope: &Scope,
    ) -> Result<()> {
        let (folders, model) = (Arc::clone(&self.folders), name.clone());
        let registered = spawn_blocking(move || folders.register(&checked(&url)?, &model));
        let path = registered.await.map_err(|panic| Error::internal(panic.to_string()))??;
        match repository::load(self.server(), ScopedName::new(&name, scope), Overrides::default()).await {
            Ok(()) => {
                self.lock().insert(name, LoadedModel { url: path, target });
                Ok(())
            }
            Err(error) => {
                self.folders.unregister(&path);
                Err(error)
            }
        }
    }

    /// Unloads a model, with an ensemble's members. Replies once its memory is free, or at the time limit.
    pub(crate) async fn unload(self: Arc<Self>, name: &str, call: &Call<'_>) -> Reply {
        if let Err(refused) = self.check(name, call) {
            return *refused;
        }
        tracing::info!("unloading SageMaker's model '{name}'");
        let (name, scope) = (name.to_owned(), call.scope.clone());
        finished(spawn(async move { self.unload_model(ScopedName::new(&name, &scope)).await })).await
    }

    async fn unload_model(&self, scoped: ScopedName<'_>) -> Result<()> {
        let name = scoped.name;
        repository::unload(self.server(), scoped, true).await?;
        if timeout(UNLOAD_TIMEOUT, ended(self.server(), name)).await.is_err() {
            tracing::warn!(
                "model '{name}' is still being unloaded after {} seconds",
                UNLOAD_TIMEOUT.as_secs()
            );
        }
        if let Some(model) = self.lock().remove(name) {
            self.folders.unregister(&model.url);
        }
        Ok(())
    }

    fn server(&self) -> &Arc<Server> {
        self.kserve.server()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, LoadedModel>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer that lists models, with the reference's content type.
fn listed(document: &impl Serialize) -> Reply {
    match serde_json::to_vec(document) {
        Ok(json) => reply::bytes(StatusCode::OK, "text/plain", json),
        Err(error) => reply::error_text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Returns when no version of a model is being unloaded.
async fn ended(server: &Server, name: &str) {
    let mut changes = server.changes();
    let is_of_unload = |status: ModelStatus| {
        status.id.name == name && matches!(status.state, VersionState::Unloading { .. })
    };
    let is_unloading = || server.models().index().any(is_of_unload);
    while is_unloading() && changes.next().await.is_some() {}
}

/// The reply to a load or an unload.
async fn finished(task: JoinHandle<Result<()>>) -> Reply {
    let outcome = task.await.unwrap_or_else(|panic| Err(Error::internal(panic.to_string())));
    match outcome {
        Ok(()) => reply::empty(StatusCode::OK),
        Err(error) if error.code() == ErrorCode::AlreadyExists => {
            reply::error_text(StatusCode::CONFLICT, error.message())
        }
        Err(error) => memory::reply(&error),
    }
}

/// Canonicalises the folder, if models may be loaded from it.
fn checked(url: &Path) -> Result<PathBuf> {
    let mut folder = PathBuf::new();
    for part in url.components() {
        match part {
            Component::ParentDir => {
                folder.pop();
            }
            Component::CurDir => {}
            part => folder.push(part),
        }
    }
    let real = folder.canonicalize();
    let places = [Some(&folder), real.as_ref().ok()];
    let is_refused = |folder: &PathBuf| NOT_MODELS.iter().any(|refused| folder.starts_with(refused));
    if !url.is_absolute() || places.into_iter().flatten().any(is_refused) {
        return Err(Error::invalid_arg(format!(
            "'url' is '{}'; expected the absolute path of a folder, not in /dev, /proc or /sys",
            url.display()
        )));
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_must_be_absolute_and_outside_system_folders() {
        for (url, expected) in [
            ("/opt/ml/models/abc/model", Some("/opt/ml/models/abc/model")),
            ("/opt/ml/./models//abc/../d/", Some("/opt/ml/models/d")),
            ("/device/m", Some("/device/m")),
            ("/proc/self/cwd", None),
            ("/opt/../dev/shm", None),
            ("/sys", None),
            ("/../../dev", None),
            ("opt/ml", None),
            ("../proc/self", None),
            ("", None),
        ] {
            assert_eq!(checked(Path::new(url)).ok().as_deref(), expected.map(Path::new), "{url}");
        }
    }
}
