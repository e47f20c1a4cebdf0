//! Opens a hub with its credentials, as a read-only bucket.

use std::sync::Arc;

use nereid_http_client::{Client, Connector, Environment, SafeUrl};
use object_store::ObjectStore;

use crate::address::{HubAddress, HubKind};
use crate::docker::Login;
use crate::hugging_face::HuggingFace;
use crate::registry::Registry;
use crate::store::{Hub, HubStore};
use crate::web::WebFile;

/// An open hub.
pub struct OpenHub {
    /// The hub as a read-only bucket.
    pub store: Arc<dyn ObjectStore>,
    /// The hub itself, which locates files.
    pub hub: Arc<dyn Hub>,
    /// Secrets that no message may contain.
    pub secrets: Vec<String>,
}

/// Opens the hub of an address. Sends no request to it.
///
/// # Errors
/// The program that keeps the credentials fails.
pub async fn open(
    address: &HubAddress,
    environment: &Environment,
    connector: &Connector,
) -> Result<OpenHub, String> {
    let client = Client::new(connector.clone());
    let name = &address.name;
    match &address.kind {
        HubKind::HuggingFace { revision } => {
            let (hub, token) = HuggingFace::new(client.clone(), environment, name, revision);
            Ok(opened(client, hub, token))
        }
        HubKind::Registry { host, reference } => {
            let login = Login::of(environment, host).await?;
            let secrets = login.as_ref().map(Login::secrets).unwrap_or_default();
            Ok(opened(client.clone(), Registry::new(client, host, name, reference, login), secrets))
        }
        HubKind::Web(_) => {
            let url = SafeUrl::new(name.as_str());
            let secrets = url.secrets();
            Ok(opened(client.clone(), WebFile { client, url }, secrets))
        }
    }
}

fn opened<H: Hub>(client: Client, hub: H, secrets: impl IntoIterator<Item = String>) -> OpenHub {
    let hub = Arc::new(hub);
    let store = HubStore { hub: Arc::clone(&hub), client };
    OpenHub { store: Arc::new(store), hub, secrets: secrets.into_iter().collect() }
}
