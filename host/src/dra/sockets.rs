//! The unix sockets under the kubelet's directory. All of this happens under the node lock.

use crate::config::Config;
use rustix::fs::Mode;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

/// Callers of a private socket that wait until they are served; others are told to come again.
const PRIVATE_BACKLOG: u32 = 16;

/// Why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SocketError {
    /// The kubelet has made no registry here.
    #[error(
        "{} is not a directory; is --kubelet-root-dir the kubelet's, and mounted here under the same path?",
        .0.display()
    )]
    NoRegistry(PathBuf),
    /// Somebody serves a socket of a driver for the same devices.
    #[error("another driver runs here: somebody answers at {}; end it first", .0.display())]
    AnotherDriver(PathBuf),
    /// The system refuses.
    #[error(
        "cannot use {}; the driver must be able to make sockets there (room and inodes on the file system, mounted for \
         writing)", path.display()
    )]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Checks that the kubelet's directory is there and makes the driver's own in it.
///
/// # Errors
/// [`SocketError::NoRegistry`] when this is not the directory of a kubelet.
pub fn prepare_directories(config: &Config) -> Result<(), SocketError> {
    let registry = config.registry_dir();
    if !registry.is_dir() {
        return Err(SocketError::NoRegistry(registry));
    }
    let own = config.plugin_dir();
    std::fs::create_dir_all(&own).map_err(|source| SocketError::Io { path: own, source })
}

/// Removes what earlier drivers left: their sockets under all names that drivers for these devices use. What is in the
/// way of the operator's socket alone is for its server to tell.
///
/// # Errors
/// [`SocketError::AnotherDriver`] when one of them is served.
pub async fn clear_the_way(config: &Config) -> Result<(), SocketError> {
    let sockets = [
        config.registration_socket(),
        config.registry_dir().join("dra.cpu-reg.sock"),
        config.dra_socket(),
        config.plugin_dir().join("dra.sock"),
    ];
    for socket in sockets {
        clear(&socket).await?;
    }
    match clear(&config.live_socket()).await {
        Err(error @ SocketError::AnotherDriver(_)) => Err(error),
        _ => Ok(()),
    }
}

/// Removes a socket that nobody serves.
///
/// # Errors
/// [`SocketError::AnotherDriver`] when somebody serves it; when something else is there that cannot be removed.
pub(crate) async fn clear(socket: &Path) -> Result<(), SocketError> {
    // A link is nobody's socket, whoever may answer where it leads.
    let is_link = std::fs::symlink_metadata(socket).is_ok_and(|found| found.is_symlink());
    let result = match UnixStream::connect(socket).await {
        _ if is_link => remove_if_present(socket),
        Ok(_answered) => return Err(SocketError::AnotherDriver(socket.to_owned())),
        // Somebody listens, and has more to do than to answer.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            return Err(SocketError::AnotherDriver(socket.to_owned()));
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => remove_if_present(socket),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    result.map_err(|source| SocketError::Io { path: socket.to_owned(), source })
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A listening socket's file, which goes when this is dropped. Another one in its place stays.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode; none when it could not be looked at.
    id: Option<(u64, u64)>,
}

impl SocketFile {
    /// Listens at the path.
    pub(crate) fn bind(path: PathBuf) -> Result<(UnixListener, Self), SocketError> {
        Self::of(UnixListener::bind(&path), path)
    }

    /// Listens at the path, for its owner alone. The file has its mode from the first moment: Linux gives it that of the
    /// socket, which can be set before (`unix_bind` in `net/unix/af_unix.c`).
    pub(crate) fn bind_private(path: PathBuf) -> Result<(UnixListener, Self), SocketError> {
        let listen = || {
            let socket = UnixSocket::new_stream()?;
            rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
            socket.bind(&path)?;
            socket.listen(PRIVATE_BACKLOG)
        };
        Self::of(listen(), path)
    }

    fn of(bound: io::Result<UnixListener>, path: PathBuf) -> Result<(UnixListener, Self), SocketError> {
        match bound {
            Ok(listener) => Ok((listener, Self { id: id(&path), path })),
            Err(source) => Err(SocketError::Io { path, source }),
        }
    }

    /// Whoever goes to the path still finds this socket.
    pub(crate) fn is_in_place(&self) -> bool {
        self.id.is_none() || id(&self.path) == self.id
    }
}

fn id(path: &Path) -> Option<(u64, u64)> {
    let file = std::fs::symlink_metadata(path).ok()?;
    Some((file.dev(), file.ino()))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_in_place() {
            return;
        }
        if let Err(error) = remove_if_present(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}
