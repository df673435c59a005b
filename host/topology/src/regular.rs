use std::fs::{FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// The bytes of a regular file; symbolic links are followed. Whatever else the path leads to, the call neither
/// waits for a writer nor fills the memory: for directories that others can put things into.
///
/// # Errors
/// What the system says; a file of another kind, and one with more than `limit` bytes.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // Looked at before: to open a device may be to do something.
    expect_regular(std::fs::metadata(path)?.file_type())?;
    // And after, for what was put in its place meanwhile; without O_NONBLOCK a named pipe would wait.
    let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    expect_regular(file.metadata()?.file_type())?;
    // The size that the system gives is not to be trusted: that of a kernel's file is a page or nothing.
    let mut bytes = Vec::new();
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(read).is_ok_and(|read| read <= limit) {
        return Ok(bytes);
    }
    Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {limit} bytes")))
}

/// Whether a file is a regular one. What is asked of a link itself depends on how its kind was found out.
///
/// # Errors
/// What it is instead, in words.
pub fn expect_regular(kind: FileType) -> io::Result<()> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_symlink() => "a symbolic link",
        kind if kind.is_dir() => "a directory",
        kind if kind.is_fifo() => "a named pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, not a regular file")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use std::os::unix::fs::symlink;

    #[test]
    fn only_regular_files_up_to_the_limit_are_read_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "0123").unwrap();
        symlink("file", at("link")).unwrap();
        symlink("/dev/zero", at("endless")).unwrap();
        symlink("loop", at("loop")).unwrap();
        symlink("pipe", at("link to a pipe")).unwrap();
        std::fs::create_dir(at("directory")).unwrap();
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let read = |name: &str| read_regular(&at(name), 4).map_err(|error| error.to_string());
        assert_eq!(read("file"), Ok(b"0123".to_vec()));
        assert_eq!(read("link"), Ok(b"0123".to_vec()));
        std::fs::write(at("larger"), "01234").unwrap();
        for (name, words) in [
            ("endless", "it is a device, not a regular file"),
            ("pipe", "it is a named pipe, not a regular file"),
            ("link to a pipe", "it is a named pipe, not a regular file"),
            ("directory", "it is a directory, not a regular file"),
            ("socket", "it is a socket, not a regular file"),
            ("larger", "it has more than 4 bytes"),
        ] {
            assert_eq!(read(name), Err(words.to_owned()), "{name}");
        }
        assert!(read("loop").is_err());
        assert_eq!(read_regular(&at("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
