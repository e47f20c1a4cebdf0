//! CUDA regions on the stand-in for the driver: registered, read, written, and kept while in use.

#[path = "../../../../tests/gpu/standin.rs"]
mod standin;

use std::sync::Arc;

use nereid_backend_api::{
    DataType, DeviceMemory, ErrorCode, Memory, MemoryKind, OutputAllocator, OutputSpec, PlacedMemory, Result,
    Shape,
};
use nereid_cuda::{Cuda, DeviceAllocation};
use nereid_shared_memory::{CudaRegionStatus, FaultHandler, Regions, RequestMemory};

use standin::Standin;

/// A server's regions, and memory of 64 bytes that a client has.
struct Scene {
    standin: Standin,
    regions: Regions,
    client: DeviceAllocation,
}

impl Scene {
    fn new() -> Self {
        let standin = Standin::with("9.0");
        let regions =
            Regions::new(Some(FaultHandler::install().unwrap()), Some(Cuda::open(&standin.path).unwrap()));
        let client = DeviceAllocation::new(&Cuda::open(&Standin::with("9.0").path).unwrap(), 0, 64).unwrap();
        client.write(client.address(), b"0123456789").unwrap();
        Self { standin, regions, client }
    }

    fn register(&self, name: &str) -> Result<()> {
        self.regions.register_cuda(name, &self.client.export().unwrap(), 0, 64)
    }

    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.client.read(self.client.address() + offset, &mut bytes).unwrap();
        bytes
    }

    /// Places an output of a request whose input is the beginning of a region.
    fn placed(&self, input: (&str, u64), offset: u64, length: u64) -> Arc<dyn OutputAllocator> {
        let mut memory = RequestMemory::default();
        memory.input(self.regions.slice(input.0, 0, input.1).unwrap(), DataType::Uint8);
        memory.output("A".into(), self.regions.slice("r", offset, length).unwrap());
        memory.allocator().unwrap()
    }
}

const GPU: Memory = Memory { kind: MemoryKind::Gpu, device: 0 };

fn allocate(
    outputs: &Arc<dyn OutputAllocator>,
    byte_size: usize,
    preferred: Memory,
) -> Result<Box<dyn PlacedMemory>> {
    let shape = Shape::from([i64::try_from(byte_size).unwrap()]);
    let spec = OutputSpec {
        name: "A",
        data_type: DataType::Uint8,
        shape: &shape,
        byte_size,
        preferred,
        is_read_back: false,
    };
    Ok(outputs.allocate(&spec)?.unwrap())
}

fn code(outcome: Result<impl Sized>) -> Option<ErrorCode> {
    outcome.err().map(|error| error.code())
}

#[test]
fn region_is_registered_read_and_unregistered() {
    let scene = Scene::new();
    scene.register("r").unwrap();
    let status = CudaRegionStatus { name: "r".into(), device_id: 0, byte_size: 64 };
    assert_eq!(scene.regions.cuda_status("r").unwrap(), status);
    assert_eq!(scene.regions.all_cuda(), [status]);
    let mut memory = RequestMemory::default();
    // BYTES also stay on the device until they are read.
    for data_type in [DataType::Uint8, DataType::Bytes] {
        let input = memory.input(scene.regions.slice("r", 2, 3).unwrap(), data_type);
        assert_eq!((input.memory(), input.len()), (GPU, 3));
        assert_eq!(input.to_host().unwrap(), "234");
    }
    memory.check().unwrap();
    let input = memory.input(scene.regions.slice("r", 8, 2).unwrap(), DataType::Uint8);
    scene.regions.unregister_cuda("r").unwrap();
    assert_eq!(code(scene.regions.cuda_status("r")), Some(ErrorCode::NotFound));
    assert_eq!(code(scene.regions.slice("r", 0, 1)), Some(ErrorCode::NotFound));
    // A slice remains usable after its region is unregistered.
    assert_eq!((input.to_host().unwrap(), scene.standin.memories()), ("89".into(), 1));
    drop((input, memory));
    assert_eq!(scene.standin.memories(), 0);
    scene.regions.unregister_cuda("r").unwrap();
}

