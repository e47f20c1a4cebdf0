//! Where clients are served: each face is an address, and what answers there.
//!
//! A further face is one more type that implements [`Face`], in a file of its own.

mod grpc;
mod http;
mod metrics;
mod sagemaker;
mod vertex_ai;

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use nereid_core::Server;
use nereid_http_transport::End;
use nereid_kserve_http::HttpOptions;
use nereid_listener::{Address, Bound, Connections, Listener, Tls, TlsFiles};
use nereid_load_report::LoadReports;
use nereid_metrics::Exposition;
use nereid_protocol::LogControl;
use nereid_repository::Repositories;
use nereid_shared_memory::Regions;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use self::grpc::Grpc;
pub use self::http::Http;
pub use self::metrics::Metrics;
pub use self::sagemaker::SageMaker;
pub use self::vertex_ai::VertexAi;
use crate::error::StartError;

/// Ends when the last connection of a face is closed.
pub type Serving = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What faces answer from.
#[derive(Clone)]
pub struct FaceContext {
    /// The server.
    pub server: Arc<Server>,
    /// The shared memory that clients register, common to all protocols.
    pub regions: Arc<Regions>,
    /// The settings of the log.
    pub log: Arc<LogControl>,
    /// Where the models come from.
    pub source: Repositories,
    /// The text of the server's metrics.
    pub exposition: Arc<Exposition>,
    /// The connections of all faces. An idle one makes room when descriptors run out.
    pub connections: Connections,
    /// The load of the server, if it is reported.
    pub load_reports: Option<LoadReports>,
    /// Cancelled when the server begins to stop. Requests in progress and open sequences go on; what does not serve them may
    /// end.
    pub closing: CancellationToken,
    /// Cancelled when nothing is in progress any more: the face accepts no further connections, and ends those it has.
    pub shutdown: CancellationToken,
}

impl FaceContext {
    /// Options of a face on HTTP, with what is the server's.
    fn http_options(&self, options: HttpOptions) -> HttpOptions {
        let Self { regions, log, load_reports, .. } = self.clone();
        HttpOptions { regions, log, load_reports, ..options }
    }

    /// When connections of a face on HTTP end. New ones are for the servers that go on; those that are open may be needed to end
    /// what has begun.
    fn http_end(&self) -> End {
        End { closing: self.closing.clone(), shutdown: self.shutdown.clone() }
    }
}

/// A way for clients to reach the server.
pub trait Face: Send {
    /// The name of its protocol, for people.
    fn protocol(&self) -> &'static str;

    /// What the log calls it once it listens; Triton's words where Triton has the face.
    fn service(&self) -> &'static str;

    /// Where it listens.
    fn address(&self) -> &Address;

    /// The files of TLS and the names of the protocols that clients may choose, where it takes TLS.
    fn tls(&self) -> Option<(&TlsFiles, &'static [&'static str])> {
        None
    }

    /// Answers on `listener` until the context's shutdown, then lets requests in progress end. Called within a tokio
    /// runtime.
    fn serve(self: Box<Self>, listener: Listener, context: FaceContext) -> Serving;
}

/// A face that holds its address. Nobody can connect yet.
pub(crate) struct BoundFace {
    face: Box<dyn Face>,
    socket: Bound,
    tls: Option<Tls>,
}

impl BoundFace {
    /// Binds the face's address and reads its certificates.
    pub(crate) fn new(face: Box<dyn Face>) -> Result<Self, StartError> {
        let protocol = face.protocol();
        let tls = face.tls().map(|(files, names)| Tls::new(files.clone(), names)).transpose();
        let tls = tls.map_err(|source| StartError::Tls { protocol, source: Box::new(source) })?;
        let socket = face.address().bind().map_err(|source| cannot_bind(&*face, source))?;
        Ok(Self { face, socket, tls })
    }

    /// Begins to answer.
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

/// A face that answers.
pub(crate) struct ServedFace {
    pub protocol: &'static str,
    /// With the port that the system chose.
    pub address: SocketAddr,
    /// Ends after the shutdown, when the last connection is closed.
    pub task: JoinHandle<()>,
}

fn cannot_bind(face: &dyn Face, source: std::io::Error) -> StartError {
    let Address { host, port, .. } = face.address().clone();
    StartError::Bind { protocol: face.protocol(), host, port, source }
}
