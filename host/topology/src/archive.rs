use crate::tree::MemoryFiles;
use std::io::Read;
use tar::EntryType;

/// The most that an archive may unpack to. A machine with 8192 CPUs needs less than a tenth.
const MAX_BYTES: u64 = 1 << 30;

/// The most that is kept of one file; sysfs's own end at a few pages.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Unpacks an archive of a sysfs tree into memory, and finds the directory in it that stands for `/sys`:
/// the top, `sys` in it, or either below one directory.
///
/// # Errors
/// Text that says what is wrong with the archive.
pub(crate) fn unpack(bytes: &[u8]) -> Result<MemoryFiles, String> {
    let unzipped = flate2::read::MultiGzDecoder::new(bytes).take(MAX_BYTES);
    let mut archive = tar::Archive::new(unzipped);
    let mut files = MemoryFiles::default();
    let unreadable = |error: std::io::Error| format!("not a readable .tar.gz: {error}");
    for entry in archive.entries().map_err(unreadable)? {
        let mut entry = entry.map_err(unreadable)?;
        let Some(path) = normalized(&entry.path_bytes()) else { continue };
        match entry.header().entry_type() {
            EntryType::Symlink => {
                if let Some(target) = entry.link_name_bytes() {
                    files.insert_link(&path, String::from_utf8_lossy(&target).into_owned());
                }
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                let mut content = Vec::new();
                entry.by_ref().take(MAX_FILE_BYTES).read_to_end(&mut content).map_err(unreadable)?;
                files.insert_file(&path, String::from_utf8_lossy(&content).into_owned());
            }
            _ => {}
        }
    }
    let tops = files.top();
    let below_one = tops.iter().flat_map(|top| [format!("{top}/sys"), top.clone()]);
    let mut candidates = ["sys".to_owned(), String::new()].into_iter().chain(below_one);
    let root =
        candidates.find(|root| files.has_dir(format!("{root}/devices/system/cpu").trim_start_matches('/')));
    files.set_root(root.ok_or("no devices/system/cpu in the archive; is it one of a sysfs tree?")?);
    Ok(files)
}

/// The path without `.` parts. None for one with `..`, which no archive of ours has.
fn normalized(path: &[u8]) -> Option<String> {
    let path = String::from_utf8_lossy(path);
    let parts: Vec<&str> = path.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    (!parts.is_empty() && !parts.contains(&"..")).then(|| parts.join("/"))
}
