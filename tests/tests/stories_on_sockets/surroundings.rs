//! What is around the driver, and the driver's own life: machine, clocks, files, configuration, API server, kubelet and
//! runtime come and go, and change.

use anyhow::{Result, bail, ensure};
use dracpu_cpuset::CpuSet;
use dracpu_model::event::{Damage, Event, What};
use dracpu_model::truth::{Truth, file_name};
use dracpu_tests::support::api_server::Presence;
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{Node, NodeConfig};
use dracpu_tests::support::own_mounts::Mount;
use dracpu_tests::support::process_clock::ProcessClock;
use dracpu_tests::support::runtime::RuntimeVersion;
use dracpu_tests::support::scheduler::DRIVER;
use dracpu_tests::support::wait::{SOON, poll};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;

/// How slow an API server is that has come back under load.
const SLOW: Duration = Duration::from_millis(150);

pub(crate) struct Surroundings {
    /// The CDI directory's own mount, where there can be one. Before the node, whose directory it is in.
    cdi: Option<Mount>,
    /// The file that stands for the kernel's boot id.
    boot_id: Option<Mount>,
    pub(crate) node: Node,
    clock: ProcessClock,
    offline: CpuSet,
    driver_runs: bool,
    runtime_runs: bool,
    /// The driver can write no file.
    no_writes: bool,
    /// Nor remove one.
    read_only: bool,
    /// How often the API server has come back.
    returns: u32,
    reboots: u32,
}

fn runtime_of(nri: (u32, u32, u32)) -> RuntimeVersion {
    if nri >= (0, 12, 0) { RuntimeVersion::Containerd24 } else { RuntimeVersion::Containerd21 }
}

impl Surroundings {
    /// `own_mounts`: the process has a mount namespace of its own.
    pub(crate) async fn start(machine: &Machine, own_mounts: bool, truth: &Truth) -> Result<Self> {
        let clock = ProcessClock::new()?;
        let config = NodeConfig {
            runtime: runtime_of(truth.nri),
            envs: clock.envs(),
            ..NodeConfig::new(machine.clone())
        };
        let node = Node::without_daemon(config.with_config(Value::from(truth.config.clone()))).await?;
        let cdi = own_mounts.then(|| Mount::bind(&node.cdi_dir(), &node.cdi_dir())).transpose()?;
        let own_boot_id = || -> Result<Mount> {
            std::fs::write(node.path("boot_id"), "boot-0\n")?;
            Mount::bind(&node.path("boot_id"), Path::new("/proc/sys/kernel/random/boot_id"))
        };
        let boot_id = own_mounts.then(own_boot_id).transpose()?;
        node.start_daemon().await?;
        node.devices().await?;
        Ok(Self {
            cdi,
            boot_id,
            node,
            clock,
            offline: CpuSet::new(),
            driver_runs: true,
            runtime_runs: true,
            no_writes: false,
            read_only: false,
            returns: 0,
            reboots: 0,
        })
    }

    /// The events that stand for one here.
    pub(crate) fn events(&self, event: Event) -> Vec<Event> {
        let fail = |what, on| Event::Fail { what, on };
        match event {
            // Who cannot remove a file cannot write one either.
            Event::Fail { what: What::CdiWrite, .. } if self.read_only => vec![],
            Event::Fail { what: What::CdiRemove, on } if self.cdi.is_none() || on == self.read_only => vec![],
            Event::Fail { what: What::CdiRemove, on: true } => {
                vec![fail(What::CdiWrite, true), fail(What::CdiRemove, true)]
            }
            Event::Fail { what: What::CdiRemove, on: false } => self.well_again(),
            Event::Spec { ref claim, .. } => {
                let there = self.node.cdi_dir().join(file_name(claim)).exists();
                if there && !self.read_only { vec![event] } else { vec![] }
            }
            Event::Runtime { nri } => {
                let nri = if nri.starts_with("0.12") { "0.12.3" } else { "0.8.0" };
                vec![Event::Runtime { nri: nri.to_owned() }]
            }
            event => vec![event],
        }
    }

    /// Files can be written and removed.
    pub(crate) fn well_again(&self) -> Vec<Event> {
        let off = |what| Event::Fail { what, on: false };
        let read_only = self.read_only.then(|| off(What::CdiRemove));
        read_only.into_iter().chain(self.no_writes.then(|| off(What::CdiWrite))).collect()
    }

    /// Plays an event. Why the driver has refused it, if it has.
    pub(crate) async fn play(&mut self, event: &Event) -> Result<Option<String>> {
        if let Event::Reload { set } = event {
            return self.reload(set.clone()).await;
        }
        self.happens(event).await.map(|()| None)
    }

    async fn happens(&mut self, event: &Event) -> Result<()> {
        match event {
            Event::Crash {} => self.kill().await,
            Event::Config { set } => {
                self.configure(set.clone())?;
                self.kill().await
            }
            Event::Sync { .. } => self.connect().await,
            Event::Runtime { nri } => {
                self.node.runtime.stop().await;
                self.runtime_runs = false;
                let version = if nri.starts_with("0.12") { (0, 12, 3) } else { (0, 8, 0) };
                self.node.runtime.install(runtime_of(version));
                Ok(())
            }
            Event::Kubelet {} => {
                self.node.kubelet.restart().await;
                self.node.kubelet.wait_registered(DRIVER, SOON).await?;
                Ok(())
            }
            Event::Clock { day, forward } => {
                self.clock.jump(*day, *forward)?;
                // What is due by now is done when something wakes the driver.
                self.node.get("/healthz").await?;
                Ok(())
            }
            Event::Offline { cpus } => self.switch(self.offline.union(&cpus.parse()?)).await,
            Event::Online { cpus } => self.switch(self.offline.difference(&cpus.parse()?)).await,
            Event::Fail { what, on } => self.fail(*what, *on).await,
            Event::Spec { claim, how } => self.damage(claim, *how),
            other => bail!("{other:?} cannot be played here"),
        }
    }

