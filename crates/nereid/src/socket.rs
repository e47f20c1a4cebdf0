//! Sockets: taken before the models are loaded, listened on once they are.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::net::{TcpListener, TcpSocket};

/// Accepted connections that wait for a thread to serve them, as the reference has it.
const BACKLOG: u32 = 1024;

/// A socket that has its address and is not listened on yet.
pub(crate) struct Socket(TcpSocket);

impl Socket {
    /// Takes the address, together with others that share it if `share` is set. To be called within a runtime.
    ///
    /// # Errors
    /// Why it cannot be taken.
    pub(crate) fn bind(host: &str, port: u16, share: bool) -> io::Result<Self> {
        let mut outcome = Err(io::Error::other("the name has no address"));
        for address in (host, port).to_socket_addrs()? {
            outcome = bound(address, share);
            if outcome.is_ok() {
                break;
            }
        }
        outcome.map(Self)
    }

    /// Listens on it. To be called within a runtime.
    ///
    /// # Errors
    /// Why it cannot be listened on.
    pub(crate) fn listen(self) -> io::Result<TcpListener> {
        self.0.listen(BACKLOG)
    }
}

fn bound(address: SocketAddr, share: bool) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    if share {
        socket.set_reuseport(true)?;
    }
    socket.bind(address)?;
    Ok(socket)
}
