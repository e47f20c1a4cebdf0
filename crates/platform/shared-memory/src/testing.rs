//! Shared memory objects for tests.

use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};

use nereid_backend_api::Result;
use rustix::fs::Mode;
use rustix::shm::{self, OFlags};

use crate::faults::FaultHandler;
use crate::mapping::HostSlice;
use crate::regions::Regions;
use crate::slice::{Place, Slice};

/// Regions of this process, which has the handler of faults.
pub(crate) fn regions() -> Regions {
    Regions::new(Some(FaultHandler::install().unwrap()), None)
}

/// A slice of memory that the processor reads.
pub(crate) fn host(slice: Result<Slice>) -> HostSlice {
    match slice.unwrap().0 {
        Place::Host(slice) => slice,
        Place::Device(slice) => panic!("{slice:?}"),
    }
}

/// A shared memory object, removed on drop.
pub(crate) struct Object {
    pub key: String,
    pub file: File,
}

impl Object {
    pub(crate) fn new(size: u64) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let key = format!("/nereid-test-{}-{number}", std::process::id());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = File::from(shm::open(&key, flags, Mode::RUSR | Mode::WUSR).unwrap());
        file.set_len(size).unwrap();
        Self { key, file }
    }

    /// The bytes, as another process sees them.
    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt;
        self.file.write_all_at(bytes, offset).unwrap();
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        shm::unlink(&self.key).unwrap();
    }
}
