//! The opaque types of the C interface. Only pointers to them exist; the server owns what they point to.

use std::marker::{PhantomData, PhantomPinned};

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub struct $name {
                _nothing: [u8; 0],
                // Neither Send, Sync nor Unpin: nothing is known of what is behind.
                _marker: PhantomData<(*mut u8, PhantomPinned)>,
            }
        )*
    };
}

opaque! {
    /// A loaded backend.
    TRITONBACKEND_Backend;
    /// What a backend says of itself when it is loaded.
    TRITONBACKEND_BackendAttribute;
    /// A backend's own rules for batches; it belongs to the backend.
    TRITONBACKEND_Batcher;
    /// An input of a request.
    TRITONBACKEND_Input;
    /// Lends memory of the server.
    TRITONBACKEND_MemoryManager;
    /// A model that is served by a backend.
    TRITONBACKEND_Model;
    /// One instance of a model.
    TRITONBACKEND_ModelInstance;
    /// Times of one response of a decoupled model.
    TRITONBACKEND_ModelInstanceResponseStatistics;
    /// An output of a response.
    TRITONBACKEND_Output;
    /// A request to a model.
    TRITONBACKEND_Request;
    /// A response under construction.
    TRITONBACKEND_Response;
    /// Makes responses to one request, also after its release.
    TRITONBACKEND_ResponseFactory;
    /// A state that the server keeps for a sequence.
    TRITONBACKEND_State;
    /// Copies between a cache's buffers and the server's.
    TRITONCACHE_Allocator;
    /// A response cache; it belongs to the cache's library.
    TRITONCACHE_Cache;
    /// An entry of a response cache.
    TRITONCACHE_CacheEntry;
    /// A repository agent.
    TRITONREPOAGENT_Agent;
    /// A model in an agent's hands.
    TRITONREPOAGENT_AgentModel;
    /// Buffer attributes: where a buffer is, and its size.
    TRITONSERVER_BufferAttributes;
    /// An error: a code and a message.
    TRITONSERVER_Error;
    /// A request that an application, or a backend in its place, makes.
    TRITONSERVER_InferenceRequest;
    /// The response to such a request.
    TRITONSERVER_InferenceResponse;
    /// What is recorded of one inference.
    TRITONSERVER_InferenceTrace;
    /// A JSON document.
    TRITONSERVER_Message;
    /// One metric, with its labels.
    TRITONSERVER_Metric;
    /// What a kind of metric needs besides, such as buckets.
    TRITONSERVER_MetricArgs;
    /// The metrics of one name.
    TRITONSERVER_MetricFamily;
    /// The metrics of a server at one moment.
    TRITONSERVER_Metrics;
    /// A name and a typed value.
    TRITONSERVER_Parameter;
    /// Who places the outputs of a response.
    TRITONSERVER_ResponseAllocator;
    /// The server.
    TRITONSERVER_Server;
    /// Options of a server to be made.
    TRITONSERVER_ServerOptions;
}
