//! A model's signature: inputs and outputs, in the form that requests are checked against.

use nereid_backend_api::{Buffer, Buffers, DataType, Error, Result, Shape, Tensor};
use nereid_model_config::{ModelConfig, proto};

/// A model's inputs and outputs, as its clients see them.
#[derive(Clone, Debug)]
pub struct Signature {
    /// The greatest batch a request may hold; 0 if the model has no batch dimension.
    pub max_batch_size: usize,
    /// The inputs, in the configuration's order.
    pub inputs: Vec<InputSignature>,
    /// The outputs, in the configuration's order.
    pub outputs: Vec<OutputSignature>,
}

/// One input.
#[derive(Clone, Debug)]
pub struct InputSignature {
    /// The name.
    pub name: String,
    /// Type of its elements.
    pub data_type: DataType,
    /// The dimensions without the batch dimension; -1 for any size.
    pub dims: Shape,
    /// The dimensions the backend sees instead, if they differ.
    pub reshape: Option<Shape>,
    /// Whether a request may leave it out.
    pub optional: bool,
}

/// One output.
#[derive(Clone, Debug)]
pub struct OutputSignature {
    /// The name.
    pub name: String,
    /// Type of its elements.
    pub data_type: DataType,
    /// The dimensions without the batch dimension; -1 for any size.
    pub dims: Shape,
    /// The dimensions of the backend's output, if they differ.
    pub reshape: Option<Shape>,
}

impl Signature {
    /// Reads it off a checked configuration.
    ///
    /// # Errors
    /// `InvalidArg` if a type is missing.
    pub fn new(config: &ModelConfig) -> Result<Self> {
        let inputs = config
            .input
            .iter()
            .map(|input| {
                Ok(InputSignature {
                    name: input.name.clone(),
                    data_type: data_type(&config.name, "input", &input.name, input.data_type)?,
                    dims: Shape::from(&input.dims[..]),
                    reshape: input.reshape.as_ref().map(|reshape| Shape::from(&reshape.shape[..])),
                    optional: input.optional,
                })
            })
            .collect::<Result<_>>()?;
        let outputs = config
            .output
            .iter()
            .map(|output| {
                Ok(OutputSignature {
                    name: output.name.clone(),
                    data_type: data_type(&config.name, "output", &output.name, output.data_type)?,
                    dims: Shape::from(&output.dims[..]),
                    reshape: output.reshape.as_ref().map(|reshape| Shape::from(&reshape.shape[..])),
                })
            })
            .collect::<Result<_>>()?;
        let max_batch_size = usize::try_from(config.max_batch_size).unwrap_or(0);
        Ok(Self { max_batch_size, inputs, outputs })
    }

    /// The input of that name.
    pub fn input(&self, name: &str) -> Option<&InputSignature> {
        self.inputs.iter().find(|input| input.name == name)
    }

    /// The output of that name.
    pub fn output(&self, name: &str) -> Option<&OutputSignature> {
        self.outputs.iter().find(|output| output.name == name)
    }

    /// `dims` with the batch dimension, if the model has one, as metadata shows them.
    pub fn full_dims(&self, dims: &Shape) -> Shape {
        let mut full = dims.clone();
        if self.max_batch_size > 0 {
            full.push_front(-1);
        }
        full
    }
}

impl Signature {
    /// An input whose contents are given and nothing else: its name, type and shape follow from the model, with a
    /// batch of one. Contents of a BYTES input are its one element.
    ///
    /// # Errors
    /// `InvalidArg` if the model does not let that follow: it has several inputs, or several variable dimensions.
    pub fn raw_input(&self, contents: Buffers) -> Result<Tensor> {
        let [input] = self.inputs.as_slice() else {
            return Err(Error::invalid_arg(format!(
                "a raw request needs a model with exactly one input, but this one has {}",
                self.inputs.len()
            )));
        };
        let size: usize = contents.iter().map(Buffer::len).sum();
        let mut shape = input.dims.clone();
        let variable = shape.iter().filter(|dim| **dim < 0).count();
        let buffers = match input.data_type.byte_size() {
            None if variable == 0 && shape.element_count() == Some(1) => {
                let length =
                    u32::try_from(size).map_err(|_| Error::invalid_arg("a BYTES element is over 4 GiB"))?;
                let mut buffers = Buffers::from_iter([Buffer::host(length.to_le_bytes().to_vec())]);
                buffers.extend(contents);
                buffers
            }
            None => {
                return Err(Error::invalid_arg(format!(
                    "a raw request carries one BYTES element, but input '{}' has shape {}",
                    input.name, input.dims
                )));
            }
            Some(_) if variable > 1 => {
                return Err(Error::invalid_arg(format!(
                    "a raw request does not determine the shape of input '{}', which has several variable dimensions: {}",
                    input.name, input.dims
                )));
            }
            Some(element) => {
                let fixed = shape.iter().filter(|dim| **dim >= 0).product::<i64>();
                let unit = usize::try_from(fixed).unwrap_or(0).saturating_mul(element);
                if let Some(dim) = shape.iter_mut().find(|dim| **dim < 0) {
                    *dim = size.checked_div(unit).and_then(|dim| i64::try_from(dim).ok()).unwrap_or(0);
                }
                contents
            }
        };
        if self.max_batch_size > 0 {
            shape.push_front(1);
        }
        Ok(Tensor { name: input.name.clone(), data_type: input.data_type, shape, buffers })
    }
}

