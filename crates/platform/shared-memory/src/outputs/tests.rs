//! Outputs in regions: fitting, too large, and overlapping.

use nereid_backend_api::{DataType, ErrorCode, Memory, Shape};

use super::*;
use crate::Regions;
use crate::testing::{Object, host, regions};

fn allocate(outputs: &PlacedOutputs, name: &str, byte_size: usize) -> Result<Option<Box<dyn PlacedMemory>>> {
    let shape = Shape::from([i64::try_from(byte_size).unwrap()]);
    outputs.allocate(&OutputSpec {
        name,
        data_type: DataType::Uint8,
        shape: &shape,
        byte_size,
        preferred: Memory::HOST,
        is_read_back: false,
    })
}

fn placed(regions: &Regions, output: &str, offset: u64, length: u64) -> Placement {
    Placement { output: output.into(), memory: regions.slice("r", offset, length).unwrap() }
}

#[test]
fn output_is_written_to_its_placement() {
    let (regions, object) = (regions(), Object::new(100));
    regions.register("r", &object.key, 0, 100).unwrap();
    let outputs =
        PlacedOutputs::new(vec![placed(&regions, "A", 10, 8)], vec![regions.slice("r", 20, 8).unwrap()]);
    let mut memory = allocate(&outputs, "A", 4).unwrap().unwrap();
    memory.as_mut_slice().unwrap().copy_from_slice(b"abcd");
    // Written in place, before the answer.
    assert_eq!(object.bytes(10, 5), b"abcd\0");
    assert_eq!(memory.freeze().unwrap().as_host().unwrap().as_ref(), b"abcd");
    assert!(allocate(&outputs, "B", 4).unwrap().is_none());
    assert_eq!(allocate(&outputs, "A", 9).err().unwrap().code(), ErrorCode::Internal);
}

#[test]
fn output_over_an_input_is_written_when_complete() {
    let (regions, object) = (regions(), Object::new(100));
    regions.register("r", &object.key, 0, 100).unwrap();
    object.write(0, b"input");
    let input = regions.slice("r", 0, 5).unwrap();
    let outputs = PlacedOutputs::new(vec![placed(&regions, "A", 2, 5)], vec![input.clone()]);
    let mut memory = allocate(&outputs, "A", 5).unwrap().unwrap();
    memory.as_mut_slice().unwrap().copy_from_slice(b"abcde");
    assert_eq!(host(Ok(input)).as_ref(), b"input");
    memory.freeze().unwrap();
    assert_eq!(object.bytes(0, 7), b"inabcde");
}

#[test]
fn output_in_missing_memory_is_refused() {
    let (regions, object) = (regions(), Object::new(4096));
    regions.register("r", &object.key, 0, 4096).unwrap();
    let outputs = PlacedOutputs::new(vec![placed(&regions, "A", 0, 8)], Vec::new());
    object.file.set_len(0).unwrap();
    let mut memory = allocate(&outputs, "A", 8).unwrap().unwrap();
    memory.as_mut_slice().unwrap().fill(1);
    assert_eq!(allocate(&outputs, "A", 8).err().unwrap().code(), ErrorCode::Unavailable);
}