#[test]
fn invalid_registration_is_refused_and_leaves_nothing_open() {
    let scene = Scene::new();
    let handle = scene.client.export().unwrap();
    scene.register("known").unwrap();
    for (name, handle, device, size, expected) in [
        ("known", &handle[..], 0, 64, ErrorCode::AlreadyExists),
        ("r", &handle[1..], 0, 64, ErrorCode::InvalidArg),
        ("r", &[], 0, 64, ErrorCode::InvalidArg),
        ("r", &[0; 64], 0, 64, ErrorCode::InvalidArg),
        ("r", &handle[..], 1, 64, ErrorCode::InvalidArg),
        ("r", &handle[..], -1, 64, ErrorCode::InvalidArg),
        ("r", &handle[..], i64::MAX, 64, ErrorCode::InvalidArg),
        ("r", &handle[..], 0, 0, ErrorCode::InvalidArg),
        ("r", &handle[..], 0, 65, ErrorCode::InvalidArg),
        ("r", &handle[..], 0, u64::MAX, ErrorCode::InvalidArg),
    ] {
        let outcome = scene.regions.register_cuda(name, handle, device, size);
        assert_eq!(code(outcome), Some(expected), "{name} {device} {size}");
    }
    assert_eq!(scene.regions.all_cuda().len(), 1);
    scene.regions.unregister_all_cuda().unwrap();
    assert_eq!(scene.standin.memories(), 0);
    let without_devices = Cuda::open(&Standin::with("").path).unwrap();
    for none in [Regions::default(), Regions::new(None, Some(without_devices))] {
        let error = none.register_cuda("r", &handle, 0, 64).unwrap_err();
        assert!(error.code() == ErrorCode::InvalidArg && error.message().contains("no GPU"), "{error}");
    }
    let closed = Regions::closed();
    assert_eq!(code(closed.register_cuda("r", &handle, 0, 64)), Some(ErrorCode::Unsupported));
    assert_eq!(code(closed.unregister_cuda("r")), Some(ErrorCode::Unsupported));
    assert_eq!(code(closed.unregister_all_cuda()), Some(ErrorCode::Unsupported));
}

#[test]
fn cuda_and_system_regions_are_distinct() {
    let scene = Scene::new();
    scene.register("r").unwrap();
    assert_eq!(code(scene.regions.register("r", "/nereid-none", 0, 8)), Some(ErrorCode::AlreadyExists));
    assert_eq!(code(scene.regions.status("r")), Some(ErrorCode::NotFound));
    scene.regions.unregister("r").unwrap();
    scene.regions.unregister_all().unwrap();
    assert_eq!((scene.regions.all().len(), scene.regions.all_cuda().len()), (0, 1));
}

#[test]
fn slice_outside_its_region_is_refused() {
    let scene = Scene::new();
    scene.register("r").unwrap();
    assert_eq!(scene.regions.slice("r", 0, 64).unwrap().len(), 64);
    assert_eq!(scene.regions.slice("r", 63, 1).unwrap().len(), 1);
    for (offset, length) in [(0, 65), (64, 0), (63, 2), (u64::MAX, 1), (1, u64::MAX), (0, 0), (63, 0)] {
        let outcome = scene.regions.slice("r", offset, length);
        assert_eq!(code(outcome), Some(ErrorCode::InvalidArg), "{offset} {length}");
    }
}

#[test]
fn output_is_written_when_complete() {
    let scene = Scene::new();
    scene.register("r").unwrap();
    let outputs = scene.placed(("r", 4), 16, 8);
    assert!(outputs.places_on_device());
    assert_eq!(
        (outputs.preferred_memory("A", None), outputs.preferred_memory("B", None)),
        (GPU, Memory::HOST)
    );
    let mut memory = allocate(&outputs, 4, Memory::HOST).unwrap();
    memory.as_mut_slice().unwrap().copy_from_slice(b"abcd");
    assert_eq!(scene.bytes(16, 4), [0; 4]);
    let buffer = memory.freeze().unwrap();
    assert_eq!((buffer.memory(), scene.bytes(15, 6)), (GPU, b"\0abcd\0".to_vec()));
    assert_eq!(code(allocate(&outputs, 9, Memory::HOST)), Some(ErrorCode::Internal));
}

#[test]
fn device_output_is_placed_in_the_region_unless_it_overlaps_an_input() {
    let scene = Scene::new();
    scene.register("r").unwrap();
    scene.register("again").unwrap();
    let mut memory = allocate(&scene.placed(("r", 4), 16, 8), 4, GPU).unwrap();
    assert!(memory.as_mut_slice().is_none());
    let buffer = memory.as_device().unwrap();
    let device = buffer.as_device().unwrap();
    assert_eq!(device.owner.ipc_handle(), Some(&scene.client.export().unwrap()));
    device.owner.write(device.address, b"abcd").unwrap();
    memory.freeze().unwrap();
    assert_eq!(scene.bytes(16, 4), b"abcd");
    // Over its input, here and by another name of the same memory.
    for region in ["r", "again"] {
        let mut over = allocate(&scene.placed((region, 4), 3, 4), 4, GPU).unwrap();
        assert!(over.as_device().is_none() && over.as_mut_slice().is_some(), "{region}");
    }
}

#[test]
fn failed_copy_is_an_error() {
    let scene = Scene::new();
    scene.register("r").unwrap();
    let memory = allocate(&scene.placed(("r", 4), 16, 8), 4, Memory::HOST).unwrap();
    scene.standin.fail("cuMemcpyHtoD_v2", 700);
    assert_eq!(code(memory.freeze()), Some(ErrorCode::Internal));
}
