//! Opens a container of Azure: account, endpoint and credentials.

use std::collections::BTreeMap;

use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

use super::{Connection, Setup, no_retries};
use crate::credentials::AzureCredentials;
use crate::locator::Public;
use crate::platform::Platform;

/// The variable that chooses the kind of credentials.
const AUTH_TYPE: &str = "AZURE_STORAGE_AUTH_TYPE";

/// The public account of emulators.
const EMULATOR_ACCOUNT: &str = "devstoreaccount1";
const EMULATOR_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const EMULATOR_ENDPOINT: &str = "http://127.0.0.1:10000/devstoreaccount1";

/// The kind of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuthType {
    /// Whatever is configured, and finally none.
    Any,
    /// The account's key.
    Key,
    /// A managed identity.
    ManagedIdentity,
    /// The default chain: a service principal, a workload identity, a managed identity.
    Default,
}

impl AuthType {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::Any),
            "key" => Ok(Self::Key),
            "managed_identity" => Ok(Self::ManagedIdentity),
            "default" => Ok(Self::Default),
            _ => Err(format!("unknown {AUTH_TYPE} '{text}' (known: key, managed_identity, default)")),
        }
    }
}

impl Setup<'_> {
    pub(super) async fn azure(
        mut self,
        account: &str,
        given: Option<&AzureCredentials>,
    ) -> Result<Connection, String> {
        let variable = |name: &str| self.environment.get(name).filter(|_| given.is_none());
        let text = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
        let of_file = |value: fn(&AzureCredentials) -> &String| given.and_then(|given| text(value(given)));
        let connection =
            ConnectionString::read(&variable("AZURE_STORAGE_CONNECTION_STRING").unwrap_or_default());

        let account = of_file(|given| &given.account_str)
            .or_else(|| variable("AZURE_STORAGE_ACCOUNT"))
            .or_else(|| connection.get("AccountName"))
            .unwrap_or_else(|| account.to_owned());
        let account = account.strip_suffix(".blob.core.windows.net").unwrap_or(&account).to_owned();
        let auth_type = of_file(|given| &given.auth_type).or_else(|| variable(AUTH_TYPE));
        let auth_type = AuthType::parse(&auth_type.unwrap_or_default())?;
        // The default chain is configured by the environment.
        let usual = |name: &str| {
            let is_read = given.is_none() || auth_type == AuthType::Default;
            self.environment.get(name).filter(|_| is_read)
        };
        let client_id = of_file(|given| &given.client_id)
            .or_else(|| variable("AZURE_STORAGE_CLIENT_ID"))
            .or_else(|| usual("AZURE_CLIENT_ID"));
        let key = of_file(|given| &given.account_key)
            .or_else(|| variable("AZURE_STORAGE_KEY"))
            .or_else(|| connection.get("AccountKey"));
        let sas = variable("AZURE_STORAGE_SAS_TOKEN").or_else(|| connection.get("SharedAccessSignature"));

        let mut builder = MicrosoftAzureBuilder::new()
            .with_account(&account)
            .with_container_name(&self.address.bucket)
            .with_http_connector(self.connector.clone())
            .with_retry(no_retries());
        // Endpoints are not credentials: the environment names them even if credentials come from the file.
        let endpoint = self.environment.get("AZURE_STORAGE_SERVICE_ENDPOINT");
        let endpoint = endpoint.or_else(|| connection.endpoint(&account));
        let host = endpoint.clone().unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
        if let Some(endpoint) = endpoint {
            let is_plain = endpoint.starts_with("http://");
            builder =
                builder.with_allow_http(is_plain).with_endpoint(endpoint.trim_end_matches('/').to_owned());
        }
        match (auth_type, key, sas) {
            (AuthType::Any | AuthType::Key, Some(key), _) => {
                self.secrets.push(key.clone());
                builder = builder.with_access_key(key);
            }
            (AuthType::Key, None, _) => {
                return Err(format!("{AUTH_TYPE} is 'key', and there is no key: set AZURE_STORAGE_KEY"));
            }
            (AuthType::Any, None, Some(sas)) => {
                self.secrets.push(sas.clone());
                let sas = sas.trim_start_matches('?');
                builder = builder.with_config(AzureConfigKey::SasKey, sas);
                self.public = Some(Public::new(&host, self.address, Some(sas)));
            }
            (AuthType::Any | AuthType::Default | AuthType::ManagedIdentity, _, _) => {
                let principal = [
                    ("AZURE_CLIENT_SECRET", AzureConfigKey::ClientSecret),
                    ("AZURE_FEDERATED_TOKEN_FILE", AzureConfigKey::FederatedTokenFile),
                    ("AZURE_TENANT_ID", AzureConfigKey::AuthorityId),
                    ("AZURE_AUTHORITY_HOST", AzureConfigKey::AuthorityHost),
                ];
                let mut is_provided = false;
                for (name, setting) in principal {
                    let value = usual(name).filter(|_| auth_type != AuthType::ManagedIdentity);
                    if let Some(value) = value {
                        if name == "AZURE_CLIENT_SECRET" {
                            self.secrets.push(value.clone());
                        }
                        is_provided |= ["AZURE_CLIENT_SECRET", "AZURE_FEDERATED_TOKEN_FILE"].contains(&name);
                        builder = builder.with_config(setting, value);
                    }
                }
                if let Some(endpoint) = self.environment.get("IDENTITY_ENDPOINT") {
                    builder = builder.with_config(AzureConfigKey::MsiEndpoint, endpoint);
                    is_provided |= given.is_none();
                } else {
                    let machine = Platform::Azure.endpoint(self.environment);
                    let endpoint = format!("{machine}/metadata/identity/oauth2/token");
                    builder = builder.with_config(AzureConfigKey::MsiEndpoint, endpoint);
                }
                if let Some(id) = client_id {
                    builder = builder.with_client_id(id);
                }
                let is_anonymous = auth_type == AuthType::Any
                    && !is_provided
                    && (given.is_some() || !self.is_on(Platform::Azure).await);
                builder = builder.with_skip_signature(is_anonymous);
                self.public = is_anonymous.then(|| Public::new(&host, self.address, None));
            }
        }
        self.connection(builder.build())
    }
}

