"""Options of a server as keyword arguments.

Generated from the declarations in crates/programs/options: UPDATE_OPTIONS=1 cargo test -p nereid-options.
"""

from __future__ import annotations

import os
from typing import Any, Literal, Mapping, Sequence, TypedDict, Union

_Path = Union[str, "os.PathLike[str]"]
_Settings = Mapping[str, Any]


class Options(TypedDict, total=False):
    """Options of the command line, with underscores."""

    repository_cache_directory: _Path
    """Folder for files downloaded from clouds, so that a restart fetches only changed files. Servers may share it. Default: a temporary folder that keeps files while a model uses them."""

    repository_cache_byte_size: int
    """Maximum bytes of files in --repository-cache-directory; the least recently used files are deleted, except those of loaded models. Default: no limit."""

    model_namespacing: bool
    """Serve models of the same name in different repositories side by side, instead of refusing them. Clients reach only those whose name is unique."""

    model_control_mode: Literal["none", "explicit", "poll", "on-demand"]
    """How models are loaded and unloaded while the server runs."""

    load_model: Union[str, Sequence[str]]
    """Model to load at start, with --model-control-mode=explicit or on-demand; * for all. May be given several times."""

    repository_poll_secs: int
    """Seconds between two polls of the repositories, with --model-control-mode=poll or on-demand. A change is loaded once two polls agree on it. 0 for no poll."""

    repository_watch: bool
    """With --model-control-mode=poll or on-demand, also poll the repositories as soon as the file system reports a change. A change is still loaded only once two polls agree on it."""

    model_load_thread_count: int
    """Number of models loaded in parallel; 0 loads them one after the other."""

    model_load_retry_count: int
    """Number of retries of a failed load."""

    on_demand_wait_secs: int
    """Seconds that a request waits at most while its model is loaded on demand; 0 refuses it at once, and loads the model for the next one."""

    on_demand_retry_secs: int
    """Seconds until a model that could not be loaded on demand is loaded for a request again. Each further failure doubles them, up to eight times."""

    model_memory_budget: int
    """Bytes that models may take in memory. The least valuable ones leave for others, and are loaded again by their next request. Default: no limit."""

    model_gpu_memory_budget: Union[str, int, float, Sequence[Union[str, int, float]]]
    """Bytes of a GPU's memory that models may take, like --model-memory-budget. May be given several times; the last value for a GPU counts. Default: no limit."""

    model_memory_directory: _Path
    """Folder for records of the memory that models took and of the time to load them, which a restarted server expects of unchanged models. Servers may share it; none keeps nothing. Default: under a budget, model-memory in the user's cache (~/.cache/nereid)."""

    model_max_evictions_per_minute: int
    """Models that may leave in a minute to make room for others under --model-memory-budget; further loads have to wait."""

    model_idle_timeout: int
    """Seconds without requests after which a model leaves the memory until its next request; 0 for never."""

    repoagent_directory: _Path
    """Folder with a subfolder for each installed repository agent."""

    repository_agent: Union[str, _Settings, Sequence[Union[str, _Settings]]]
    """Agent for every model whose configuration and repository name none, with a setting: dragonfly,proxy=URL. May be given several times. Agents run in the order of their first mention; the setting repository=PREFIX limits an agent to repositories whose path starts with PREFIX."""

    config_file: _Path
    """TOML file with options: `http-port = 8000`. A list sets an option several times. The command line overrides the environment (NEREID_HTTP_PORT), which overrides the file."""

    disable_auto_complete_config: bool
    """Do not complete configurations from the models' files; every model needs a complete one."""

    strict_model_config: bool
    """Deprecated: true is --disable-auto-complete-config."""

    model_config_name: str
    """Read a model's configuration from configs/NAME.pbtxt in its folder, where that file exists."""

    backend_directory: _Path
    """Folder with a subfolder for each installed backend. Default: the folder backends next to this program, or else /opt/tritonserver/backends."""

    backend_config: Union[str, _Settings, Sequence[Union[str, _Settings]]]
    """Setting of a backend, or of all backends if none is named. May be given several times."""

    cuda_driver_library: str
    """NVIDIA's driver library, as a path or a name for the dynamic loader; empty to use no GPU memory. Default: libcuda.so.1, if it is installed."""

    min_supported_compute_capability: float
    """Minimum compute capability of the GPUs to use."""

    id: str
    """Name that the server reports."""

    strict_readiness: bool
    """Report ready only when every model is ready."""

    exit_on_error: bool
    """Exit if a model fails to load at start, or a repository cannot be read. If false, the other models are served, and the server is not live without its repositories."""

    exit_timeout_secs: int
    """Seconds to wait for requests in progress at shutdown."""

    max_inflight_requests: int
    """Requests in progress at a time, over all models, before further ones are refused; 0 for no limit."""

    max_inflight_bytes: int
    """Bytes of requests and answers in memory at a time, over HTTP and gRPC, as they arrived, as they were decompressed, and until clients have read them; 0 for no limit. Further ones are refused. By default half of the memory that the process may use, and at least 1 GiB."""

    max_unread_response_bytes: int
    """Bytes of responses to one request, beyond the first response, that may wait for the client to read them before the request fails; 0 for no limit. Concerns models that send several responses to a request."""

    load_reports: Literal["off", "on-request", "always"]
    """When responses to inference requests report the server's load, for load balancers: in the header endpoint-load-metrics over HTTP, in the trailer endpoint-load-metrics-bin over gRPC."""

    allow_client_shm: bool
    """Let clients register shared memory and use it for inputs and outputs."""

    rate_limit: Literal["off", "execution_count"]
    """Limit executions over all models by the resources that instance groups need."""

    rate_limit_resource: Union[str, Sequence[str]]
    """Amount of a resource, on each device or on one, as NAME:COUNT or NAME:COUNT:DEVICE. May be given several times. Default: of each resource, what the instance with the greatest need takes."""

    shed_load: bool
    """Refuse requests at once that would wait in a queue for longer than their deadline, timeout or queue timeout allows, by the recent execution times of their model."""

    host_policy: Union[str, _Settings, Sequence[Union[str, _Settings]]]
    """Setting of a host policy. An instance uses the policy that its group names, or by default the policy of its device: cpu, gpu_0 and so on, model. cpu-cores (0-3,8-11) pins instances to these processors, numa-node allocates their memory on this node. May be given several times."""

    buffer_manager_thread_count: int
    """Accepted, without effect: no separate threads copy tensors."""

    access: _Path
    """TOML file of the access policy: who may do what, over all protocols. The server follows it, and the file of API keys that it names. By default, every client may do everything that --trust-network does not concern. See docs/security.md."""

    trust_network: bool
    """Let clients of other machines load models with files or configurations of their own, which can run code, and use shared memory. Triton always does. Has no effect with --access: the policy decides."""

    audit_log: _Path
    """File of the audit log: a line of JSON for each load, unload, change of settings, releases and shared memory, and for each refusal. SIGHUP reopens it. See docs/security.md."""

    allow_http: bool
    """Serve HTTP."""

    console: bool
    """Serve the console, pages that show what the server does, to browsers at / of the HTTP port."""

    console_port: int
    """Port to serve the console on, instead of the HTTP port; 0 for any free one. The HTTP interface, which the pages use, is there, too, under the same rights. Default: the HTTP port."""

    console_address: str
    """Address or host name to serve the console on, with --console-port, or a Unix socket as for --http-address. Default: the value of --http-address, or 127.0.0.1 if that is a Unix socket."""

    openai: bool
    """Serve OpenAI's interface at /v1 of the HTTP port, for models that take and return text."""

    openai_port: int
    """Port to serve OpenAI's interface on, instead of the HTTP port; 0 for any free one. Nothing else is there, and --allow-http=false does not close it. A console on a port of its own still has the interface, which its chats use. Default: the HTTP port."""

    openai_address: str
    """Address or host name to serve OpenAI's interface on, with --openai-port, or a Unix socket as for --http-address. Default: the value of --http-address, or 127.0.0.1 if that is a Unix socket."""

    openai_default_max_tokens: int
    """Maximum number of tokens that a request through OpenAI's interface generates if it sets no limit. Models of the backend llamacpp need none."""

    openai_stored_bytes: int
    """Bytes of memory for the answers of /v1/responses that requests can continue by previous_response_id. If they are full, the answers that were not used for the longest time leave; 0 stores none."""

    openai_stored_directory: _Path
    """Folder for the same answers as files, which outlive the server, and from which answers that left memory are read. It is created if it does not exist; one server uses it at a time. Default: memory alone."""

    openai_stored_directory_byte_size: int
    """Maximum bytes of these files. If they are full, the answers that were not used for the longest time are removed. Default: 1073741824."""

    openai_prefix: str
    """A further path below which OpenAI's interface is served, such as /openai for clients of KServe's runtimes, which have it at /openai/v1."""

    http_address: str
    """Address or host name to serve HTTP on, or a Unix socket, unix:/path, for programs of its owner and its group on this machine; unix:/path?mode=0666 for others, too. A Unix socket has no port."""

    http_port: int
    """Port to serve HTTP on; 0 for any free one."""

    reuse_http_port: bool
    """Share the HTTP port with other servers that set this option; the system spreads connections over them."""

    http_thread_count: int
    """I/O threads, for all protocols. Default, and with 0: one per processor."""

    http_max_input_size: int
    """Maximum size in bytes of the JSON part of a request, of a tensor in JSON or in a raw body, and of a decompressed body."""

    http_max_body_size: int
    """Maximum size of a request body in bytes."""

    http_header_forward_pattern: str
    """Forward HTTP headers whose names match this regular expression to models, as request parameters."""

    http_restricted_api: Union[str, _Settings, Sequence[Union[str, _Settings]]]
    """Restrict API groups to requests with the header KEY: VALUE. The groups: health, metadata, inference, shared-memory, model-config, model-repository, statistics, trace, logging. May be given several times."""

    http_cors_origin: Union[str, Sequence[str]]
    """Allow web pages of this origin, such as https://example.com, to use the server from a browser (CORS); * for every origin. May be given several times. Default: none."""

    http_use_ssl: bool
    """Serve HTTP over TLS only."""

    http_use_ssl_mutual: bool
    """Serve HTTP over TLS, only to clients with a certificate issued under --http-root-cert."""

    http_server_cert: _Path
    """PEM file of the server's certificate chain. It is reloaded when it changes, as are the key and the roots."""

    http_server_key: _Path
    """PEM file of the certificate's private key."""

    http_root_cert: _Path
    """PEM file of the root certificates for clients."""

    allow_grpc: bool
    """Serve gRPC."""

    grpc_address: str
    """Address or host name to serve gRPC on, or a Unix socket, unix:/path, for programs of its owner and its group on this machine; unix:/path?mode=0666 for others, too. A Unix socket has no port."""

    grpc_port: int
    """Port to serve gRPC on; 0 for any free one."""

    reuse_grpc_port: bool
    """Share the gRPC port with other servers that set this option; the system spreads connections over them."""

    grpc_header_forward_pattern: str
    """Forward call metadata whose names match this regular expression to models, as request parameters."""

    grpc_restricted_protocol: Union[str, _Settings, Sequence[Union[str, _Settings]]]
    """Restrict API groups to calls with the header triton-grpc-protocol-KEY: VALUE. The groups: health, metadata, inference, shared-memory, model-config, model-repository, statistics, trace, logging. May be given several times."""

    grpc_use_ssl: bool
    """Serve gRPC over TLS only."""

    grpc_use_ssl_mutual: bool
    """Serve gRPC over TLS, only to clients with a certificate issued under --grpc-root-cert."""

    grpc_server_cert: _Path
    """PEM file of the server's certificate chain. It is reloaded when it changes, as are the key and the roots."""

    grpc_server_key: _Path
    """PEM file of the certificate's private key."""

    grpc_root_cert: _Path
    """PEM file of the root certificates for clients."""

    grpc_infer_response_compression_level: Literal["none", "low", "medium", "high"]
    """Compress responses to inference requests, for clients that accept it."""

    grpc_keepalive_time: int
    """Idle milliseconds until the server pings a client; 2147483647 for never."""

    grpc_keepalive_timeout: int
    """Milliseconds that a client has to answer a ping before its connection is closed."""

    grpc_keepalive_permit_without_calls: bool
    """Limit client pings. If true, clients without calls in progress may ping as often as others; otherwise, every two hours."""

    grpc_http2_max_pings_without_data: int
    """Accepted, without effect: the server's pings are not counted."""

    grpc_http2_min_recv_ping_interval_without_data: int
    """Limit client pings: minimum milliseconds between two pings while the server sends no data. 300000 if another option limits them."""

    grpc_http2_max_ping_strikes: int
    """Limit client pings: close the connection when more than this many come too soon; 0 for no limit. 2 if another option limits them."""

    grpc_max_connection_age: int
    """Milliseconds (±10 %) after which a connection accepts no further calls; 0 for no limit."""

    grpc_max_connection_age_grace: int
    """Grace period in milliseconds after which such a connection is closed, even with calls in progress; 0 for no limit."""

    grpc_infer_thread_count: int
    """Accepted, without effect: calls run on the threads of --http-thread-count."""

    grpc_infer_allocation_pool_size: int
    """Accepted, without effect: requests are not pooled."""

    grpc_max_response_pool_size: int
    """Accepted, without effect: responses are not pooled."""

    allow_metrics: bool
    """Serve metrics."""

    allow_cpu_metrics: bool
    """Include the machine's processors and memory."""

    allow_gpu_metrics: bool
    """Include the machine's GPUs, if it has any."""

    metrics_address: str
    """Address or host name to serve metrics on, or a Unix socket as for --http-address. Default: the value of --http-address, or 127.0.0.1 if that is a Unix socket."""

    metrics_port: int
    """Port to serve metrics on; 0 for any free one."""

    metrics_interval_ms: int
    """Milliseconds between two samples of the machine's metrics."""

    metrics_config: Union[str, _Settings, Sequence[Union[str, _Settings]]]
    """Setting of the latency metrics: counter_latencies (default true), histogram_latencies and summary_latencies (default false), and summary_quantiles, a comma-separated list of QUANTILE:ERROR. Quantiles are accurate to 1 % of their value, for any ERROR. load_durations (default true) exposes how long models took to load. May be given several times."""

    pinned_memory_pool_byte_size: int
    """Bytes of pinned host memory that backends may borrow, if there is a GPU; 0 for none."""

    cuda_memory_pool_byte_size: Union[str, int, float, Sequence[Union[str, int, float]]]
    """Bytes of a GPU's memory that backends may borrow; 0 for none. May be given several times; the last value for a GPU counts. Default: 67108864 of each GPU."""

    enable_peer_access: bool
    """Accepted, without effect: the server never accesses one GPU's memory from another, and backends may enable peer access themselves."""

    cuda_virtual_address_size: Union[str, int, float, Sequence[Union[str, int, float]]]
    """Bytes of address space for each implicit state that grows, on a GPU. Accepted, without effect: states grow without it. May be given several times."""

    model_load_gpu_limit: Union[str, int, float, Sequence[Union[str, int, float]]]
    """Refuse to load models onto a GPU with more than this fraction of its memory in use. May be given several times; the last value for a GPU counts."""

    cache_config: Union[str, _Settings, Sequence[Union[str, _Settings]]]
    """Setting of the response cache: local,size=BYTES for one in memory; redis,host=NAME and redis,port=NUMBER for one in Redis; other names select a cache built for Triton. May be given several times, for one cache."""

    cache_directory: _Path
    """Folder with a subfolder for each installed cache."""

    response_cache_byte_size: int
    """Deprecated: --cache-config=local,size=BYTES."""

    allow_sagemaker: bool
    """Serve SageMaker: /ping, /invocations, and /models for multi-model endpoints."""

    sagemaker_port: int
    """Port to serve SageMaker on, on every address; 0 for any free one."""

    sagemaker_safe_port_range: str
    """Ports allowed for the other protocols. Default: any."""

    sagemaker_thread_count: int
    """Threads for SageMaker. Accepted, without effect: requests run on the threads of --http-thread-count."""

    allow_vertex_ai: bool
    """Serve Vertex AI, on the routes in the environment variables AIP_PREDICT_ROUTE and AIP_HEALTH_ROUTE. With AIP_MODE=PREDICTION this defaults to true, and --allow-http and --allow-grpc to false."""

    vertex_ai_port: int
    """Port to serve Vertex AI on, on every address; 0 for any free one. Defaults to AIP_HTTP_PORT of the environment, if set."""

    vertex_ai_thread_count: int
    """Threads for Vertex AI. Accepted, without effect: requests run on the threads of --http-thread-count."""

    vertex_ai_default_model: str
    """Model for predictions that name none. Default: the only model served at start."""

    trace_config: Union[str, _Settings, Sequence[Union[str, _Settings]]]
    """Trace setting: level (OFF, TIMESTAMPS, TENSORS), rate, count and mode (triton, opentelemetry); for mode triton: file and log-frequency; for mode opentelemetry: url, resource, bsp_max_queue_size, bsp_schedule_delay and bsp_max_export_batch_size. May be given several times."""

    trace_file: str
    """Deprecated: --trace-config=triton,file=FILE."""

    trace_level: Union[str, Sequence[str]]
    """Deprecated: --trace-config=level=LEVEL. May be given several times."""

    trace_rate: int
    """Deprecated: --trace-config=rate=COUNT."""

    trace_count: str
    """Deprecated: --trace-config=count=COUNT."""

    trace_log_frequency: int
    """Deprecated: --trace-config=triton,log-frequency=COUNT."""
