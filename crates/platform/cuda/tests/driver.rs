//! Tests with the stand-in of `tests/gpu`, which is stricter than a GPU: contexts, copies, memory of other processes,
//! pools, and each call that can fail. Each loaded copy of the stand-in acts as a separate process.

#[path = "../../../../tests/gpu/standin.rs"]
mod standin;

use std::sync::Arc;
use std::thread;

use nereid_backend_api::{Buffer, DeviceBuffer, DeviceMemory, ErrorCode, Memory, MemoryKind};
use nereid_cuda::{
    Cuda, CudaError, DeviceAllocation, ForeignMemory, ImportedMemory, PinnedAllocation, PoolSizes, PoolUsage,
    Pools,
};

use standin::Standin;

fn open(standin: &Standin) -> Arc<Cuda> {
    Cuda::open(&standin.path).unwrap()
}

/// A handle of `bytes` in another process's first GPU, and the owner of the memory.
fn shared_by_another(bytes: &[u8]) -> ([u8; 64], DeviceAllocation) {
    let other = Standin::with("9.0");
    let allocation = DeviceAllocation::new(&open(&other), 0, bytes.len()).unwrap();
    allocation.write(allocation.address(), bytes).unwrap();
    (allocation.export().unwrap(), allocation)
}

fn call(outcome: Result<impl Sized, CudaError>) -> (&'static str, i32) {
    match outcome.err().unwrap() {
        CudaError::Call { call, code, .. } => (call, code),
        other => panic!("{other}"),
    }
}

#[test]
fn gpus_are_listed_with_their_capabilities() {
    let cuda = open(&Standin::with("9.0,5.2"));
    let devices: Vec<_> = cuda.devices().cloned().collect();
    assert_eq!(devices.iter().map(|device| device.number).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(devices[1].name, "Stand-in 1");
    assert_eq!(devices[1].capability.to_string(), "5.2");
    assert!(devices[0].capability > devices[1].capability);
}

#[test]
fn missing_driver_and_missing_gpus_are_distinguished() {
    let error = Cuda::open("libnereid-no-such-driver.so.1").unwrap_err();
    assert!(matches!(&error, CudaError::NotLoaded { .. }), "{error}");
    assert!(error.to_string().contains("'libnereid-no-such-driver.so.1'"), "{error}");
    // A library, but not the driver.
    let error = Cuda::open("libc.so.6").unwrap_err();
    assert!(error.to_string().contains("cuInit"), "{error}");
    let none = open(&Standin::with(""));
    assert_eq!(none.devices().len(), 0);
    let error = DeviceAllocation::new(&none, 0, 1).err().unwrap();
    assert_eq!(error, CudaError::NoDevice { device: 0, count: 0 });
}

#[test]
fn failure_of_each_discovery_call_is_reported() {
    let standin = Standin::with("9.0");
    for name in ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute"] {
        standin.fail(name, 999);
        let error = Cuda::open(&standin.path).unwrap_err();
        assert_eq!(error.to_string(), format!("{name} failed with CUDA_ERROR_UNKNOWN: unknown error"));
    }
    standin.fail("cuInit", 12345);
    let error = Cuda::open(&standin.path).unwrap_err().to_string();
    assert_eq!(error, "cuInit failed with error 12345: the driver has no description");
    standin.fail("", 0);
    assert_eq!(open(&standin).devices().len(), 1);
}

#[test]
fn memory_is_copied_both_ways_on_any_thread_and_device() {
    let standin = Standin::with("9.0,9.0");
    let cuda = open(&standin);
    for device in [0, 1] {
        let memory = Arc::new(DeviceAllocation::new(&cuda, device, 1000).unwrap());
        let writer = Arc::clone(&memory);
        thread::spawn(move || writer.write(writer.address() + 10, b"abcd").unwrap()).join().unwrap();
        let mut read = [0; 6];
        memory.read(memory.address() + 9, &mut read).unwrap();
        assert_eq!(&read, b"\0abcd\0");
        memory.read(memory.address() + 1000, &mut []).unwrap();
    }
    assert_eq!((standin.memories(), standin.count("standin_retained")), (0, 2));
    drop(cuda);
    assert_eq!(standin.count("standin_retained"), 0);
}

#[test]
fn access_outside_the_allocation_is_refused() {
    let cuda = open(&Standin::with("9.0"));
    let memory = DeviceAllocation::new(&cuda, 0, 100).unwrap();
    let start = memory.address();
    for (address, length) in
        [(start - 1, 1), (start, 101), (start + 100, 1), (start + 101, 0), (0, 0), (u64::MAX, 2)]
    {
        let error = memory.read(address, &mut vec![0; length]).unwrap_err();
        assert!(error.message().contains("are outside their allocation on GPU 0"), "{error}");
        assert!(memory.write(address, &vec![0; length]).is_err());
    }
}

