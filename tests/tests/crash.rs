//! Killed at every marked point and at random, under load and while it recovers from the kill before: nothing is owned
//! twice, nothing answered is forgotten, and every start serves.
//!
//! `make crash` runs it with ten thousand kills (`KILLS=n`, `SEED=s`), `make test` with three hundred. A kill at a
//! marked point is the daemon's own death there (`DRACPU_CRASH_AT`), a random one is SIGKILL.

use anyhow::{Context, Result, bail, ensure};
use dracpu::cdi::Step;
use dracpu_tests::support::daemon::Process;
use dracpu_tests::support::guests::HIGHEST_FIRST;
use dracpu_tests::support::load::{Load, Mostly, Trouble};
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{Node, NodeConfig};
use dracpu_tests::support::random::Random;
use dracpu_tests::support::runtime::RuntimeVersion;
use dracpu_tests::support::wait::SOON;
use rustix::process::Signal;
use serde_json::json;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const DEVICES: [&str; 2] = ["cpudevnuma000", "cpudevnuma001"];
/// Of so many kills one is at random.
const RANDOM_SHARE: usize = 5;
/// Batches of load in which a marked point must be reached.
const MOST_BATCHES: usize = 100;
/// Random kills come so soon after a line of the log, or after the load has begun.
const SOON_AFTER: Duration = Duration::from_millis(5);
/// Lines that a start writes.
const MOST_LINES: usize = 10;

/// How the next daemon dies.
#[derive(Debug, Clone, Copy)]
enum Kill {
    /// By itself, at the n-th time that it reaches this step.
    At(Step, usize),
    /// By SIGKILL, so long after it has written so many lines.
    Starting(usize, Duration),
    /// By SIGKILL, so long after the load has begun.
    Serving(Duration),
}

impl std::fmt::Display for Kill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::At(step, _) => write!(f, "{step:?}"),
            Self::Starting(..) => f.write_str("SIGKILL while starting"),
            Self::Serving(_) => f.write_str("SIGKILL under load"),
        }
    }
}

#[derive(Default)]
struct Report {
    kills: BTreeMap<String, usize>,
    served: Vec<Duration>,
    checked: usize,
}

/// A node whose daemon is killed again and again.
struct Victim {
    node: Node,
    load: Load,
    random: Random,
    points: Vec<Step>,
    report: Report,
    /// The strategy is a component file there.
    _directory: TempDir,
}

impl Victim {
    async fn new(runtime: RuntimeVersion, seed: u64) -> Result<Self> {
        let shape = Shape { sockets: 1, numa_per_socket: 2, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
        let directory = tempfile::tempdir()?;
        let component = directory.path().join("highest-first.wasm");
        std::fs::write(&component, HIGHEST_FIRST)?;
        let config = NodeConfig::new(Machine::of(shape)).with_config(json!({
            "reservedCPUs": "0,16", "allocator": "highest-first",
            "strategies": [{"name": "highest-first", "path": component}],
        }));
        let node = Node::without_daemon(NodeConfig { runtime, own_cache: true, ..config }).await?;
        std::fs::create_dir(node.path("aside"))?;
        let mut random = Random::new(seed);
        let load = Load::new(&DEVICES, Random::new(random.number()));
        // an older runtime is sent no masks outside of hooks
        let reached = |step: &Step| *step != Step::MasksTaken || runtime == RuntimeVersion::Containerd24;
        let points = Step::ALL.iter().copied().flatten().copied().filter(reached).collect();
        let report = Report::default();
        Ok(Self { node, load, random, points, report, _directory: directory })
    }

    /// The kill with this number: in turn at each point, now and then at random.
    fn kill(&mut self, number: usize) -> Kill {
        if number % RANDOM_SHARE == RANDOM_SHARE - 1 {
            let after = self.random.shorter_than(SOON_AFTER);
            return match self.random.below(2) {
                0 => Kill::Starting(self.random.below(MOST_LINES), after),
                _ => Kill::Serving(after),
            };
        }
        let step = self.points[(number - number / RANDOM_SHARE) % self.points.len()];
        let times = match step {
            Step::Adopted => self.node.recorded().map_or(0, |recorded| recorded.len()).max(1),
            Step::TempSwept => 2,
            step if Step::START.contains(&step) || Step::CACHE.contains(&step) || step == Step::Proven => 1,
            _ => 3,
        };
        Kill::At(step, 1 + self.random.below(times))
    }

    /// What must be there so that the step is reached; false: it cannot be, as there is no claim for it.
    fn make_way(&mut self, kill: Kill) -> Result<bool> {
        let Kill::At(step, _) = kill else { return Ok(true) };
        match step {
            Step::TempSwept => {
                for claim in ["torn", "empty"] {
                    let name = format!("dra.k8s.io-cpu_claim-{claim}.json.tmp");
                    std::fs::write(self.node.cdi_dir().join(name), "{")?;
                }
            }
            Step::Proven => return self.load.wipe_one(&self.node),
            Step::Adopted => return Ok(!self.node.recorded()?.is_empty()),
            step if Step::CACHE.contains(&step) => {
                for compiled in self.compiled()? {
                    let aside = compiled.file_name().context("a file has a name")?;
                    std::fs::rename(&compiled, self.node.path("aside").join(aside))?;
                }
            }
            _ => {}
        }
        Ok(true)
    }

    /// The compiled strategies in the cache.
    fn compiled(&self) -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(self.node.path("cache")).into_iter().flatten();
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
        Ok(paths.into_iter().filter(|path| path.extension().is_some_and(|end| end == "cwasm")).collect())
    }

