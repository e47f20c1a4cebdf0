//! `grpc.health.v1.Health`: whether the server is ready, once or whenever that changes.
//!
//! The requested service name makes no difference, as in the reference.

use std::pin::Pin;
use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream::unfold;
use nereid_core::{ReadinessWatch, Server};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

/// Reports whether the server is ready.
#[derive(Clone)]
pub(crate) struct Health {
    pub server: Arc<Server>,
    /// Ends every watch, after the last status.
    pub shutdown: CancellationToken,
}

/// A client's watch.
struct Watch {
    health: Health,
    readiness: ReadinessWatch,
    known: Option<bool>,
}

impl Watch {
    /// The next status other than the known one; `None` if the server shuts down.
    async fn next(&mut self) -> Option<bool> {
        loop {
            let (is_ready, is_last) = tokio::select! {
                biased;
                is_ready = self.readiness.next() => (is_ready, false),
                () = self.health.shutdown.cancelled() => (self.health.server.ready().await, true),
            };
            if self.known.replace(is_ready) != Some(is_ready) {
                return Some(is_ready);
            }
            if is_last {
                return None;
            }
        }
    }
}

fn response(is_ready: bool) -> HealthCheckResponse {
    let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
    HealthCheckResponse { status: status.into() }
}

#[async_trait]
impl health_server::Health for Health {
    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(response(self.server.ready().await)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let watch = Watch { health: self.clone(), readiness: self.server.watch_readiness(), known: None };
        let statuses = unfold(watch, async |mut watch| {
            let is_ready = watch.next().await?;
            Some((Ok(response(is_ready)), watch))
        });
        Ok(Response::new(Box::pin(statuses)))
    }
}
