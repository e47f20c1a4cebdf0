//! Opens a bucket: chooses its endpoint and credentials.
//!
//! The order is Triton's: the file that `TRITON_CLOUD_CREDENTIAL_PATH` names, and only that if it is set; otherwise the
//! environment, profiles, the platform's credentials, and finally none.

mod azure;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use hyper::Uri;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use nereid_http_client::{Connector, Environment, SafeUrl};
use nereid_hubs::OpenHub;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::signer::Signer;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use crate::address::{Address, Cloud};
use crate::credentials::{CredentialFile, S3Credentials};
use crate::locator::{Locator, Public};
use crate::offered::ASK_S3;
use crate::platform::Platform;
use crate::profiles::Profile;

/// The variable that names a file of credentials.
const CREDENTIAL_FILE: &str = "TRITON_CLOUD_CREDENTIAL_PATH";

/// An open bucket.
pub(crate) struct Connection {
    pub store: Arc<dyn ObjectStore>,
    /// Where programs without credentials can read its objects.
    pub locator: Locator,
    /// Secrets that no message may contain.
    pub secrets: Vec<String>,
}

/// Opens the bucket of an address. Sends no request to it.
///
/// # Errors
/// Says what is wrong with the credentials, without secrets.
pub(crate) async fn connect(
    address: &Address,
    environment: &Environment,
    connector: &Connector,
) -> Result<Connection, String> {
    let file = match environment.get(CREDENTIAL_FILE) {
        Some(path) => Some(CredentialFile::read(Path::new(&path))?),
        None => None,
    };
    let no_match = || format!("the file of {CREDENTIAL_FILE} has no credentials for '{address}'");
    let connecting = Setup { address, environment, connector, public: None, secrets: address.secrets() };
    match &address.cloud {
        Cloud::S3 { endpoint } => {
            let given =
                file.as_ref().map(|file| file.s3(address.with_secrets()).ok_or_else(no_match)).transpose()?;
            connecting.s3(endpoint.as_ref().map(SafeUrl::with_secrets), given).await
        }
        Cloud::Google => {
            let given = file
                .as_ref()
                .map(|file| file.google(address.with_secrets()).ok_or_else(no_match))
                .transpose()?;
            connecting.google(given.map(String::as_str)).await
        }
        Cloud::Azure { account } => {
            let given = file
                .as_ref()
                .map(|file| file.azure(address.with_secrets()).ok_or_else(no_match))
                .transpose()?;
            connecting.azure(account, given).await
        }
        Cloud::Hub(hub) => {
            let OpenHub { store, hub, secrets } = nereid_hubs::open(hub, environment, connector).await?;
            Ok(Connection { store, locator: Locator::Hub(hub), secrets })
        }
    }
}

struct Setup<'a> {
    address: &'a Address,
    environment: &'a Environment,
    connector: &'a Connector,
    /// The address of the bucket, if its objects need no signature.
    public: Option<Public>,
    secrets: Vec<String>,
}