    /// What was compiled before is put back, or the next start would take its time.
    fn restore_cache(&self) -> Result<()> {
        if !self.compiled()?.is_empty() {
            return Ok(());
        }
        for entry in std::fs::read_dir(self.node.path("aside"))? {
            let entry = entry?;
            std::fs::copy(entry.path(), self.node.path("cache").join(entry.file_name()))?;
        }
        Ok(())
    }

    /// One life of the daemon: started with what the last one left, checked, loaded, killed.
    async fn live(&mut self, kill: Kill) -> Result<()> {
        self.load.books.check_records(&self.node).context("before the start")?;
        self.node.config.envs = match kill {
            Kill::At(step, times) => vec![("DRACPU_CRASH_AT".to_owned(), format!("{step:?}:{times}"))],
            _ => Vec::new(),
        };
        let began = Instant::now();
        self.node.launch_daemon().await?;
        let process = self.node.daemon_process().await?;
        let killer = async {
            if let Kill::Starting(lines, after) = kill {
                process.wait_lines(lines).await;
                tokio::time::sleep(after).await;
                process.signal(Signal::KILL)?;
            }
            std::future::pending::<Result<()>>().await
        };
        let started = tokio::select! {
            biased;
            status = process.ended() => { status?; false }
            failed = killer => { failed?; false }
            serving = self.node.wait_serving() => match serving {
                Ok(()) => true,
                Err(error) => { unless_dead(&process, error).await?; false }
            },
        };
        if started {
            self.report.served.push(began.elapsed());
            self.check(&process).await?;
            self.load_until_death(kill, &process).await?;
        }
        let status = self.node.wait_daemon_end().await?;
        self.died_of(kill, status)?;
        self.restore_cache()?;
        self.load.books.check_records(&self.node).context("after the death")?;
        *self.report.kills.entry(kill.to_string()).or_default() += 1;
        Ok(())
    }

    async fn check(&mut self, process: &Process) -> Result<()> {
        let checked = tokio::select! {
            biased;
            status = process.ended() => { status?; return Ok(()) }
            checked = self.load.books.check(&self.node) => checked,
        };
        match checked {
            Ok(()) => self.report.checked += 1,
            Err(error) => unless_dead(process, error.context("after the start")).await?,
        }
        Ok(())
    }

    async fn load_until_death(&mut self, kill: Kill, process: &Process) -> Result<()> {
        let mostly = match kill {
            Kill::At(step, _) if Step::PREPARE.contains(&step) => Mostly::Prepare,
            Kill::At(step, _) if Step::UNPREPARE.contains(&step) => Mostly::Unprepare,
            Kill::At(Step::ContainerPlaced, _) => Mostly::Create,
            Kill::At(Step::ContainerStopped, _) => Mostly::Stop,
            _ => Mostly::Anything,
        };
        let killer = async {
            match kill {
                Kill::At(..) => Ok(()),
                // one that was to die while it started was faster
                Kill::Starting(_, after) | Kill::Serving(after) => {
                    tokio::time::sleep(after).await;
                    process.signal(Signal::KILL)
                }
            }
        };
        let load = async {
            for _ in 0..MOST_BATCHES {
                for trouble in self.load.batch(&self.node, mostly).await {
                    match trouble {
                        Trouble::Fault(error) => return Err(error),
                        Trouble::NoAnswer(error) => unless_dead(process, error).await?,
                    }
                }
                if process.status().is_some() {
                    return Ok(());
                }
            }
            bail!("{kill} was not reached in {MOST_BATCHES} batches of load")
        };
        let (killed, loaded) = tokio::join!(killer, load);
        killed.and(loaded)
    }

