//! The configuration of a server as types, for [`Builder::configure`](crate::Builder::configure).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/model_repository");
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use nereid::Server;
//! use nereid::config::{BackendSetting, Config};
//!
//! let server = Server::builder()
//!     .model_repository(repository)
//!     .configure(|config: &mut Config| {
//!         config.server.name = "digits".to_owned();
//!         config.models_at_start = Some(vec!["identity_fp32".to_owned()]);
//!         let (key, value) = ("engine".to_owned(), "tract".to_owned());
//!         let backend = Some("onnxruntime".to_owned());
//!         config.platform.backends.settings.push(BackendSetting { backend, key, value });
//!     })
//!     .start()
//!     .await?;
//! assert_eq!(server.metadata().name, "digits");
//! server.stop().await?;
//! # Ok(())
//! # })
//! # }
//! ```

pub use nereid_assembly::{
    Address, AgentConfig, BackendSetting, BackendsConfig, CacheConfig, CacheOptions, CloudOptions,
    CollectorOptions, Config, Endpoint, Face, GpusConfig, Grpc, Http, LocalAddress, Metrics, MetricsOptions,
    PlatformConfig, PollConfig, ReadOptions, Reporting, ResidencyOptions, SageMaker, TlsFiles, VertexAi,
};
pub use nereid_core::{LatencyOptions, RateLimit, ServerOptions};
