//! `grpc.health.v1.Health`: whether the server is ready, once or whenever that changes.
//!
//! As with the reference, the name of the service that a client asks for makes no difference.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use nereid_core::Server;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, async_trait};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

/// How often the server is looked at for those who watch.
const LOOK: Duration = Duration::from_millis(250);

/// Tells whether the server is ready.
#[derive(Clone)]
pub(crate) struct Health {
    pub server: Arc<Server>,
    /// When it comes, nobody can watch any longer.
    pub shutdown: CancellationToken,
}

impl Health {
    async fn status(&self) -> ServingStatus {
        if self.server.ready().await { ServingStatus::Serving } else { ServingStatus::NotServing }
    }

    /// The next status other than `known`; `None` if the server ends and nothing is left to say.
    async fn changed(&self, known: Option<ServingStatus>) -> Option<ServingStatus> {
        loop {
            let status = self.status().await;
            if Some(status) != known {
                return Some(status);
            }
            tokio::select! {
                () = sleep(LOOK) => {}
                () = self.shutdown.cancelled() => {
                    let last = self.status().await;
                    return (known != Some(last)).then_some(last);
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
        let statuses = unfold((self.clone(), None), async |(health, known)| {
            let status = health.changed(known).await?;
            Some((Ok(response(status)), (health, Some(status))))
        });
        Ok(Response::new(Box::pin(statuses)))
    }
}
