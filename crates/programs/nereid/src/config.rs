//! The configuration of a server as types, for [`Builder::configure`](crate::Builder::configure).

pub use nereid_assembly::{
    AgentConfig, BackendSetting, BackendsConfig, CacheConfig, CacheOptions, CloudOptions, Config, Endpoint,
    Face, GpusConfig, Grpc, Http, Metrics, PlatformConfig, PollConfig, ResidencyOptions, SageMaker, VertexAi,
};
pub use nereid_core::{LatencyOptions, RateLimit, ServerOptions};