impl Setup<'_> {
    async fn s3(
        mut self,
        endpoint: Option<&str>,
        given: Option<&S3Credentials>,
    ) -> Result<Connection, String> {
        let variable = |names: &[&str]| self.environment.first(names).filter(|_| given.is_none());
        let text = |value: &str| Some(value.to_owned()).filter(|value| !value.is_empty());
        let of_file = |value: fn(&S3Credentials) -> &String| given.and_then(|given| text(value(given)));

        let named =
            of_file(|given| &given.profile).or_else(|| variable(&["AWS_PROFILE", "AWS_DEFAULT_PROFILE"]));
        let profile = Profile::read(named.as_deref().unwrap_or("default"), self.environment);
        let of_profile =
            |setting: &str| profile.as_ref().and_then(|profile| profile.get(setting)).map(str::to_owned);

        let pair =
            |id: Option<String>, secret: Option<String>, token: Option<String>| Some((id?, secret?, token));
        let key = pair(
            of_file(|given| &given.key_id).or_else(|| variable(&["AWS_ACCESS_KEY_ID"])),
            of_file(|given| &given.secret_key).or_else(|| variable(&["AWS_SECRET_ACCESS_KEY"])),
            of_file(|given| &given.session_token).or_else(|| variable(&["AWS_SESSION_TOKEN"])),
        );
        let key = key.or_else(|| {
            let [id, secret, token] =
                ["aws_access_key_id", "aws_secret_access_key", "aws_session_token"].map(of_profile);
            pair(id, secret, token)
        });

        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&self.address.bucket)
            .with_client_options(asking_for_digests())
            .with_http_connector(self.connector.clone())
            .with_retry(no_retries());
        let region = of_file(|given| &given.region)
            .or_else(|| variable(&["AWS_DEFAULT_REGION", "AWS_REGION"]))
            .or_else(|| of_profile("region"));
        if let Some(region) = &region {
            builder = builder.with_region(region);
        }
        // Endpoints are not credentials: the environment names them even if credentials come from the file.
        let endpoint = endpoint
            .map(str::to_owned)
            .or_else(|| self.environment.first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]))
            .or_else(|| of_profile("endpoint_url"));
        let host = endpoint.clone().unwrap_or_else(|| {
            format!("https://s3.{}.amazonaws.com", region.as_deref().unwrap_or("us-east-1"))
        });
        let style = variable_of_style(self.environment).or_else(|| of_profile("s3.addressing_style"));
        let is_virtual = is_virtual_hosted(style.as_deref(), &host)?;
        builder = builder.with_virtual_hosted_style_request(is_virtual);
        if let Some(endpoint) = endpoint {
            let endpoint = if is_virtual { with_bucket(&endpoint, &self.address.bucket) } else { endpoint };
            builder = builder.with_allow_http(endpoint.starts_with("http://")).with_endpoint(endpoint);
        }

        if let Some((id, secret, token)) = key {
            self.secrets.extend([secret.clone()].into_iter().chain(token.clone()));
            builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            if let Some(token) = token {
                builder = builder.with_token(token);
            }
        } else if profile.is_none() && named.is_some() {
            let named = named.unwrap_or_default();
            return Err(format!("no file of Amazon's command line has the profile '{named}'"));
        } else if ["role_arn", "sso_session", "sso_start_url", "credential_process"]
            .iter()
            .any(|setting| of_profile(setting).is_some())
        {
            let named = named.as_deref().unwrap_or("default");
            return Err(format!(
                "profile '{named}' has no key of its own: roles, single sign-on and credential processes of profiles are not \
                 supported; put a key into it, or into the environment"
            ));
        } else {
            let settings = [
                ("AWS_WEB_IDENTITY_TOKEN_FILE", AmazonS3ConfigKey::WebIdentityTokenFile),
                ("AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn),
                ("AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName),
                ("AWS_ENDPOINT_URL_STS", AmazonS3ConfigKey::StsEndpoint),
                (
                    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                    AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
                ),
                ("AWS_CONTAINER_CREDENTIALS_FULL_URI", AmazonS3ConfigKey::ContainerCredentialsFullUri),
                (
                    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
                    AmazonS3ConfigKey::ContainerAuthorizationTokenFile,
                ),
            ];
            let mut is_provided = false;
            for (name, setting) in settings {
                if let Some(value) = self.environment.get(name).filter(|_| given.is_none()) {
                    builder = builder.with_config(setting, value);
                    is_provided = true;
                }
            }
            let is_disabled = self.environment.is_on("AWS_EC2_METADATA_DISABLED");
            if !is_provided {
                if is_disabled || !self.is_on(Platform::Amazon).await {
                    builder = builder.with_skip_signature(true);
                    self.public = Some(match is_virtual {
                        true => Public::of_bucket(&with_bucket(&host, &self.address.bucket)),
                        false => Public::new(&host, self.address, None),
                    });
                } else {
                    builder = builder.with_metadata_endpoint(Platform::Amazon.endpoint(self.environment));
                }
            }
        }
        self.connection(builder.build())
    }

    async fn google(mut self, given: Option<&str>) -> Result<Connection, String> {
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(&self.address.bucket)
            .with_http_connector(self.connector.clone())
            .with_retry(no_retries());
        let emulator = self.environment.first(&["CLOUD_STORAGE_EMULATOR_ENDPOINT", "STORAGE_EMULATOR_HOST"]);
        let from_environment = || self.environment.get("GOOGLE_APPLICATION_CREDENTIALS");
        let file = given.map(str::to_owned).or_else(from_environment);
        if let Some(emulator) = emulator {
            let scheme = if emulator.contains("://") { "" } else { "http://" };
            let base = format!("{scheme}{}", emulator.trim_end_matches('/'));
            builder = builder.with_base_url(&base).with_skip_signature(true);
            self.public = Some(Public::new(&base, self.address, None));
            return self.connection(builder.build());
        }
        let mut host = "https://storage.googleapis.com".to_owned();
        // In gcloud's form: `https://host/storage/v1/`, for a private endpoint.
        if let Some(endpoint) = self.environment.get("CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE") {
            let base = endpoint.split('/').take(3).collect::<Vec<_>>().join("/");
            builder = builder.with_base_url(&base);
            host = base;
        }
        if let Some(file) = file {
            self.secrets.extend(secrets_of(Path::new(&file)));
            builder = builder.with_application_credentials(file);
        } else {
            let well_known = self.environment.at_home(".config/gcloud/application_default_credentials.json");
            match well_known.filter(|path| path.exists()) {
                Some(path) => {
                    self.secrets.extend(secrets_of(&path));
                    builder = builder.with_application_credentials(path.to_string_lossy());
                }
                None if self.is_on(Platform::Google).await => {}
                None => {
                    builder = builder.with_skip_signature(true);
                    self.public = Some(Public::new(&host, self.address, None));
                }
            }
        }
        self.connection(builder.build())
    }

    /// Whether this machine runs in the cloud, which then provides credentials.
    async fn is_on(&self, platform: Platform) -> bool {
        platform.answers(self.environment, self.connector).await
    }

    fn connection(
        self,
        store: object_store::Result<impl ObjectStore + Signer>,
    ) -> Result<Connection, String> {
        let store = store.map_err(|error| crate::errors::Failure::of(&error, &self.secrets).message)?;
        let store = Arc::new(store);
        let locator = match self.public {
            Some(public) => Locator::Public(public),
            None => Locator::Signed(Arc::clone(&store) as _),
        };
        Ok(Connection { store, locator, secrets: self.secrets })
    }
}

