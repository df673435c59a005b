/// A machine that ships with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Example {
    /// What `--machine` calls it.
    pub name: &'static str,
    /// Its shape, a few lines.
    text: &'static str,
}

impl Example {
    /// What it is like, in one line: the comment that its description starts with.
    #[must_use]
    pub fn description(&self) -> &'static str {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ")
    }
}

macro_rules! examples {
    ($($name:literal)*) => {
        [$(Example { name: $name, text: include_str!(concat!("../../../tests/machines/", $name, ".yaml")) }),*]
    };
}

/// Small ones first, then servers, then odd ones.
const EXAMPLES: &[Example] = &examples![
    "small"
    "desktop-smt"
    "hybrid"
    "mobile-hybrid"
    "arm-big-little"
    "two-socket"
    "amd-ccd"
    "epyc-nps4"
    "epyc-l3-numa"
    "epyc-dense"
    "xeon-snc3"
    "xeon-max"
    "xeon-e-cores"
    "arm-server"
    "arm-clusters"
    "smt4"
    "power-smt8"
    "many-core"
    "eight-sockets"
    "many-sockets"
    "vm-sockets"
    "holes"
    "mixed-threads"
    "restarting-ids"
];

/// The machines that ship with the program.
#[must_use]
pub fn examples() -> &'static [Example] {
    EXAMPLES
}

pub(crate) fn find(name: &str) -> Option<&'static str> {
    EXAMPLES.iter().find(|example| example.name == name).map(|example| example.text)
}

pub(crate) fn names() -> String {
    EXAMPLES.iter().map(|example| example.name).collect::<Vec<_>>().join(", ")
}
