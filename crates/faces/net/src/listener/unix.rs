//! Unix sockets: their files, which outlive a server that was killed.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, listen, socket_with};
use tokio::net::{UnixListener, UnixSocket};

use super::BACKLOG;

/// The mode of a socket's file: its owner and its group may connect.
const DEFAULT_MODE: u32 = 0o660;

/// A Unix socket to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnixAddress {
    /// The path of its file.
    pub path: PathBuf,
    /// The permissions of its file. Who may write it, may connect.
    pub mode: u32,
}

impl UnixAddress {
    /// Parses `PATH` or `PATH?mode=MODE`. A path with two slashes in front is a URL's, whose host must be empty.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (path, query) = text.split_once('?').map_or((text, None), |(path, query)| (path, Some(query)));
        let path = match path.strip_prefix("//") {
            Some(rest) if rest.starts_with('/') => rest,
            Some(_) => return Err("a Unix socket has no host; expected unix:/path".to_owned()),
            None => path,
        };
        if path.is_empty() {
            return Err("the path of the Unix socket is empty; expected unix:/path".to_owned());
        }
        let mode = match query {
            None => DEFAULT_MODE,
            Some(query) => query.strip_prefix("mode=").and_then(mode).ok_or_else(|| {
                format!("expected unix:/path?mode=MODE with an octal mode such as 0660, got '?{query}'")
            })?,
        };
        Ok(Self { path: path.into(), mode })
    }

    /// Binds the socket and lets clients queue. The file has its mode before a client can connect.
    pub(super) fn bind(&self) -> io::Result<BoundSocket> {
        remove_stale(&self.path)?;
        let socket = UnixSocket::new_stream()?;
        socket.bind(&self.path)?;
        let file = SocketFile::of(&self.path)?;
        fs::set_permissions(&self.path, Permissions::from_mode(self.mode))?;
        // A socket that does not listen looks like a stale one to another server.
        listen(&socket, BACKLOG.cast_signed())?;
        Ok(BoundSocket { socket, file })
    }
}

fn mode(digits: &str) -> Option<u32> {
    let is_octal = digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = u32::from_str_radix(digits, 8).ok().filter(|_| is_octal)?;
    (mode <= 0o777).then_some(mode)
}

/// Removes the socket of a server that has ended.
///
/// # Errors
/// A server listens, or the file is not a socket.
fn remove_stale(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "the path is taken by a file that is not a socket",
        ));
    }
    // A full queue of connections must not block.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED) => fs::remove_file(path),
        Err(Errno::NOENT) => Ok(()),
        Ok(()) | Err(Errno::AGAIN) => {
            Err(io::Error::new(ErrorKind::AddrInUse, "another server listens there"))
        }
        Err(error) => Err(error.into()),
    }
}

/// A bound Unix socket, which queues connections.
#[derive(Debug)]
pub struct BoundSocket {
    socket: UnixSocket,
    file: SocketFile,
}

impl BoundSocket {
    pub(super) fn listen(self) -> io::Result<(UnixListener, SocketFile)> {
        Ok((self.socket.listen(BACKLOG)?, self.file))
    }
}

/// The file of a listening socket. Dropped, it is removed, unless another server has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        // The working directory may change.
        let path = std::path::absolute(path)?;
        let found = fs::symlink_metadata(&path)?;
        Ok(Self { path, device: found.dev(), inode: found.ino() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == (self.device, self.inode)) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener as StdListener;

    use super::*;

    fn address(path: &Path) -> UnixAddress {
        UnixAddress { path: path.to_owned(), mode: DEFAULT_MODE }
    }

    #[tokio::test]
    async fn a_socket_has_its_mode_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o660, 0o666] {
            let path = folder.path().join(format!("{mode:o}"));
            let bound = UnixAddress { path: path.clone(), mode }.bind().unwrap();
            assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, mode);
            let (listener, file) = bound.listen().unwrap();
            assert_eq!(file.path(), path);
            drop((listener, file));
            assert!(!path.exists());
        }
    }

    #[tokio::test]
    async fn only_the_file_of_a_server_that_ended_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists(), "a listener of the standard library leaves its file");
        let first = address(&path).bind().unwrap();
        assert_eq!(address(&path).bind().unwrap_err().kind(), ErrorKind::AddrInUse);
        let full = StdListener::bind(folder.path().join("full")).unwrap();
        listen(&full, 0).unwrap();
        let _waiting = std::os::unix::net::UnixStream::connect(folder.path().join("full")).unwrap();
        let refused = address(&folder.path().join("full")).bind().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        // A file that took the socket's place stays.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        drop(first);
        assert!(path.exists());
        for what in ["file", "folder", "link"] {
            let path = folder.path().join(what);
            match what {
                "file" => fs::write(&path, "").unwrap(),
                "folder" => fs::create_dir(&path).unwrap(),
                _ => std::os::unix::fs::symlink("/dev/null", &path).unwrap(),
            }
            assert_eq!(address(&path).bind().unwrap_err().kind(), ErrorKind::AlreadyExists, "{what}");
            assert!(fs::symlink_metadata(&path).is_ok());
        }
        assert!(address(&folder.path().join("x".repeat(200))).bind().is_err());
        assert!(address(&folder.path().join("no/folder")).bind().is_err());
    }
}
