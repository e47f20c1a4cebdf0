//! Both ends of `cargo xtask bench grpc`: a bare service that echoes tensors, as the yardstick, and the load, which is the
//! same for it and for the server that is measured.
//!
//! ```text
//! traffic echo
//! traffic load ADDRESS unary|stream|decoupled CONNECTIONS IN_FLIGHT SECONDS BYTES
//! ```

#![forbid(unsafe_code)]

mod echo;
mod load;

use std::env;
use std::error::Error;
use std::time::Duration;

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
        ["load", address, way, connections, in_flight, seconds, bytes] => {
            let load = load::Load {
                address: address.parse()?,
                way: way.parse()?,
                connections: connections.parse()?,
                in_flight: in_flight.parse()?,
                duration: Duration::from_secs(seconds.parse()?),
                bytes: bytes.parse()?,
            };
            // One thread, so that the server has what is left of the machine.
            let seen = Builder::new_current_thread().enable_all().build()?.block_on(load.run())?;
            println!("{seen}");
            Ok(())
        }
        _ => Err(
            "traffic echo | traffic load ADDRESS unary|stream|decoupled CONNECTIONS IN_FLIGHT SECONDS BYTES"
                .into(),
        ),
    }
}