/// The settings in a connection string.
struct ConnectionString(BTreeMap<String, String>);

impl ConnectionString {
    fn read(text: &str) -> Self {
        let settings = text.split(';').filter_map(|setting| setting.trim().split_once('='));
        let mut settings: BTreeMap<_, _> =
            settings.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        if settings.get("UseDevelopmentStorage").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            let known = [
                ("AccountName", EMULATOR_ACCOUNT),
                ("AccountKey", EMULATOR_KEY),
                ("BlobEndpoint", EMULATOR_ENDPOINT),
            ];
            for (name, value) in known {
                settings.entry(name.to_owned()).or_insert_with(|| value.to_owned());
            }
        }
        Self(settings)
    }

    fn get(&self, name: &str) -> Option<String> {
        self.0.get(name).filter(|value| !value.is_empty()).cloned()
    }

    /// The account's endpoint, unless it is in Azure's public cloud.
    fn endpoint(&self, account: &str) -> Option<String> {
        let in_other_cloud = || {
            let suffix = self.get("EndpointSuffix").filter(|suffix| suffix != "core.windows.net")?;
            let scheme = self.get("DefaultEndpointsProtocol").unwrap_or_else(|| "https".into());
            Some(format!("{scheme}://{account}.blob.{suffix}"))
        };
        self.get("BlobEndpoint").or_else(in_other_cloud)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_string_tells_where_the_account_is() {
        for (text, expected) in [
            ("AccountName=a;AccountKey=k", None),
            ("AccountName=a;EndpointSuffix=core.windows.net", None),
            (
                "EndpointSuffix=core.chinacloudapi.cn;AccountKey=k==",
                Some("https://a.blob.core.chinacloudapi.cn"),
            ),
            ("DefaultEndpointsProtocol=http;EndpointSuffix=local", Some("http://a.blob.local")),
            ("BlobEndpoint=http://h:1/a;EndpointSuffix=local", Some("http://h:1/a")),
            ("UseDevelopmentStorage=true", Some(EMULATOR_ENDPOINT)),
            ("UseDevelopmentStorage=true;BlobEndpoint=http://h:1/a", Some("http://h:1/a")),
            ("UseDevelopmentStorage=false", None),
            ("", None),
        ] {
            assert_eq!(ConnectionString::read(text).endpoint("a").as_deref(), expected, "{text}");
        }
        let read = ConnectionString::read("AccountName=a; AccountKey=abc==;BlobEndpoint=");
        assert_eq!(read.get("AccountKey").as_deref(), Some("abc=="));
        assert_eq!(read.get("BlobEndpoint"), None);
        assert_eq!(
            ConnectionString::read("UseDevelopmentStorage=True").get("AccountKey").unwrap(),
            EMULATOR_KEY
        );
    }

    #[test]
    fn only_known_kinds_of_credentials_are_accepted() {
        for (text, expected) in [
            ("", Some(AuthType::Any)),
            ("key", Some(AuthType::Key)),
            ("managed_identity", Some(AuthType::ManagedIdentity)),
            ("default", Some(AuthType::Default)),
            ("Key", None),
            ("msi", None),
        ] {
            assert_eq!(AuthType::parse(text).ok(), expected, "{text}");
        }
    }
}
