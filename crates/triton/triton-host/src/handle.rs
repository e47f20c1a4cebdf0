//! Handles: the numbers by which C refers to our objects.
//!
//! C never dereferences a handle, so it is not an address but a number: a slot in a table, its generation, and the
//! kind of object. Using a handle that was released, has another kind or never existed is an error, on any thread.

use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, LazyLock};

use nereid_backend_api::{Error, Result};
use sharded_slab::{Config, Slab};
use triton_sys::*;

use crate::boundary::Pass;

/// The lowest bits of a handle, which the table leaves free, are the kind of its object.
const KIND_BITS: usize = 5;

/// How the tables number their slots.
pub(crate) struct Numbering;

impl Config for Numbering {
    const RESERVED_BITS: usize = KIND_BITS;
    /// Fewer pages than the default leave more bits for generations, with room for 33 million objects of each kind
    /// and thread.
    const MAX_PAGES: usize = 20;
}

/// The live objects of one kind.
pub(crate) type Table<T> = LazyLock<Slab<Arc<T>, Numbering>>;

/// A type whose objects C refers to by handles.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    /// The opaque type of the header.
    type C;
    /// The type's name in messages.
    const NAME: &'static str;
    /// The number of the kind; not 0, so that no handle is null.
    const KIND: usize;

    /// All live objects.
    fn table() -> &'static Table<Self>;
}

/// A handle passed by C, valid or not.
pub(crate) struct Handle<T>(usize, PhantomData<fn() -> T>);

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T: Object> Handle<T> {
    /// Passes an object to C, until it is [taken](Self::take) back.
    ///
    /// # Errors
    /// The table is full.
    pub(crate) fn give(object: Arc<T>) -> Result<Self> {
        let full = || Error::unavailable(format!("too many objects of kind '{}'", T::NAME));
        let key = T::table().insert(object).ok_or_else(full)?;
        Ok(Self(key << KIND_BITS | T::KIND, PhantomData))
    }

    /// The handle in a pointer from C.
    pub(crate) fn of(pointer: *mut T::C) -> Self {
        Self(pointer.addr(), PhantomData)
    }

    /// The null handle.
    pub(crate) fn null() -> Self {
        Self(0, PhantomData)
    }

    /// The handle as C's pointer.
    pub(crate) fn as_c(self) -> *mut T::C {
        ptr::without_provenance_mut(self.0)
    }

    pub(crate) fn is_null(self) -> bool {
        self.0 == 0
    }

    fn key(self) -> Option<usize> {
        (self.0 & ((1 << KIND_BITS) - 1) == T::KIND).then_some(self.0 >> KIND_BITS)
    }

    fn wrong(self) -> Error {
        let what = if self.is_null() { "null" } else { "invalid: was it released before?" };
        Error::invalid_arg(format!("the handle of a {} is {what}", T::NAME))
    }

    /// The object.
    ///
    /// # Errors
    /// `InvalidArg` unless the handle refers to a live object of this kind.
    pub(crate) fn get(self) -> Result<Arc<T>> {
        let entry = self.key().and_then(|key| T::table().get(key)).ok_or_else(|| self.wrong())?;
        Ok(Arc::clone(&entry))
    }

    /// Takes the object back from C.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub(crate) fn take(self) -> Result<Arc<T>> {
        self.key().and_then(|key| T::table().take(key)).ok_or_else(|| self.wrong())
    }

    /// Deletes an object. A null handle is allowed: backends rely on that.
    ///
    /// # Errors
    /// As [`get`](Self::get) for any other handle.
    pub(crate) fn delete(self) -> Result<()> {
        if self.is_null() { Ok(()) } else { self.take().map(drop) }
    }
}

/// Takes its handle back when dropped, for objects that C does not release itself.
pub(crate) struct LentHandle<T: Object>(Handle<T>);

impl<T: Object> LentHandle<T> {
    pub(crate) fn new(object: Arc<T>) -> Result<Self> {
        Handle::give(object).map(Self)
    }

    /// Adopts a handle that was passed to C.
    pub(crate) fn adopt(handle: Handle<T>) -> Self {
        Self(handle)
    }

    pub(crate) fn handle(&self) -> Handle<T> {
        self.0
    }
}

impl<T: Object> Drop for LentHandle<T> {
    fn drop(&mut self) {
        // C may have released the handle although it does not own it; nothing is left to do then.
        let _ = self.0.take();
    }
}

/// The objects, with the types of the header.
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
                    Handle(self.addr(), PhantomData)
                }
            }

            impl Pass for *const $c {
                type Safe = Handle<$object>;

                // SAFETY: callers uphold the contract of the trait.

                unsafe fn pass(self) -> Handle<$object> {
                    Handle(self.addr(), PhantomData)
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
