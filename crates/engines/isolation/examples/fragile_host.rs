//! A process that hosts the identity backend, for the tests of this crate. A model's parameter or a request's id can
//! make it misbehave.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nereid_backend_api::{
    Backend, Batch, Error, Instance, InstanceContext, Model, ModelConfig, ModelContext, Response, Result,
};
use nereid_identity::IdentityBackend;

fn main() -> io::Result<()> {
    let behaviour = std::env::args().nth(1).unwrap_or_default();
    nereid_worker::host("a fragile backend", || {
        misbehave(&behaviour)?;
        Ok(Arc::new(Fragile))
    })
}

struct Fragile;

struct FragileModel(Box<dyn Model>);

struct FragileInstance(Box<dyn Instance>);

impl Backend for Fragile {
    fn load(&self, context: ModelContext) -> Result<Box<dyn Model>> {
        if let Some(parameter) = context.config.parameters.get("load") {
            misbehave(&parameter.string_value)?;
        }
        Ok(Box::new(FragileModel(IdentityBackend.load(context)?)))
    }
}

impl Model for FragileModel {
    fn completed_config(&self) -> Option<&ModelConfig> {
        self.0.completed_config()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        Ok(Box::new(FragileInstance(self.0.create_instance(context)?)))
    }
}

impl Instance for FragileInstance {
    fn execute(&mut self, batch: Batch) {
        let ids: Vec<_> = batch.requests().iter().map(|request| request.id.clone()).collect();
        let refused: Vec<_> = ids.iter().map(|id| misbehave(id).err()).collect();
        let monitor = batch.monitor();
        let mut requests = Vec::new();
        for (request, refused) in batch.into_requests().into_iter().zip(refused) {
            match refused {
                Some(error) => request.answer(Err(error)),
                None => requests.push(request),
            }
        }
        let batch = Batch::new(requests, monitor);
        if ids.iter().any(|id| id == "answered later") {
            std::thread::spawn(move || {
                for request in batch.into_requests() {
                    let mut output = request.inputs[0].clone();
                    "OUTPUT0".clone_into(&mut output.name);
                    request.answer(Ok(Response { outputs: vec![output], ..Response::default() }));
                }
            });
            return;
        }
        self.0.execute(batch);
    }
}

fn misbehave(how: &str) -> Result<()> {
    match how {
        "aborts" => std::process::abort(),
        "hangs" => std::thread::sleep(Duration::from_secs(3600)),
        "refuses" => return Err(Error::unsupported("it refuses")),
        _ => {}
    }
    Ok(())
}
