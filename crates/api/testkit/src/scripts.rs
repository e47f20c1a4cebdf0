//! Common behaviours of scripted models.

use nereid_backend_api::{Batch, Request, Response};

/// Answers each request of a batch with [`echoed`].
pub fn echo(mut batch: Batch) {
    batch.inputs_ready();
    batch.outputs_ready();
    let answers: Vec<_> = batch.requests().iter().map(|request| Ok(echoed(request))).collect();
    batch.complete(answers);
}

/// The inputs of a request under the names of outputs, `IN…` as `OUT…`, and the parameters of the request.
pub fn echoed(request: &Request) -> Response {
    let outputs = request.inputs.iter().cloned().map(|mut tensor| {
        tensor.name = tensor.name.replace("IN", "OUT");
        tensor
    });
    Response { outputs: outputs.collect(), parameters: request.parameters.clone() }
}

/// Answers each request with `responses` empty responses, and then with its end.
pub fn stream(batch: Batch, responses: usize) {
    for request in batch.into_requests() {
        let responder = request.into_responder();
        (0..responses).for_each(|_| responder.send(Ok(Response::default())));
        responder.finish();
    }
}
