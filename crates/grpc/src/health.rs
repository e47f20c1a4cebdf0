//! `grpc.health.v1.Health`: whether the server is ready, once or whenever that changes.
//!
//! As with the reference, the name of the service that a client asks for makes no difference.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use nereid_core::{Changes, Server};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

/// How often backends that tell their readiness are asked on behalf of a watching client: they announce no change.
const ASK_AGAIN: Duration = Duration::from_millis(250);

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
    changes: Changes,
    known: Option<ServingStatus>,
}

impl Health {
    async fn status(&self) -> ServingStatus {
        if self.server.ready().await { ServingStatus::Serving } else { ServingStatus::NotServing }
    }

    /// Waits until backends should be asked again.
    async fn ask_again(&self) {
        if self.server.asks_backends() { sleep(ASK_AGAIN).await } else { pending().await }
    }
}

impl Watch {
    /// The next status other than the known one; `None` if the server shuts down.
    async fn next(&mut self) -> Option<ServingStatus> {
        loop {
            // What changes from here on leads to another round.
            self.changes.generation();
            let status = self.health.status().await;
            if self.known.replace(status) != Some(status) {
                return Some(status);
            }
            tokio::select! {
                generation = self.changes.next() => { generation?; }
                () = self.health.ask_again() => {}
                () = self.health.shutdown.cancelled() => {
                    let last = self.health.status().await;
                    return (self.known.replace(last) != Some(last)).then_some(last);
                }
            }
        }
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[async_trait]
impl health_server::Health for Health {
    async fn check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(response(self.status().await)))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let watch = Watch { health: self.clone(), changes: self.server.changes(), known: None };
        let statuses = unfold(watch, async |mut watch| {
            let status = watch.next().await?;
            Some((Ok(response(status)), watch))
        });
        Ok(Response::new(Box::pin(statuses)))
    }
}
