//! The opaque types of the C interface. Only pointers to them exist; the server owns the objects.

use std::marker::{PhantomData, PhantomPinned};

macro_rules! opaque {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            pub struct $name {
                _nothing: [u8; 0],
                // Neither Send, Sync nor Unpin, since the object's properties are unknown.
                _marker: PhantomData<(*mut u8, PhantomPinned)>,
            }
        )*
    };
}

opaque! {
    /// A loaded backend.
    TRITONBACKEND_Backend;
    /// The attributes that a backend reports when it is loaded.
    TRITONBACKEND_BackendAttribute;
    /// A backend's batching rules; owned by the backend.
    TRITONBACKEND_Batcher;
    /// An input of a request.
    TRITONBACKEND_Input;
    /// Lends memory of the server.
    TRITONBACKEND_MemoryManager;
    /// A model served by a backend.
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
    /// Makes responses to one request, even after its release.
    TRITONBACKEND_ResponseFactory;
    /// A state that the server keeps for a sequence.
    TRITONBACKEND_State;
    /// Copies between a cache's buffers and the server's.
    TRITONCACHE_Allocator;
    /// A response cache; owned by the cache's library.
    TRITONCACHE_Cache;
    /// An entry of a response cache.
    TRITONCACHE_CacheEntry;
    /// A repository agent.
    TRITONREPOAGENT_Agent;
    /// A model that an agent works on.
    TRITONREPOAGENT_AgentModel;
    /// Buffer attributes: the memory and size of a buffer.
    TRITONSERVER_BufferAttributes;
    /// An error: a code and a message.
    TRITONSERVER_Error;
    /// A request made by an application or a backend.
    TRITONSERVER_InferenceRequest;
    /// The response to such a request.
    TRITONSERVER_InferenceResponse;
    /// The trace of one inference.
    TRITONSERVER_InferenceTrace;
    /// A JSON document.
    TRITONSERVER_Message;
    /// One metric, with its labels.
    TRITONSERVER_Metric;
    /// Further arguments for a kind of metric, such as buckets.
    TRITONSERVER_MetricArgs;
    /// The metrics of one name.
    TRITONSERVER_MetricFamily;
    /// The metrics of a server at one moment.
    TRITONSERVER_Metrics;
    /// A name and a typed value.
    TRITONSERVER_Parameter;
    /// Places the outputs of a response.
    TRITONSERVER_ResponseAllocator;
    /// The server.
    TRITONSERVER_Server;
    /// Options of a new server.
    TRITONSERVER_ServerOptions;
}
