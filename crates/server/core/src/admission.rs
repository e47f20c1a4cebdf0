//! Checks a request against the model's signature and normalises it for backends.

use nereid_backend_api::{Error, InferRequest, Result, Shape, Tensor};

use crate::signature::{InputSignature, Signature, reshaped};

/// Checks a request against the model's signature. Returns its batch size (1 for a model without batching).
pub(crate) fn admit(request: &mut InferRequest, signature: &Signature, model: &str) -> Result<usize> {
    check(request, signature, model).map_err(|error| match request.id.as_str() {
        "" => error,
        id => error.context(format_args!("request '{id}'")),
    })
}

fn check(request: &mut InferRequest, signature: &Signature, model: &str) -> Result<usize> {
    for output in &request.outputs {
        if signature.output(&output.name).is_none() {
            return Err(Error::invalid_arg(format!(
                "unexpected inference output '{}' for model '{model}' (outputs: {})",
                output.name,
                quoted(signature.outputs.iter().map(|output| output.name.as_str())),
            )));
        }
    }
    check_names(request, signature, model)?;
    let batch_size = batch_size(request, signature, model)?;
    for tensor in &mut request.inputs {
        // Its name was found above.
        if let Some(expected) = signature.input(&tensor.name) {
            check_input(tensor, expected, signature, model)?;
        }
    }
    Ok(batch_size)
}

fn check_names(request: &InferRequest, signature: &Signature, model: &str) -> Result<()> {
    for (index, tensor) in request.inputs.iter().enumerate() {
        if signature.input(&tensor.name).is_none() {
            let unexpected = Error::invalid_arg(format!(
                "unexpected inference input '{}' for model '{model}' (inputs: {})",
                tensor.name,
                quoted(signature.inputs.iter().map(|input| input.name.as_str())),
            ));
            return Err(match wrong_count(request, signature, model) {
                Some(wrong) => unexpected.context(wrong),
                None => unexpected,
            });
        }
        if request.inputs.iter().take(index).any(|other| other.name == tensor.name) {
            return Err(Error::invalid_arg(format!("model '{model}': duplicate input '{}'", tensor.name)));
        }
    }
    // Every given input is known and none is given twice, so equal counts leave none missing.
    if request.inputs.len() == signature.inputs.len() {
        return Ok(());
    }
    let mut missing = signature
        .inputs
        .iter()
        .filter(|input| !input.optional && request.inputs.iter().all(|given| given.name != input.name))
        .map(|input| input.name.as_str())
        .peekable();
    if missing.peek().is_none() {
        return Ok(());
    }
    let wrong = wrong_count(request, signature, model).unwrap_or_else(|| format!("model '{model}'"));
    Err(Error::invalid_arg(format!("{wrong}: missing {}", quoted(missing))))
}

/// How many inputs the model takes, if the request has another number of them.
fn wrong_count(request: &InferRequest, signature: &Signature, model: &str) -> Option<String> {
    let most = signature.inputs.len();
    let least = signature.inputs.iter().filter(|input| !input.optional).count();
    let given = request.inputs.len();
    if (least..=most).contains(&given) {
        return None;
    }
    let expected = match least == most {
        true => format!("{most} inputs"),
        false => format!("number of inputs between {least} and {most}"),
    };
    Some(format!("expected {expected} but got {given} inputs for model '{model}'"))
}

/// The size of the first dimension, which all inputs share.
fn batch_size(request: &InferRequest, signature: &Signature, model: &str) -> Result<usize> {
    if signature.max_batch_size == 0 {
        return Ok(1);
    }
    let mut batch: Option<(i64, &str)> = None;
    for tensor in &request.inputs {
        let Some(&size) = tensor.shape.first() else {
            return Err(Error::invalid_arg(format!(
                "input '{}' is a scalar, but model '{model}' expects a leading batch dimension",
                tensor.name
            )));
        };
        match batch {
            Some((known, other)) if known != size => {
                return Err(Error::invalid_arg(format!(
                    "model '{model}': input '{}' has batch size {size}, but input '{other}' has {known}",
                    tensor.name
                )));
            }
            _ => batch = Some((size, &tensor.name)),
        }
    }
    let Some((size, name)) = batch else { return Ok(1) };
    match usize::try_from(size) {
        Ok(size) if (1..=signature.max_batch_size).contains(&size) => Ok(size),
        _ => {
            let accepted = signature.max_batch_size;
            let hint =
                if size > 0 { "; raise max_batch_size in its configuration to accept more" } else { "" };
            Err(Error::invalid_arg(format!(
                "input '{name}' has batch size {size}, but model '{model}' accepts 1 to {accepted}{hint}"
            )))
        }
    }
}

fn check_input(
    tensor: &mut Tensor,
    expected: &InputSignature,
    signature: &Signature,
    model: &str,
) -> Result<()> {
    if tensor.data_type != expected.data_type {
        return Err(Error::invalid_arg(format!(
            "input '{}' has datatype {}, but model '{model}' expects {}",
            tensor.name, tensor.data_type, expected.data_type
        )));
    }
    let (batch, dims) = tensor.shape.split_at(usize::from(signature.max_batch_size > 0));
    let fits = dims.len() == expected.dims.len()
        && dims.iter().zip(expected.dims.iter()).all(|(dim, want)| *dim >= 0 && (*want < 0 || dim == want));
    if !fits {
        return Err(Error::invalid_arg(format!(
            "unexpected shape for input '{}' for model '{model}': got {}, expected {}{}",
            tensor.name,
            tensor.shape,
            signature.full_dims(&expected.dims),
            if batch.is_empty() { "" } else { " with a leading batch dimension" },
        )));
    }
    tensor.check_contents().map_err(|error| match tensor.data_type.byte_size() {
        Some(_) => error.context(format_args!(
            "input byte size mismatch for input '{}' for model '{model}'",
            tensor.name
        )),
        None => error.context(format_args!("model '{model}'")),
    })?;
    if let Some(reshape) = &expected.reshape {
        let mut shape = Shape::from(batch);
        shape.extend(reshaped(&expected.dims, reshape, dims).into_iter().flatten());
        tensor.shape = shape;
    }
    Ok(())
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let quoted: Vec<_> = names.map(|name| format!("'{name}'")).collect();
    if quoted.is_empty() { "none".into() } else { quoted.join(", ") }
}

#[cfg(test)]
mod tests;
