//! Amazon SageMaker, for endpoints of one model and of many.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_core::backend_api::Result;
use nereid_http::TransportOptions;
use nereid_kserve::{HttpOptions, KserveHttp};
use nereid_net::listener::Listener;
use nereid_repository::Repositories;
use nereid_sagemaker::{Folders, SageMakerOptions};

use super::{Endpoint, Face, FaceContext, Serving};

/// Amazon SageMaker, for endpoints of one model and of many.
#[derive(Clone, Debug)]
pub struct SageMaker {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// The face itself.
    pub options: SageMakerOptions,
    /// Options of the underlying KServe face. Its `regions`, `log` and `load_reports` are the server's.
    pub http: HttpOptions,
}

impl Face for SageMaker {
    fn protocol(&self) -> &'static str {
        "SageMaker"
    }

    fn service(&self) -> &'static str {
        "Sagemaker HTTPService"
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving {
        // The platform is on another machine, and names the folders of the models that it loads.
        let context = FaceContext { wary: false, ..context };
        let (http, end) = (context.http_options(self.http), context.http_end());
        let kserve = KserveHttp::new(context.server, http);
        let folders = Arc::new(FoldersOf(context.source));
        let face = nereid_sagemaker::SageMaker::new(kserve, self.options, folders);
        Box::pin(nereid_http::serve(listener, face, TransportOptions::default(), end))
    }
}

/// The server's repositories, to which SageMaker adds its own.
struct FoldersOf(Repositories);

impl Folders for FoldersOf {
    fn register(&self, folder: &Path, name: &str) -> Result<PathBuf> {
        self.0.register(folder, name)
    }

    fn unregister(&self, path: &Path) {
        self.0.unregister(path);
    }
}
