use crate::error::OverlayError;
use crate::yaml;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Files to read in place of sysfs's own, and files that sysfs does not have: the content of
/// `sysfsOverlay`, a YAML map of absolute sysfs paths to file contents. What is not in it is read
/// through.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overlay {
    /// Content by path below `/sys`.
    files: BTreeMap<String, String>,
}

impl Overlay {
    /// Reads an overlay file.
    ///
    /// # Errors
    /// [`OverlayError`] for a file that cannot be read, or is no map of sysfs paths to text.
    pub fn load(path: &Path) -> Result<Self, OverlayError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| OverlayError::Io { path: path.display().to_string(), source })?;
        Self::parse(&text)
    }

    /// Reads the text of an overlay file. Blank text is the empty overlay.
    ///
    /// # Errors
    /// [`OverlayError`] for text that is no map of sysfs paths to text.
    pub fn parse(text: &str) -> Result<Self, OverlayError> {
        let files: Option<BTreeMap<String, String>> = yaml::parse(text).map_err(OverlayError::NotAMap)?;
        Self::from_files(files.unwrap_or_default())
    }

    /// An overlay of these absolute sysfs paths and contents.
    ///
    /// # Errors
    /// [`OverlayError`] for a path that is not below `/sys`.
    pub fn from_files(files: impl IntoIterator<Item = (String, String)>) -> Result<Self, OverlayError> {
        let mut overlay = Self::default();
        for (path, content) in files {
            let below = path
                .strip_prefix("/sys/")
                .filter(|below| below.split('/').all(|part| !matches!(part, "" | "." | "..")))
                .ok_or_else(|| OverlayError::NotASysfsPath(path.clone()))?;
            overlay.files.insert(below.to_owned(), content);
        }
        for below in overlay.files.keys() {
            let directories = below.match_indices('/').filter_map(|(end, _)| below.get(..end));
            if let Some(file) = directories.into_iter().find(|dir| overlay.files.contains_key(*dir)) {
                return Err(OverlayError::FileAndDirectory {
                    file: format!("/sys/{file}"),
                    below: format!("/sys/{below}"),
                });
            }
        }
        Ok(overlay)
    }

    /// Whether nothing is overlaid.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub(crate) fn contains(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// What the overlay adds to a directory: its own files, and the directories of deeper ones.
    pub(crate) fn names(&self, dir: &str) -> BTreeSet<String> {
        let prefix = format!("{dir}/");
        self.files
            .range(prefix.clone()..)
            .map_while(|(path, _)| path.strip_prefix(prefix.as_str()))
            .filter_map(|rest| rest.split('/').next())
            .map(str::to_owned)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_yaml_map_of_paths_is_an_overlay() {
        let overlay = Overlay::parse(concat!(
            "/sys/devices/system/cpu/online: 0-3\n",
            "/sys/devices/system/cpu/cpu0/topology/core_id: 7\n",
            "/sys/devices/system/cpu/isolated: ''\n",
        ))
        .unwrap();
        assert_eq!(overlay.get("devices/system/cpu/online"), Some("0-3"));
        assert_eq!(overlay.get("devices/system/cpu/cpu0/topology/core_id"), Some("7"));
        assert_eq!(overlay.get("devices/system/cpu/isolated"), Some(""));
        let names: Vec<_> = overlay.names("devices/system/cpu").into_iter().collect();
        assert_eq!(names, ["cpu0", "isolated", "online"]);
        assert_eq!(Overlay::parse("").unwrap(), Overlay::default());
        assert_eq!(Overlay::parse("{}").unwrap(), Overlay::default());
    }

    #[test]
    fn what_is_no_map_of_sysfs_paths_is_refused() {
        for text in ["- a\n- b\n", "text", "/sys/a: [1]\n", "/sys/a: 1\n/sys/a: 2\n", "/sys/a: {b: c}\n", "{"]
        {
            assert!(matches!(Overlay::parse(text), Err(OverlayError::NotAMap(_))), "{text:?}");
        }
        for key in ["/proc/cpuinfo", "sys/a", "/sys/", "/sys/a/", "/sys/../etc/passwd", "/sys//a", "/sys/./a"]
        {
            let error = Overlay::parse(&format!("{key}: x\n")).unwrap_err();
            assert!(matches!(&error, OverlayError::NotASysfsPath(path) if path == key), "{key}: {error}");
        }
        let both = Overlay::parse("/sys/a: x\n/sys/a-b: x\n/sys/a/b: x\n");
        assert!(matches!(both, Err(OverlayError::FileAndDirectory { .. })));
        let missing = Overlay::load(Path::new("/nonexistent/overlay.yaml")).unwrap_err();
        assert!(missing.to_string().contains("/nonexistent/overlay.yaml"));
    }
}
