//! Inputs in memory of a device: which are named, which are copied, and what a process may not send.

use std::sync::Arc;

use nereid_backend_api::{DeviceBuffer, DeviceMemory, ErrorCode, IpcHandle};
use nereid_worker_protocol::{Channel, Incoming};

use super::*;

/// Memory of a device whose bytes are here.
struct Card {
    bytes: Vec<u8>,
    base: Option<u64>,
    handle: Option<IpcHandle>,
}

/// Where the memory begins.
const START: u64 = 0x7000;

impl DeviceMemory for Card {
    fn read(&self, address: u64, target: &mut [u8]) -> Result<()> {
        let from = (address - START) as usize;
        target.copy_from_slice(&self.bytes[from..from + target.len()]);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::internal("inputs are only read"))
    }

    fn ipc_handle(&self) -> Option<&IpcHandle> {
        self.handle.as_ref()
    }

    fn ipc_base(&self) -> Option<u64> {
        self.base
    }
}

fn on_device(card: Card, skip: usize) -> Buffer {
    let len = card.bytes.len() - skip;
    Buffer::device(DeviceBuffer { address: START + skip as u64, len, owner: Arc::new(card) }, 1)
}

fn tensor_of(data_type: DataType, count: i64, buffers: Vec<Buffer>) -> Tensor {
    Tensor { name: "X".into(), data_type, shape: [count].into(), buffers: buffers.into() }
}

/// An input as a process receives it.
fn sent(input: &Tensor, reads_device_memory: bool) -> Result<Incoming> {
    let (mut ours, theirs) = Channel::pair().unwrap();
    let mut message = ours.sender.message(1);
    put_input(&mut message, input, reads_device_memory)?;
    message.send().unwrap();
    Ok(Channel::new(theirs).receiver.receive().unwrap().unwrap())
}

#[test]
fn shared_device_memory_is_named_only_to_processes_that_read_it() {
    let handle = Some([7; 64]);
    for (skip, base, handle, reads, offset) in [
        (0, Some(START), handle, true, Some(0)),
        (2, Some(START), handle, true, Some(2)),
        (2, Some(START - 256), handle, true, Some(258)),
        // The contents begin before what the handle opens.
        (0, Some(START + 1), handle, true, None),
        (2, Some(START), handle, false, None),
        (2, None, handle, true, None),
        (2, Some(START), None, true, None),
    ] {
        let card = Card { bytes: b"abcdef".to_vec(), base, handle };
        let input = tensor_of(DataType::Int8, 6 - skip as i64, vec![on_device(card, skip)]);
        let incoming = sent(&input, reads).unwrap();
        let tensor = incoming.reader().tensor().unwrap();
        match (tensor.contents, offset) {
            (Contents::Device(contents), Some(offset)) => {
                let length = 6 - skip as u64;
                assert_eq!(contents, DeviceContents { device: 1, handle: [7; 64], offset, length });
            }
            (contents, None) => assert_eq!(contents.as_host().unwrap(), &b"abcdef"[skip..]),
            (contents, _) => panic!("{contents:?} at {skip} from {base:?}"),
        }
    }
}

#[test]
fn elements_and_pieces_are_copied_and_checked() {
    let card = |bytes: &[u8]| Card { bytes: bytes.to_vec(), base: Some(START), handle: Some([7; 64]) };
    let texts = b"\x01\0\0\0a\0\0\0\0";
    let host = Buffer::host(vec![1, 2]);
    for (data_type, count, buffers, expected) in [
        (DataType::Bytes, 2, vec![on_device(card(texts), 0)], Some(texts.to_vec())),
        (DataType::Bytes, 3, vec![on_device(card(texts), 0)], None),
        (DataType::Int8, 4, vec![host.clone(), on_device(card(b"ab"), 0)], Some(b"\x01\x02ab".to_vec())),
        (DataType::Int8, 0, vec![on_device(card(b""), 0)], Some(Vec::new())),
    ] {
        let input = tensor_of(data_type, count, buffers);
        let received = sent(&input, true).map(|incoming| {
            incoming.reader().tensor().unwrap().contents.as_host().map(<[u8]>::to_vec).unwrap()
        });
        assert_eq!(received.as_ref().ok(), expected.as_ref(), "{input:?}");
        assert!(received.is_ok() || received.unwrap_err().code() == ErrorCode::InvalidArg);
    }
}

#[test]
fn a_process_that_names_device_memory_is_refused() {
    let card = Card { bytes: vec![0; 8], base: Some(START), handle: Some([7; 64]) };
    let incoming = sent(&tensor_of(DataType::Int8, 8, vec![on_device(card, 0)]), true).unwrap();
    let arrived = incoming.reader().tensor().unwrap();
    let error = tensor(arrived).unwrap_err();
    assert_eq!(error.message(), "tensor 'X': processes share no device memory");
}

#[test]
fn tensor_has_64_dimensions_at_most() {
    for (dimensions, expected) in [(0, true), (1, true), (64, true), (65, false), (100_000, false)] {
        let arrived = wire::Tensor {
            name: "X",
            data_type: DataType::Int8.number(),
            shape: vec![1; dimensions],
            contents: Contents::Inline(&[7]),
        };
        match tensor(arrived) {
            Ok(tensor) => assert_eq!((tensor.shape.len(), expected), (dimensions, true)),
            Err(error) => {
                let reason = format!("tensor 'X': has {dimensions} dimensions, but may have 64 at most");
                assert_eq!((error.message(), expected), (reason.as_str(), false));
            }
        }
    }
}