#[test]
fn memory_of_another_process_is_opened_used_and_closed() {
    let standin = Standin::with("9.0");
    let cuda = open(&standin);
    let (handle, theirs) = shared_by_another(b"abcdefgh");
    let ours = ImportedMemory::open(&cuda, 0, handle, 6).unwrap();
    assert_eq!((ours.byte_size(), ours.device(), ours.ipc_handle()), (6, 0, Some(&handle)));
    assert_eq!(ours.ipc_base(), Some(ours.address()));
    let mut read = [0; 3];
    ours.read(ours.address() + 3, &mut read).unwrap();
    assert_eq!(&read, b"def");
    ours.write(ours.address(), b"xyz").unwrap();
    theirs.read(theirs.address() + 1, &mut read).unwrap();
    assert_eq!(&read, b"yzd");
    // Past the end, though the other process's memory is longer.
    assert!(ours.read(ours.address() + 6, &mut read[..1]).is_err());
    // Opened twice, under two names: the memory stays until both are closed.
    let again = ImportedMemory::open(&cuda, 0, handle, 8).unwrap();
    drop(ours);
    again.read(again.address() + 5, &mut read).unwrap();
    assert_eq!(&read, b"fgh");
    drop(again);
    assert_eq!(standin.memories(), 0);
}

#[test]
fn refused_import_leaves_nothing_open() {
    let standin = Standin::with("9.0,9.0");
    let cuda = open(&standin);
    let (handle, theirs) = shared_by_another(b"abcdefgh");
    let open = |device, handle, size| ImportedMemory::open(&cuda, device, handle, size);
    assert_eq!(open(0, handle, 9).err(), Some(CudaError::TooLong { requested: 9, available: 8 }));
    assert_eq!(open(2, handle, 8).err(), Some(CudaError::NoDevice { device: 2, count: 2 }));
    assert_eq!(open(-1, handle, 8).err(), Some(CudaError::NoDevice { device: -1, count: 2 }));
    assert_eq!(call(open(0, [7; 64], 8)), ("cuIpcOpenMemHandle_v2", 1));
    assert_eq!(call(open(1, handle, 8)), ("cuIpcOpenMemHandle_v2", 217));
    standin.fail("cuMemGetAddressRange_v2", 999);
    assert_eq!(call(open(0, handle, 8)), ("cuMemGetAddressRange_v2", 999));
    standin.fail("", 0);
    // The process's own memory can be opened only by other processes.
    let own = DeviceAllocation::new(&cuda, 0, 8).unwrap();
    assert_eq!(call(open(0, own.export().unwrap(), 8)), ("cuIpcOpenMemHandle_v2", 201));
    drop((own, theirs));
    // The other process has freed the memory by now.
    assert_eq!(call(open(0, handle, 8)), ("cuIpcOpenMemHandle_v2", 1));
    assert_eq!(standin.memories(), 0);
}

#[test]
fn failure_of_each_memory_call_is_reported() {
    let standin = Standin::with("9.0");
    let cuda = open(&standin);
    standin.fail("cuDevicePrimaryCtxRetain", 2);
    assert_eq!(call(DeviceAllocation::new(&cuda, 0, 8)), ("cuDevicePrimaryCtxRetain", 2));
    standin.fail("cuCtxPushCurrent_v2", 201);
    assert_eq!(call(DeviceAllocation::new(&cuda, 0, 8)), ("cuCtxPushCurrent_v2", 201));
    standin.fail("cuMemAlloc_v2", 2);
    assert_eq!(call(DeviceAllocation::new(&cuda, 0, 8)), ("cuMemAlloc_v2", 2));
    standin.fail("cuMemHostAlloc", 2);
    assert_eq!(call(PinnedAllocation::new(&cuda, 0, 8)), ("cuMemHostAlloc", 2));
    standin.fail("", 0);
    let memory = DeviceAllocation::new(&cuda, 0, 8).unwrap();
    standin.fail("cuIpcGetMemHandle", 999);
    assert_eq!(call(memory.export()), ("cuIpcGetMemHandle", 999));
    standin.fail("cuMemcpyDtoH_v2", 700);
    let error = memory.read(memory.address(), &mut [0; 8]).unwrap_err();
    assert_eq!(error.code(), ErrorCode::Internal);
    assert_eq!(
        error.message(),
        "cuMemcpyDtoH_v2 failed with CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
    );
    for name in ["cuMemcpyHtoD_v2", "cuStreamSynchronize"] {
        standin.fail(name, 999);
        assert!(memory.write(memory.address(), &[0; 8]).unwrap_err().message().starts_with(name));
    }
    standin.fail("", 0);
    // No context remains on the thread: the stand-in would run out of room for them.
    (0..40).for_each(|_| memory.write(memory.address(), &[1; 8]).unwrap());
}

