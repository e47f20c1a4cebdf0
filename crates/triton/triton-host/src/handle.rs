//! Handles: the numbers by which C refers to our objects.
//!
//! C never dereferences a handle, so it is not an address but a number: a slot in a table, its generation, and the
//! kind of object. Using a handle that was released, has another kind or never existed is an error, on any thread.

use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, LazyLock};

use nereid_backend_api::{Error, Result};
use sharded_slab::{Config, Slab};

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
