//! The kinds of objects behind C's handles, with the types of the header.

use std::sync::LazyLock;

use sharded_slab::Slab;
use triton_sys::*;

use crate::boundary::Pass;
use crate::handle::{Handle, Object, Table};

/// Implements [`Object`] for each kind, and lets C pass its handles.
macro_rules! objects {
    ($($object:ty = $c:ident, $kind:literal, $name:literal;)*) => {
        $(
            impl Object for $object {
                type C = $c;
                const NAME: &'static str = $name;
                const KIND: usize = $kind;

                fn table() -> &'static Table<Self> {
                    static TABLE: Table<$object> = LazyLock::new(Slab::new_with_config);
                    &TABLE
                }
            }

            impl Pass for *mut $c {
                type Safe = Handle<$object>;

                // SAFETY: callers uphold the contract of the trait.

                unsafe fn pass(self) -> Handle<$object> {
                    Handle::of(self)
                }
            }

            impl Pass for *const $c {
                type Safe = Handle<$object>;

                // SAFETY: callers uphold the contract of the trait.

                unsafe fn pass(self) -> Handle<$object> {
                    Handle::of(self.cast_mut())
                }
            }
        )*
    };
}

objects! {
    crate::error::ErrorObject = TRITONSERVER_Error, 1, "error";
    crate::message::Message = TRITONSERVER_Message, 2, "message";
    crate::parameter::Parameter = TRITONSERVER_Parameter, 3, "parameter";
    crate::attributes::BufferAttributes = TRITONSERVER_BufferAttributes, 4, "set of buffer attributes";
    crate::backend::BackendObject = TRITONBACKEND_Backend, 5, "backend";
    crate::backend::Attributes = TRITONBACKEND_BackendAttribute, 6, "set of backend attributes";
    crate::memory::MemoryManager = TRITONBACKEND_MemoryManager, 7, "memory manager";
    crate::model::ModelObject = TRITONBACKEND_Model, 8, "model";
    crate::instance::InstanceObject = TRITONBACKEND_ModelInstance, 9, "model instance";
    crate::request::RequestObject = TRITONBACKEND_Request, 10, "request";
    crate::input::InputObject = TRITONBACKEND_Input, 11, "input";
    crate::response::ResponseObject = TRITONBACKEND_Response, 12, "response";
    crate::response::OutputObject = TRITONBACKEND_Output, 13, "output";
    crate::factory::Factory = TRITONBACKEND_ResponseFactory, 14, "response factory";
    crate::statistics::ResponseReport = TRITONBACKEND_ModelInstanceResponseStatistics, 15, "set of response statistics";
    crate::server::ServerObject = TRITONSERVER_Server, 16, "server";
    crate::inference::InferenceRequest = TRITONSERVER_InferenceRequest, 17, "inference request";
    crate::outcome::InferenceResponse = TRITONSERVER_InferenceResponse, 18, "inference response";
    crate::allocator::Allocator = TRITONSERVER_ResponseAllocator, 19, "response allocator";
    nereid_backend_api::MetricFamily = TRITONSERVER_MetricFamily, 20, "metric family";
    nereid_backend_api::Metric = TRITONSERVER_Metric, 21, "metric";
    crate::metrics::MetricArgs = TRITONSERVER_MetricArgs, 22, "set of metric arguments";
    crate::metrics::Snapshot = TRITONSERVER_Metrics, 23, "set of metrics";
    crate::trace::TraceObject = TRITONSERVER_InferenceTrace, 24, "trace";
    crate::state::State = TRITONBACKEND_State, 25, "state";
    crate::options::ServerOptions = TRITONSERVER_ServerOptions, 27, "set of server options";
    crate::agent::AgentObject = TRITONREPOAGENT_Agent, 28, "repository agent";
    crate::agent::AgentModelObject = TRITONREPOAGENT_AgentModel, 29, "repository agent's model";
    crate::cache::CacheEntryObject = TRITONCACHE_CacheEntry, 30, "cache entry";
    crate::cache::CacheAllocator = TRITONCACHE_Allocator, 31, "cache allocator";
}
