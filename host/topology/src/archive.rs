use crate::tree::{MAX_FILE_BYTES, MemoryFiles};
use std::io::Read;
use tar::EntryType;

/// The most that an archive may unpack to. A machine with 8192 CPUs needs less than a tenth.
const MAX_BYTES: u64 = 1 << 30;

/// The most that the extended header of an entry may hold: a name or a link's target, 4096 bytes on Linux.
const MAX_NAME_BYTES: u64 = 1 << 14;

/// Unpacks an archive of a sysfs tree into memory, and finds the directory in it that stands for `/sys`:
/// the top, `sys` in it, or either below one directory.
///
/// # Errors
/// Text that says what is wrong with the archive.
pub(crate) fn unpack(bytes: &[u8]) -> Result<MemoryFiles, String> {
    check(bytes)?;
    let mut archive = tar::Archive::new(flate2::read::MultiGzDecoder::new(bytes));
    let mut files = MemoryFiles::default();
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let Some(path) = normalized(&entry.path_bytes()) else { continue };
        let target = entry.link_name_bytes().map(|target| String::from_utf8_lossy(&target).into_owned());
        match (entry.header().entry_type(), target) {
            (EntryType::Directory, _) => files.insert_directory(&path),
            (EntryType::Symlink, Some(target)) => files.insert_link(&path, target),
            (EntryType::Link, Some(target)) => {
                let original = normalized(target.as_bytes()).and_then(|target| files.file(&target));
                files.insert_file(&path, original.unwrap_or_default());
            }
            // Other files, like /proc/cpuinfo beside the tree, may be of any size.
            (EntryType::Regular | EntryType::Continuous, _) if path.contains("devices/") => {
                if entry.size() > MAX_FILE_BYTES {
                    return Err(format!("{path} has {} bytes, no file of sysfs has so many", entry.size()));
                }
                let mut content = Vec::new();
                entry.read_to_end(&mut content).map_err(unreadable)?;
                files.insert_file(&path, String::from_utf8_lossy(&content).into_owned());
            }
            _ => {}
        }
    }
    let tops = files.top();
    let below_one = tops.iter().flat_map(|top| [format!("{top}/sys"), top.clone()]);
    let mut candidates = ["sys".to_owned(), String::new()].into_iter().chain(below_one);
    let has_cpus =
        |root: &String| files.has_dir(format!("{root}/devices/system/cpu").trim_start_matches('/'));
    let root = candidates.find(has_cpus);
    files.set_root(root.ok_or("no devices/system/cpu in the archive; is it one of a sysfs tree?")?);
    Ok(files)
}

/// Looks through the archive before anything of it is kept: its size, its checksum, which stands at the end,
/// and the lengths of names, which the reader of archives would take into memory whatever they are.
fn check(bytes: &[u8]) -> Result<(), String> {
    let mut archive = tar::Archive::new(flate2::read::MultiGzDecoder::new(bytes).take(MAX_BYTES));
    for entry in archive.entries().map_err(unreadable)?.raw(true) {
        let entry = entry.map_err(unreadable)?;
        let is_extension = matches!(
            entry.header().entry_type(),
            EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader | EntryType::XGlobalHeader
        );
        if is_extension && entry.size() > MAX_NAME_BYTES {
            return Err(format!(
                "a name in the archive has {} bytes, at most {MAX_NAME_BYTES} are read",
                entry.size()
            ));
        }
    }
    let mut rest = archive.into_inner();
    std::io::copy(&mut rest, &mut std::io::sink()).map_err(unreadable)?;
    match rest.limit() {
        0 => Err(format!("the archive unpacks to more than {MAX_BYTES} bytes")),
        _ => Ok(()),
    }
}

fn unreadable(error: std::io::Error) -> String {
    format!("not a readable .tar.gz: {error}")
}

/// The path without `.` parts. None for one with `..`, which no archive of ours has.
fn normalized(path: &[u8]) -> Option<String> {
    let path = String::from_utf8_lossy(path);
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.is_empty() && !parts.contains(&"..")).then(|| parts.join("/"))
}
