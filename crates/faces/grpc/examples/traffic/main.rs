//! Both ends of `cargo xtask bench grpc`: a bare service that echoes tensors, as the yardstick, and the load, which is the
//! same for it and for the server that is measured. `cargo xtask bench guard` uses the load with a number of requests.
//!
//! ```text
//! traffic echo
//! traffic load ADDRESS unary|stream|decoupled CONNECTIONS IN_FLIGHT SECONDS|REQUESTSx BYTES [PID]
//! ```
//!
//! With the process of the server, each request waits until the server sleeps, so that every request finds it in the same
//! state.

#![forbid(unsafe_code)]

mod echo;
mod extent;
mod load;
mod rest;

use std::env;
use std::error::Error;

use tokio::runtime::Builder;

/// The wire types, which the crate itself keeps to itself.
#[allow(missing_docs, unused_qualifications, dead_code, unreachable_pub, clippy::all)]
mod proto {
    tonic::include_proto!("inference");
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["echo"] => Builder::new_multi_thread().enable_all().build()?.block_on(echo::serve()),
        ["load", address, way, connections, in_flight, extent, bytes, ref server @ ..] => {
            let load = load::Load {
                address: address.parse()?,
                way: way.parse()?,
                connections: connections.parse()?,
                in_flight: in_flight.parse()?,
                extent: extent.parse()?,
                server: server.first().map(|pid| pid.parse()).transpose()?,
                bytes: bytes.parse()?,
            };
            // One thread, so that the server has what is left of the machine.
            let seen = Builder::new_current_thread().enable_all().build()?.block_on(load.run())?;
            println!("{seen}");
            Ok(())
        }
        _ => Err(
            "traffic echo | traffic load ADDRESS unary|stream|decoupled CONNECTIONS IN_FLIGHT SECONDS|REQUESTSx BYTES \
             [PID]"
                .into(),
        ),
    }
}