/// The addressing style of S3 that the environment sets. It is not a credential.
fn variable_of_style(environment: &Environment) -> Option<String> {
    environment.get("AWS_S3_ADDRESSING_STYLE")
}

/// Whether the bucket is part of the host's name. As in Triton, the default is its path.
fn is_virtual_hosted(style: Option<&str>, endpoint: &str) -> Result<bool, String> {
    match style {
        None | Some("path" | "auto") => Ok(false),
        Some("virtual") => Ok(!has_address(endpoint)),
        Some(other) => Err(format!("unknown addressing style '{other}' of S3 (known: path, virtual, auto)")),
    }
}

/// Whether an endpoint's host is an IP address, which has no subdomains.
fn has_address(endpoint: &str) -> bool {
    let uri = endpoint.parse::<Uri>().ok();
    let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
    host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

/// The endpoint of a bucket whose name is part of the host's.
fn with_bucket(endpoint: &str, bucket: &str) -> String {
    let (scheme, host) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    format!("{scheme}://{bucket}.{host}")
}

/// The library does not retry: callers do, because they know how much has arrived.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// The headers of each request to S3.
fn asking_for_digests() -> ClientOptions {
    let (name, value) = ASK_S3;
    let headers = [(HeaderName::from_static(name), HeaderValue::from_static(value))];
    ClientOptions::new().with_default_headers(HeaderMap::from_iter(headers))
}

/// The secrets in a file of Google's.
fn secrets_of(path: &Path) -> Vec<String> {
    let text = std::fs::read(path).unwrap_or_default();
    let values: BTreeMap<String, serde_json::Value> = serde_json::from_slice(&text).unwrap_or_default();
    let secrets = ["private_key", "private_key_id", "client_secret", "refresh_token"];
    secrets.iter().filter_map(|name| Some(values.get(*name)?.as_str()?.to_owned())).collect()
}