    /// Records can be those of another boot.
    pub(crate) fn can_change_boot_id(&self) -> bool {
        self.boot_id.is_some()
    }

    /// The machine boots again: nothing runs, and directories of the run are empty, unless the records are on a disk.
    pub(crate) async fn reboot(&mut self, records: bool) -> Result<()> {
        self.kill().await?;
        self.node.runtime.stop().await;
        self.runtime_runs = false;
        self.node.runtime.forget_all();
        self.reboots += 1;
        if self.can_change_boot_id() {
            std::fs::write(self.node.path("boot_id"), format!("boot-{}\n", self.reboots))?;
        }
        for entry in std::fs::read_dir(self.node.cdi_dir())?.filter(|_| !records) {
            std::fs::remove_file(entry?.path())?;
        }
        self.node.kubelet.restart().await;
        // A record that counts no more is taken away by a driver that starts.
        if records { self.connect().await } else { Ok(()) }
    }

    async fn kill(&mut self) -> Result<()> {
        self.node.kill_daemon().await?;
        self.driver_runs = false;
        Ok(())
    }

    /// The runtime, or the driver, or both, are started; the runtime says what runs.
    async fn connect(&mut self) -> Result<()> {
        if !self.runtime_runs {
            self.node.runtime.begin()?;
        } else if self.driver_runs {
            self.node.runtime.restart().await?;
        }
        self.runtime_runs = true;
        if !self.driver_runs {
            self.node.launch_daemon().await?;
            self.driver_runs = true;
        }
        self.node.wait_connected().await?;
        if self.no_writes { self.limit_files(Some(0)).await } else { Ok(()) }
    }

    fn configure(&mut self, set: serde_json::Map<String, Value>) -> Result<()> {
        self.node.config.config.as_object_mut().expect("an object").extend(set);
        self.node.write_config()
    }

    /// Who sees a reload refused sets the file back.
    async fn reload(&mut self, set: serde_json::Map<String, Value>) -> Result<Option<String>> {
        let before = self.node.config.config.as_object().cloned();
        self.configure(set)?;
        let refused = self.told_to_reload().await?;
        if refused.is_some() {
            self.configure(before.expect("an object"))?;
            let again = self.told_to_reload().await?;
            ensure!(again.is_none(), "what was there before is refused: {again:?}");
        }
        Ok(refused)
    }

    async fn told_to_reload(&self) -> Result<Option<String>> {
        let before = self.lines("reloaded").await.len();
        self.node.signal_daemon(Signal::HUP).await?;
        let lines = self.next_line("reloaded", before).await?;
        Ok(lines.into_iter().find(|line| line.contains("not reloaded")))
    }

    async fn switch(&mut self, offline: CpuSet) -> Result<()> {
        const NOTICED: &str = "the online CPUs have changed";
        let before = self.lines(NOTICED).await.len();
        self.node.config.machine.switch_off(&offline.iter().collect(), &self.node.path("sys"))?;
        self.offline = offline;
        self.next_line(NOTICED, before).await?;
        Ok(())
    }

    async fn fail(&mut self, what: What, on: bool) -> Result<()> {
        match what {
            What::Api => {
                self.returns += u32::from(!on);
                let back = if self.returns % 2 == 1 { Presence::Slow(SLOW) } else { Presence::Here };
                self.node.api.set_presence(if on { Presence::Refusing } else { back }).await
            }
            What::CdiWrite => {
                self.no_writes = on;
                self.limit_files(on.then_some(0)).await
            }
            What::CdiRemove => {
                self.read_only = on;
                self.cdi.as_ref().expect("only where there is a mount").read_only(on)
            }
        }
    }

    /// How many bytes a file of the driver may have; none: as many as there is room for.
    async fn limit_files(&self, bytes: Option<u64>) -> Result<()> {
        let pid = self.node.daemon_pid().await.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None })?;
        Ok(())
    }

    fn damage(&self, claim: &str, how: Damage) -> Result<()> {
        let path = self.node.cdi_dir().join(file_name(claim));
        let text = std::fs::read_to_string(&path)?;
        let damaged = match how {
            Damage::Truncate => text.chars().take(text.chars().count() / 2).collect(),
            Damage::Garble => "\u{0}garbled\u{7f}".repeat(20),
            Damage::Newer => text.replacen(r#"{\"v\":1,"#, r#"{\"v\":1000,"#, 1),
            Damage::Remove => return Ok(std::fs::remove_file(path)?),
        };
        Ok(std::fs::write(path, damaged)?)
    }

    async fn lines(&self, text: &str) -> Vec<String> {
        let lines = self.node.daemon_lines().await.into_iter();
        lines.filter(|line| line.contains(text)).collect()
    }

    /// Lines of the running daemon with a text, behind the first so many.
    async fn next_line(&self, text: &str, before: usize) -> Result<Vec<String>> {
        let more = || async {
            let lines = self.lines(text).await;
            ensure!(lines.len() > before, "no more lines with `{text}`");
            Ok(lines[before..].to_vec())
        };
        poll(text, SOON, more).await
    }
}
