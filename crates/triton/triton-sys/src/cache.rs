//! `tritoncache.h`: the functions of the server for response caches.

use std::ffi::{c_char, c_void};

use crate::handles::*;

declare! {
    fn TRITONCACHE_ApiVersion(major: *mut u32, minor: *mut u32) -> *mut TRITONSERVER_Error;
    fn TRITONCACHE_CacheEntryBufferCount(
        entry: *mut TRITONCACHE_CacheEntry,
        count: *mut usize,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONCACHE_CacheEntryAddBuffer(
        entry: *mut TRITONCACHE_CacheEntry,
        base: *mut c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONCACHE_CacheEntryGetBuffer(
        entry: *mut TRITONCACHE_CacheEntry,
        index: usize,
        base: *mut *mut c_void,
        buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONCACHE_CacheEntrySetBuffer(
        entry: *mut TRITONCACHE_CacheEntry,
        index: usize,
        new_base: *mut c_void,
        new_buffer_attributes: *mut TRITONSERVER_BufferAttributes,
    ) -> *mut TRITONSERVER_Error;
    fn TRITONCACHE_Copy(
        allocator: *mut TRITONCACHE_Allocator,
        entry: *mut TRITONCACHE_CacheEntry,
    ) -> *mut TRITONSERVER_Error;
}

/// The functions of a cache: types only, since the server looks them up by name.
pub mod entry {
    use super::*;

    signatures! {
        "C-unwind";
        fn TRITONCACHE_CacheInitialize(
            cache: *mut *mut TRITONCACHE_Cache,
            cache_config: *const c_char,
        ) -> *mut TRITONSERVER_Error;
        fn TRITONCACHE_CacheFinalize(cache: *mut TRITONCACHE_Cache) -> *mut TRITONSERVER_Error;
        fn TRITONCACHE_CacheLookup(
            cache: *mut TRITONCACHE_Cache,
            key: *const c_char,
            entry: *mut TRITONCACHE_CacheEntry,
            allocator: *mut TRITONCACHE_Allocator,
        ) -> *mut TRITONSERVER_Error;
        fn TRITONCACHE_CacheInsert(
            cache: *mut TRITONCACHE_Cache,
            key: *const c_char,
            entry: *mut TRITONCACHE_CacheEntry,
            allocator: *mut TRITONCACHE_Allocator,
        ) -> *mut TRITONSERVER_Error;
    }
}
