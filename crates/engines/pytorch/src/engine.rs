//! Runs a module on a batch's inputs. Does not know how requests form a batch.

use std::ffi::CString;
use std::sync::Arc;

use bytes::Bytes;
use nereid_backend_api::{
    Buffer, BytesElements, DataType, Error, MemoryKind, Result, Shape, SharedInputs, Tensor,
};
use nereid_graph_executor::{Contents, Elements, Engine, GraphModel, Port, RunInput, Target, Words};

use crate::device::Device;
use crate::naming::Call;
use crate::shim::{Input, InputValue, Module, Output, OutputContents, Piece, RunOptions, Stream};

/// One instance's module.
pub(crate) struct TorchEngine {
    pub(crate) module: Arc<Module>,
    /// For a model on a GPU.
    pub(crate) stream: Option<Stream>,
    pub(crate) plan: Arc<Plan>,
}

/// How a model is called, the same for all its instances.
pub(crate) struct Plan {
    pub(crate) model: Arc<GraphModel>,
    pub(crate) options: RunOptions,
    pub(crate) call: Call,
    /// The names of the inputs, as keys.
    pub(crate) keys: Vec<CString>,
    /// Whether the model may write to an input. Such an input is a copy.
    pub(crate) is_written: Vec<bool>,
    /// The position of each unnamed output among the results.
    pub(crate) results: Vec<usize>,
}

/// An input, ready to run.
pub(crate) enum Value {
    Fixed(Elements),
    /// For a model on a GPU, which joins them there: pieces, at least one of which is in memory of a GPU.
    OnDevice {
        pieces: Vec<Piece>,
        /// Keep the memory of the pieces.
        _buffers: Vec<Buffer>,
    },
    Texts(Vec<Vec<u8>>),
}

impl TorchEngine {
    fn results(&self, inputs: &mut [Option<RunInput<Value>>]) -> Result<Vec<Option<Raw>>, String> {
        let plan = &self.plan;
        let places = match &plan.call {
            Call::Arguments(places) => places.clone(),
            Call::Dictionary => (0..inputs.len()).map(Some).collect(),
        };
        for (given, is_written) in inputs.iter_mut().zip(&plan.is_written) {
            if let Some(RunInput { value: Value::Fixed(elements), .. }) = given
                && *is_written
                && self.stream.is_none()
            {
                own(elements);
            }
        }
        let pointers: Vec<*mut u8> = inputs.iter_mut().map(|given| pointer(given.as_mut())).collect();
        let given = places.iter().map(|place| {
            let at = (*place)?;
            let RunInput { shape, value } = inputs[at].as_ref()?;
            let data_type = plan.model.inputs[at].port.data_type;
            let value = match value {
                Value::Fixed(_) => InputValue::Elements(pointers[at]),
                Value::OnDevice { pieces, .. } => {
                    // A client may write to its memory while the model runs: numbers that may be indices are copied.
                    let is_number = SharedInputs::Numbers.takes(data_type);
                    let stays = pieces.len() == 1 && is_number && !plan.is_written[at];
                    InputValue::Pieces { pieces, stays }
                }
                Value::Texts(texts) => InputValue::Texts(texts),
            };
            Some(Input { data_type, shape, value, name: Some(&plan.keys[at]) })
        });
        let absent =
            || Input { data_type: DataType::Bool, shape: &[], value: InputValue::Absent, name: None };
        let is_dictionary = plan.call == Call::Dictionary;
        // A dictionary has no entry for an input that the request leaves out.
        let given = given.filter(|input| input.is_some() || !is_dictionary);
        let given: Vec<_> = given.map(|input| input.unwrap_or_else(absent)).collect();
        // SAFETY: the inputs live until the end of this function, and the size of their contents was checked against
        // their shapes. Inputs that the model writes to are copies, which nothing else refers to: on a GPU all inputs are.
        let found = unsafe { self.module.run(self.stream.as_ref(), &plan.options, &given, is_dictionary) }?;
        let count = found.len();
        let is_named = found.first().is_some_and(|output| output.name.is_some());
        let mut found: Vec<_> = found.into_iter().map(Some).collect();
        let outputs = plan.model.outputs.iter().zip(&plan.results).map(|(output, &place)| {
            let name = &output.port.name;
            let at = if is_named {
                let has_name =
                    |it: &Option<Output>| it.as_ref().is_some_and(|it| it.name.as_ref() == Some(name));
                found.iter().position(has_name)
            } else {
                Some(place).filter(|&place| place < count)
            };
            let result = at.and_then(|at| found[at].take());
            result
                .map(|output| Some(Raw(output)))
                .ok_or_else(|| format!("the model returned {count} results, without output '{name}'"))
        });
        outputs.collect()
    }
}