impl OutputSignature {
    /// Converts a backend's shape into the client's. `batched` if the batch dimension comes first. `None` if the shape does not
    /// fit the configuration, and stays as it is.
    pub(crate) fn client_shape(&self, given: &Shape, batched: bool) -> Option<Shape> {
        let reshape = self.reshape.as_ref()?;
        let (batch, rest) = given.split_at_checked(usize::from(batched))?;
        let mut shape = Shape::from(batch);
        shape.extend(reshaped(reshape, &self.dims, rest)?);
        Some(shape)
    }
}

/// Carries the sizes of the variable dimensions of `from`, found in `actual`, over to `to`, in order.
pub(crate) fn reshaped<'a>(
    from: &'a Shape,
    to: &'a Shape,
    actual: &'a [i64],
) -> Option<impl Iterator<Item = i64> + 'a> {
    if from.len() != actual.len() {
        return None;
    }
    let mut variable = from.iter().zip(actual).filter(|(dim, _)| **dim < 0).map(|(_, actual)| *actual);
    Some(to.iter().map(move |&dim| if dim < 0 { variable.next().unwrap_or(dim) } else { dim }))
}

fn data_type(model: &str, role: &str, name: &str, number: i32) -> Result<DataType> {
    proto::DataType::try_from(number)
        .ok()
        .and_then(proto::DataType::element_type)
        .ok_or_else(|| Error::invalid_arg(format!("model '{model}': {role} '{name}' has no data_type")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(data_type: DataType, dims: &[i64], max_batch_size: usize) -> Signature {
        let input =
            InputSignature { name: "X".into(), data_type, dims: dims.into(), reshape: None, optional: false };
        Signature { max_batch_size, inputs: vec![input], outputs: Vec::new() }
    }

    fn contents(size: usize) -> Buffers {
        Buffers::from_iter([Buffer::host(vec![b'x'; size])])
    }

    #[test]
    fn the_shape_of_a_raw_input_follows_from_its_size() {
        let raw = signature(DataType::Int32, &[2, -1], 8).raw_input(contents(24)).unwrap();
        assert_eq!((raw.name.as_str(), raw.shape), ("X", [1, 2, 3].into()));
        let fixed = signature(DataType::Int32, &[6], 0).raw_input(contents(24)).unwrap();
        assert_eq!(fixed.shape, [6].into());
    }

    #[test]
    fn a_raw_input_of_bytes_is_its_one_element() {
        let raw = signature(DataType::Bytes, &[1], 8).raw_input(contents(3)).unwrap();
        raw.check_contents().unwrap();
        assert_eq!(&*raw.contiguous().unwrap(), b"\x03\0\0\0xxx");
        assert_eq!(raw.shape, [1, 1].into());
    }

    #[test]
    fn a_raw_input_is_refused_where_nothing_follows() {
        assert!(signature(DataType::Int32, &[-1, -1], 0).raw_input(contents(4)).is_err());
        assert!(signature(DataType::Bytes, &[-1], 0).raw_input(contents(4)).is_err());
        let two = Signature { inputs: Vec::new(), ..signature(DataType::Int32, &[1], 0) };
        assert!(two.raw_input(contents(4)).is_err());
        // What does not divide evenly is found by the check of the contents.
        assert!(
            signature(DataType::Int32, &[-1], 0).raw_input(contents(5)).unwrap().check_contents().is_err()
        );
    }

    #[test]
    fn an_output_gets_the_shape_its_clients_expect() {
        let output = OutputSignature {
            name: "Y".into(),
            data_type: DataType::Int32,
            dims: [-1, 6].into(),
            reshape: Some([3, -1, 2].into()),
        };
        assert_eq!(output.client_shape(&[4, 3, 5, 2].into(), true), Some([4, 5, 6].into()));
        assert_eq!(output.client_shape(&[3, 5, 2].into(), false), Some([5, 6].into()));
        assert_eq!(output.client_shape(&[3, 5].into(), false), None);
        assert_eq!(output.client_shape(&Shape::scalar(), true), None);
    }
}
