//! Faces: an address with a protocol that answers there.
//!
//! A new face is one more type that implements [`Face`], in its own file.

mod grpc;
mod http;
mod metrics;
mod sagemaker;
mod vertex_ai;

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use nereid_access::Guard;
use nereid_console::{Advisor, ClientChanges};
use nereid_core::Server;
use nereid_http::End;
use nereid_kserve::HttpOptions;
use nereid_load_report::LoadReports;
use nereid_metrics::Exposition;
use nereid_net::listener::{Address, BoundAddress, Connections, Listener, LocalAddress, Tls, TlsFiles};
use nereid_openai::AnswerStore;
use nereid_protocol::{Access, Authenticator, Authorizer, LogControl};
use nereid_repository::Repositories;
use nereid_shared_memory::Regions;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::grpc::Grpc;
pub use self::http::{ConsolePort, Http, OpenAiPort, OpenAiSettings};
pub use self::metrics::Metrics;
pub use self::sagemaker::SageMaker;
pub use self::vertex_ai::VertexAi;
use crate::error::StartError;

/// Completes when the last connection of a face is closed.
pub type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The parts of the server that faces use.
#[derive(Clone)]
pub struct FaceContext {
    /// The server.
    pub server: Arc<Server>,
    /// The shared memory that clients register, shared by all protocols.
    pub regions: Arc<Regions>,
    /// The settings of the log.
    pub log: Arc<LogControl>,
    /// The source of models.
    pub source: Repositories,
    /// Renders the server's metrics.
    pub exposition: Arc<Exposition>,
    /// The connections of all faces. Idle ones are closed when descriptors run out.
    pub connections: Connections,
    /// Where answers of OpenAI's interface are stored, by all faces with it. The first one makes it.
    pub answers: Arc<OnceLock<AnswerStore>>,
    /// Measures the server's load, if it is reported.
    pub load_reports: Option<LoadReports>,
    /// Decides about requests by the access policy, if there is one.
    pub guard: Option<Arc<Guard>>,
    /// Keeps who changed what, and records that and who was refused, if that is configured.
    pub changes: Arc<ClientChanges>,
    /// Finds out what would mend models that are not served.
    pub advisor: Arc<dyn Advisor>,
    /// Without a policy: clients of other machines have fewer rights.
    pub wary: bool,
    /// Cancelled when the server begins to stop. Requests in progress and open sequences continue; other activity may
    /// end.
    pub closing: CancellationToken,
    /// Cancelled when no request is in progress any more: the face accepts no new connections, and closes the open
    /// ones.
    pub shutdown: CancellationToken,
}

impl FaceContext {
    /// Completes the options of an HTTP face with the server's parts.
    fn http_options(&self, options: HttpOptions) -> HttpOptions {
        let Self { regions, log, load_reports, .. } = self.clone();
        HttpOptions { regions, log, load_reports, access: self.guarded(options.access), ..options }
    }

    /// Access to a face under the access policy, in addition to the face's own rules, recorded in the audit log.
    fn guarded(&self, access: Access) -> Access {
        let access = access.with_audit(Arc::clone(&self.changes) as _);
        match &self.guard {
            None if self.wary => access.wary(),
            None => access,
            Some(guard) => access
                .with_authenticator(Arc::clone(guard) as Arc<dyn Authenticator>)
                .with_authorizer(Arc::clone(guard) as Arc<dyn Authorizer>),
        }
    }

    /// When an HTTP face closes its connections. New connections belong to other servers; open ones may be needed to
    /// finish sequences.
    fn http_end(&self) -> End {
        End { closing: self.closing.clone(), shutdown: self.shutdown.clone() }
    }
}

/// A way for clients to reach the server.
pub trait Face: Send {
    /// The name of its protocol, for messages.
    fn protocol(&self) -> &'static str;

    /// The face's name in the log line with its address; Triton's wording where Triton has the face.
    fn service(&self) -> &'static str;

    /// The face's endpoint.
    fn endpoint(&self) -> &Endpoint;

    /// The names of its protocols for ALPN, where it uses TLS.
    fn protocols(&self) -> &'static [&'static str] {
        nereid_http::PROTOCOLS
    }

    /// Answers on `listener` until the context's shutdown, then lets requests in progress end. Called within a tokio
    /// runtime.
    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving;
}

/// Endpoint of a face.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Address to listen on.
    pub address: Address,
    /// The TLS files; `None` serves clear text.
    pub tls: Option<TlsFiles>,
}

impl Endpoint {
    /// A port of every interface, in clear text.
    pub(crate) fn every_interface(port: u16) -> Self {
        Self { address: Address::tcp("0.0.0.0", port), tls: None }
    }
}

/// A bound face, which accepts no connections yet.
pub(crate) struct BoundFace {
    face: Box<dyn Face>,
    socket: BoundAddress,
    tls: Option<Tls>,
}

impl BoundFace {
    /// Binds the face's address and reads its certificates.
    pub(crate) fn new(face: Box<dyn Face>) -> Result<Self, StartError> {
        let protocol = face.protocol();
        let Endpoint { address, tls } = face.endpoint();
        let tls = tls.clone().map(|files| Tls::new(files, face.protocols())).transpose();
        let tls = tls.map_err(|source| StartError::Tls { protocol, source: Box::new(source) })?;
        let socket = address.bind().map_err(|source| cannot_bind(&*face, source))?;
        Ok(Self { face, socket, tls })
    }

    /// Starts to answer.
    pub(crate) fn serve(self, runtime: &Handle, context: FaceContext) -> Result<ServedFace, StartError> {
        let _guard = runtime.enter();
        let Self { face, socket, tls } = self;
        let listener = socket.listen(tls).map_err(|source| cannot_bind(&*face, source))?;
        let listener = listener.among(&context.connections);
        let address = listener.local_addr().map_err(|source| cannot_bind(&*face, source))?;
        tracing::info!("Started {} at {address}", face.service());
        let protocol = face.protocol();
        Ok(ServedFace { protocol, address, task: runtime.spawn(face.serve(listener, context)) })
    }
}

/// A running face.
pub(crate) struct ServedFace {
    pub protocol: &'static str,
    /// The address, with the port that the system chose.
    pub address: LocalAddress,
    /// Completes after the shutdown, when the last connection is closed.
    pub task: JoinHandle<()>,
}

fn cannot_bind(face: &dyn Face, source: std::io::Error) -> StartError {
    StartError::Bind { protocol: face.protocol(), address: face.endpoint().address.clone(), source }
}
