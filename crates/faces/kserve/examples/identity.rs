//! A server with the identity backend alone, over HTTP and gRPC, for `cargo xtask bench guard` and `transfers`.
//!
//! Usage: `identity [THREADS INSTANCES]`. Without arguments, there is one I/O thread and one instance, whose executions are slow.
//!
//! The program has the request path, the allocator and the runtime of `nereid`. Engines and clouds are left out: they take
//! most of the time of a release build. The server runs until it is killed.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::sync::Arc;
use std::thread;

use nereid_allocator::Heap;
use nereid_core::backend_api::Backend;
use nereid_core::{ModelId, ModelSpec, Server, ServerOptions};
use nereid_grpc::{Calls, GrpcOptions};
use nereid_http::TransportOptions;
use nereid_identity::IdentityBackend;
use nereid_kserve::{HttpOptions, KserveHttp};
use nereid_net::listener::{Address, Listener, LocalAddress};
use nereid_testkit::normalised;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static HEAP: Heap = Heap;

const MODEL: &str = r#"backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
"#;

/// Slow executions run on the instance's thread, and the I/O thread sleeps before they end. Without the delay, the speed of
/// the machine would decide on which thread they run.
const DELAY: &str = r#"parameters { key: "execute_delay_ms" value { string_value: "3" } }
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    // One thread, so that each request takes the same path.
    let (threads, more) = match &arguments[..] {
        [] => (1, DELAY.to_owned()),
        [threads, instances] => {
            let instances: u32 = instances.parse()?;
            (threads.parse()?, format!("instance_group {{ kind: KIND_CPU count: {instances} }}"))
        }
        _ => return Err("usage: identity [THREADS INSTANCES]".into()),
    };
    let server = server(&format!("{MODEL}{more}"))?;
    let runtime = nereid_net::io_runtime::start(threads)?;
    let _context = runtime.enter();
    let never = CancellationToken::new();

    let (listener, address) = listen()?;
    let calls = Calls::new(Arc::clone(&server), GrpcOptions::default(), never.clone());
    runtime.spawn(nereid_grpc::serve(
        listener,
        calls,
        nereid_grpc::TransportOptions::default(),
        never.clone(),
    ));
    println!("Started GRPCInferenceService at {address}");

    let (listener, address) = listen()?;
    let face = KserveHttp::new(server, HttpOptions::default());
    runtime.spawn(nereid_http::serve(listener, face, TransportOptions::default(), never));
    println!("Started HTTPService at {address}");

    loop {
        thread::park();
    }
}

fn server(model: &str) -> Result<Arc<Server>, Box<dyn Error>> {
    let spec = ModelSpec::new(ModelId::plain("identity"), "identity", normalised("identity", model), [1]);
    let backend: Arc<dyn Backend> = Arc::new(IdentityBackend);
    let server = Server::new(
        ServerOptions { name: "triton".into(), load_threads: 1, ..ServerOptions::default() },
        BTreeMap::from([("identity".to_owned(), backend)]),
        Arc::new(BTreeMap::from([("identity".to_owned(), Ok(spec))])),
    );
    match server.start(None)?.into_iter().next() {
        None => Ok(server),
        Some((model, error)) => Err(format!("cannot load {model}: {error}").into()),
    }
}

/// Listens on a free port. Called within the runtime.
fn listen() -> Result<(Listener, LocalAddress), Box<dyn Error>> {
    let address = Address::tcp("127.0.0.1", 0);
    let listener = address.bind()?.listen(None)?;
    let address = listener.local_addr()?;
    Ok((listener, address))
}