    /// As it was to die, and not by an end of its own.
    fn died_of(&self, kill: Kill, status: ExitStatus) -> Result<()> {
        let wanted = match kill {
            Kill::At(..) => Signal::ABORT,
            Kill::Starting(..) | Kill::Serving(_) => Signal::KILL,
        };
        ensure!(status.signal() == Some(wanted.as_raw()), "the daemon ended with {status}");
        Ok(())
    }
}

/// An error is none when the daemon is dead by then, as it is to be; it is soon, if that is why.
async fn unless_dead(process: &Process, error: anyhow::Error) -> Result<()> {
    match tokio::time::timeout(SOON, process.ended()).await {
        Ok(ended) => ended.map(|_| ()),
        Err(_) => Err(error.context("the daemon is alive")),
    }
}

/// Kills the daemon of one node so many times; in the end it serves, and all of it can be unprepared.
async fn kill_again_and_again(runtime: RuntimeVersion, kills: usize, seed: u64) -> Result<Report> {
    let mut victim = Victim::new(runtime, seed).await?;
    let mut number = 0;
    let mut done = 0;
    while done < kills {
        let kill = victim.kill(number);
        number += 1;
        if !victim.make_way(kill)? {
            continue;
        }
        done += 1;
        let told = || format!("{runtime:?}, kill {done}: {kill:?}");
        if let Err(error) = victim.live(kill).await {
            let last = victim.node.last_lines()?;
            return Err(error.context(told()).context(format!("the daemon's last lines:\n{last}")));
        }
    }
    victim.node.config.envs.clear();
    victim.node.start_daemon().await?;
    victim.load.books.check(&victim.node).await.context("in the end")?;
    victim.load.end_all(&victim.node).await?;
    victim.load.books.check(&victim.node).await.context("with nothing left")?;
    ensure!(victim.node.runtime.oddities().is_empty(), "{:?}", victim.node.runtime.oddities());
    Ok(victim.report)
}

fn number_of(variable: &str) -> Result<Option<u64>> {
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => Ok(Some(text.parse().with_context(|| format!("{variable}={text}"))?)),
        _ => Ok(None),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kill_makes_a_cpu_owned_twice_or_an_answered_claim_forgotten() -> Result<()> {
    let kills = usize::try_from(number_of("KILLS")?.unwrap_or(300))?;
    let seed = number_of("SEED")?.unwrap_or(1);
    let half = kills / 2;
    let began = Instant::now();
    // Two at a time: much of a start is waiting.
    let (new, old) = tokio::join!(
        kill_again_and_again(RuntimeVersion::Containerd24, kills - half, seed),
        kill_again_and_again(RuntimeVersion::Containerd21, half, seed.wrapping_add(1)),
    );
    let (new, old) =
        (new.with_context(|| format!("SEED={seed}"))?, old.with_context(|| format!("SEED={seed}"))?);
    let mut all = Report::default();
    for report in [new, old] {
        all.served.extend(report.served);
        all.checked += report.checked;
        for (point, kills) in report.kills {
            *all.kills.entry(point).or_default() += kills;
        }
    }
    all.served.sort();
    let at =
        |share: usize| all.served.get((all.served.len() * share / 100).min(all.served.len() - 1)).copied();
    eprintln!("kills by point, SEED={seed}:");
    for (point, kills) in &all.kills {
        eprintln!("{kills:7} {point}");
    }
    eprintln!(
        "{:7} in all, in {:.0?}; {} starts that served, {} of them checked before the next death, 0 faults; to serve \
         again took {:.0?} (median), {:.0?} (worst)",
        all.kills.values().sum::<usize>(),
        began.elapsed(),
        all.served.len(),
        all.checked,
        at(50).unwrap_or_default(),
        at(100).unwrap_or_default(),
    );
    Ok(())
}
