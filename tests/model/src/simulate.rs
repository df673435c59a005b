//! A node played by `dracpu simulate`: the real driver, ledger, files and strategies in a process of their own.

use crate::event::Event;
use crate::run::Stage;
use crate::seen::{Answer, Books, Seen};
use crate::truth::Truth;
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// The process.
pub struct Simulate {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
    home: TempDir,
    cdi_dir: Option<PathBuf>,
}

impl Simulate {
    /// Starts it on the machine and with the configuration of a node on which nothing has happened. `cache` is where
    /// compiled strategies are kept.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(binary: &Path, cache: &Path, truth: &Truth, envs: &[(&str, &str)]) -> Result<Self> {
        // In memory, where there is such a place: the driver waits for the disk after each change.
        let memory = Path::new("/dev/shm");
        let home = tempfile::tempdir_in(memory).or_else(|_| tempfile::tempdir())?;
        let config = home.path().join("config.yaml");
        std::fs::write(&config, Value::from(truth.config.clone()).to_string())?; // JSON is YAML
        let child_home = home.path().join("home");
        std::fs::create_dir(&child_home)?;
        let mut child = Command::new(binary)
            .arg("simulate")
            .arg(format!("--machine={}", truth.machine.name))
            .arg(format!("--config={}", config.display()))
            .arg(format!("--cache-dir={}", cache.display()))
            .args(["--output=json", "-"])
            .env("TMPDIR", &child_home)
            .envs(envs.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let asks = child.stdin.take().context("its input")?;
        let answers = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Self { child, asks, answers, home, cdi_dir: None })
    }

    /// The answer to one event.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn ask(&mut self, event: &Event) -> Result<Value> {
        let mut line = serde_json::to_string(event)?;
        line.push('\n');
        self.asks.write_all(line.as_bytes())?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(!answer.is_empty(), "dracpu simulate has ended after {line}");
        Ok(serde_json::from_str(&answer)?)
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Files of the CDI directory, but for those that mount device metadata: the rules are about records.
    fn files(&mut self) -> Result<BTreeMap<String, String>> {
        if self.cdi_dir.is_none() {
            let home = self.home.path().join("home");
            let found = std::fs::read_dir(home)?.filter_map(Result::ok).map(|entry| entry.path().join("cdi"));
            self.cdi_dir = found.filter(|path| path.is_dir()).last();
        }
        let Some(directory) = &self.cdi_dir else { return Ok(BTreeMap::new()) };
        let entries = match std::fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(error) => return Err(error.into()),
        };
        let mut files = BTreeMap::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.starts_with("dra.cpu_metadata_") {
                files.insert(name, String::from_utf8_lossy(&std::fs::read(&path)?).into_owned());
            }
        }
        Ok(files)
    }
}

impl Stage for Simulate {
    fn play(&mut self, event: &Event) -> Result<Seen> {
        let answer = Answer::read(&self.ask(event)?)?;
        // A refusal says nothing of the node.
        let state = self.ask(&Event::State {})?;
        let capacity = state["capacity"].as_object().into_iter().flatten();
        Ok(Seen {
            later: Answer::read(&state)?.updates,
            books: Some(Books::read(&state)?),
            capacity: capacity.filter_map(|(device, cpus)| Some((device.clone(), cpus.as_u64()?))).collect(),
            files: self.files()?,
            masks: None,
            answer,
        })
    }

    /// There is no kubelet: what it asks again is asked, and that is all. Nothing outlasts a reboot.
    fn events(&self, event: Event, _: &Truth) -> Vec<Event> {
        match event {
            Event::Kubelet {} => Vec::new(),
            Event::Reboot { .. } => vec![Event::Reboot { records: false }],
            event => vec![event],
        }
    }

    fn script(&self, event: &Event) -> Vec<Event> {
        vec![event.clone(), Event::State {}]
    }
}

impl Drop for Simulate {
    fn drop(&mut self) {
        // It may have ended already.
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}