#[test]
fn foreign_memory_keeps_its_owner_until_dropped() {
    let cuda = open(&Standin::with("9.0"));
    let memory = Arc::new(DeviceAllocation::new(&cuda, 0, 8).unwrap());
    memory.write(memory.address(), b"abcdefgh").unwrap();
    let foreign = |cuda| {
        // SAFETY: the memory lives as long as its owner.
        unsafe { ForeignMemory::new(cuda, 0, memory.address(), 8, Arc::clone(&memory)) }
    };
    let owner = Arc::new(foreign(Some(&cuda)));
    let buffer = Buffer::device(DeviceBuffer { address: memory.address() + 2, len: 3, owner }, 0);
    assert_eq!(Arc::strong_count(&memory), 2);
    assert_eq!(buffer.to_host().unwrap(), "cde");
    drop(buffer);
    assert_eq!(Arc::strong_count(&memory), 1);
    let without_driver = foreign(None).read(memory.address(), &mut [0; 3]).unwrap_err();
    assert!(without_driver.message().contains("no driver"), "{without_driver}");
    assert!(foreign(None).write(memory.address(), &[0; 3]).is_err());
}

const PINNED: Memory = Memory { kind: MemoryKind::CpuPinned, device: 0 };

fn gpu(device: i64) -> Memory {
    Memory { kind: MemoryKind::Gpu, device }
}

#[test]
fn pools_lend_device_and_pinned_memory() {
    let standin = Standin::with("9.0,9.0,9.0");
    let cuda = open(&standin);
    let sizes = PoolSizes { pinned: 4096, devices: [(0, 1024), (1, 0), (2, 2048)].into() };
    let pools = Pools::new(&cuda, &[0, 1], &sizes);
    let here = pools.allocate(PINNED, 4096).unwrap();
    assert_eq!(pools.pinned_usage(), Some(PoolUsage { used: 4096, total: 4096 }));
    let (one, other) = (pools.allocate(gpu(0), 100).unwrap(), pools.allocate(gpu(0), 100).unwrap());
    assert!(one.addr().abs_diff(other.addr()) >= 100);
    assert_eq!(pools.device_usage().collect::<Vec<_>>(), [(0, PoolUsage { used: 200, total: 1024 })]);
    let code = |outcome: nereid_backend_api::Result<_>| {
        outcome.err().map(|error: nereid_backend_api::Error| error.code())
    };
    assert_eq!(code(pools.allocate(gpu(0), 1000)), Some(ErrorCode::Internal));
    assert_eq!(code(pools.allocate(PINNED, 1)), Some(ErrorCode::Internal));
    assert_eq!(code(pools.allocate(gpu(1), 1)), Some(ErrorCode::Unavailable));
    assert_eq!(code(pools.allocate(gpu(2), 1)), Some(ErrorCode::Unavailable));
    pools.free(gpu(0), one.addr()).unwrap();
    let error = pools.free(gpu(0), one.addr()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    assert!(pools.free(gpu(0), 1).is_err() && pools.free(PINNED, one.addr()).is_err());
    pools.free(PINNED, here.addr()).unwrap();
    pools.free(gpu(0), other.addr()).unwrap();
    assert_eq!(pools.pinned_usage().unwrap().used, 0);
    drop(pools);
    assert_eq!(standin.memories(), 0);
}

#[test]
fn machine_without_gpus_lends_no_gpu_memory() {
    let pools = Pools::default();
    for memory in [PINNED, gpu(0)] {
        assert_eq!(pools.allocate(memory, 8).unwrap_err().code(), ErrorCode::Unsupported);
        assert_eq!(pools.free(memory, 8).unwrap_err().code(), ErrorCode::Unsupported);
    }
    assert_eq!((pools.pinned_usage(), pools.device_usage().count()), (None, 0));
}

#[test]
fn pool_that_cannot_be_allocated_is_omitted() {
    let standin = Standin::with("9.0");
    let cuda = open(&standin);
    standin.fail("cuMemHostAlloc", 2);
    let pools = Pools::new(&cuda, &[0], &PoolSizes::default());
    assert_eq!(pools.pinned_usage(), None);
    assert_eq!(pools.allocate(PINNED, 8).unwrap_err().code(), ErrorCode::Unavailable);
    let total = pools.device_usage().map(|(_, usage)| usage.total).collect::<Vec<_>>();
    assert_eq!(total, [PoolSizes::DEVICE]);
    drop(pools);
    let huge = PoolSizes { pinned: 0, devices: [(0, u64::MAX)].into() };
    let pools = Pools::new(&cuda, &[0], &huge);
    assert_eq!((pools.pinned_usage(), pools.device_usage().count()), (None, 0));
}