/// An output of a run.
pub(crate) struct Raw(Output);

/// Makes the elements a writable copy.
fn own(elements: &mut Elements) {
    if let Elements::Given(bytes) = elements {
        let mut words: Words = vec![0; bytes.len().div_ceil(size_of::<u64>())];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(size_of::<u64>())) {
            let mut padded = [0; size_of::<u64>()];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(padded);
        }
        *elements = Elements::Copied(words, bytes.len());
    }
}

/// The address of an input's elements. They are written only if they are a copy.
fn pointer(given: Option<&mut RunInput<Value>>) -> *mut u8 {
    match given.map(|given| &mut given.value) {
        Some(Value::Fixed(Elements::Copied(words, _))) => words.as_mut_ptr().cast(),
        Some(Value::Fixed(Elements::Given(bytes))) => bytes.as_ptr().cast_mut(),
        Some(Value::OnDevice { .. } | Value::Texts(_)) | None => std::ptr::null_mut(),
    }
}

/// Where a buffer is.
fn piece(buffer: &Buffer) -> Piece {
    if let Some(memory) = buffer.as_device() {
        let gpu = i32::try_from(buffer.memory().device).unwrap_or(0);
        let address = std::ptr::without_provenance(memory.address as usize);
        return Piece::new(address, memory.len, Device::Gpu(gpu));
    }
    let bytes = buffer.as_host().map_or(&[][..], |bytes| bytes);
    Piece::new(bytes.as_ptr(), bytes.len(), Device::Cpu)
}

/// The buffers of tensors, if any is in memory of a GPU.
fn on_device<'a>(parts: &'a [&Tensor]) -> Option<impl Iterator<Item = &'a Buffer>> {
    let mut buffers = parts.iter().flat_map(|part| &part.buffers);
    let found = buffers.any(|buffer| buffer.memory().kind == MemoryKind::Gpu);
    found.then(|| parts.iter().flat_map(|part| &part.buffers))
}

impl Engine for TorchEngine {
    type Value = Value;
    type Raw = Raw;

    fn check(&self, _port: &Port, _tensor: &Tensor) -> Result<()> {
        Ok(())
    }

    fn gather(&self, port: &Port, _shape: &Shape, parts: &[&Tensor]) -> Result<Value> {
        if port.data_type != DataType::Bytes {
            if let Some(buffers) = on_device(parts) {
                let buffers: Vec<_> = buffers.cloned().collect();
                let pieces = buffers.iter().map(piece).collect();
                return Ok(Value::OnDevice { pieces, _buffers: buffers });
            }
            return Elements::join(port.data_type, parts, Words::new).map(Value::Fixed);
        }
        let mut texts = Vec::new();
        for part in parts {
            for element in BytesElements::new(&part.contiguous()?) {
                texts.push(element?.to_vec());
            }
        }
        Ok(Value::Texts(texts))
    }

    fn run(
        &mut self,
        mut inputs: Vec<Option<RunInput<Value>>>,
        _targets: &mut [Option<Target>],
    ) -> Result<Vec<Option<Raw>>> {
        self.results(&mut inputs).map_err(|why| Error::internal(format!("PyTorch failed: {why}")))
    }

    fn read(&self, port: &Port, Raw(output): Raw) -> Result<(Shape, Contents)> {
        let name = &port.name;
        match output.data_type {
            Some(found) if found == port.data_type => {}
            Some(found) => {
                return Err(Error::internal(format!(
                    "output '{name}' is {found}, but {} in the configuration",
                    port.data_type
                )));
            }
            None => {
                return Err(Error::internal(format!(
                    "output '{name}' has an element type that the protocol lacks"
                )));
            }
        }
        Ok(match output.contents {
            OutputContents::Elements(bytes) => (output.shape, Contents::Fixed(Bytes::from(bytes))),
            OutputContents::Texts(texts) => {
                // A list has one dimension. The configuration declares the rank of strings, all other dimensions being
                // 1.
                let rank = port.dims.as_ref().map_or(1, |dims| dims.len().max(1));
                let ones = std::iter::repeat_n(1, rank - 1);
                (std::iter::once(texts.len() as i64).chain(ones).collect(), Contents::Strings(texts))
            }
        })
    }
}
