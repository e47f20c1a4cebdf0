//! Servers of candidates, one at a time.

use std::sync::Arc;

use nereid_model_config::{ModelConfig, to_text};
use tokio::time::{Instant, timeout_at};

use crate::load::{self, Requests};
use crate::search::{Measurement, Slot};
use crate::server::{Model, Server};
use crate::settings::Settings;

/// Measures candidates of a model.
pub(crate) struct Bench<'a> {
    pub(crate) model: &'a Model,
    pub(crate) written: &'a ModelConfig,
    pub(crate) completed: &'a ModelConfig,
    pub(crate) requests: Arc<Requests>,
    /// The server of the last measurement, reused by the next one if the settings are the same.
    pub(crate) server: Option<(Settings, Server)>,
}

impl Bench<'_> {
    /// The text of the configuration with some settings.
    pub(crate) fn config(&self, settings: &Settings) -> String {
        to_text(&settings.apply(self.written, self.completed))
    }

    /// Measures a candidate. Its server is killed if the measurement is dropped.
    ///
    /// # Errors
    /// The model cannot be loaded, or a request failed.
    pub(crate) async fn measure(
        &mut self,
        settings: &Settings,
        clients: usize,
        slot: Slot,
    ) -> Result<Measurement, String> {
        let server = match self.server.take() {
            Some((running, server)) if running == *settings => server,
            other => {
                if let Some((_, other)) = other {
                    other.end().await;
                }
                Server::start(self.model, Some(&self.config(settings)), settings.options()).await?
            }
        };
        let pid = server.pid().ok_or("the server ended")?;
        let measured = load::load(&server.socket(), pid, &self.requests, clients, slot).await?;
        self.server = Some((*settings, server));
        Ok(measured)
    }

    /// Measures a candidate with different numbers of clients, until `end`. Leaves out failed measurements.
    pub(crate) async fn curve(
        &mut self,
        settings: &Settings,
        all_clients: &[usize],
        slot: Slot,
        end: Instant,
    ) -> Vec<(usize, Measurement)> {
        let mut curve = Vec::new();
        for &clients in all_clients {
            match timeout_at(end, self.measure(settings, clients, slot)).await {
                Ok(Ok(measured)) => curve.push((clients, measured)),
                Ok(Err(_)) => {}
                Err(_) => break,
            }
        }
        curve
    }

    /// Ends the last server.
    pub(crate) async fn end(self) {
        if let Some((_, server)) = self.server {
            server.end().await;
        }
    }
}
