//! The daemon: builds the parts in order, joins their tasks, drains at the end.
//!
//! 1. The configuration, logged once; the way to the API server (nobody is asked yet).
//! 2. The node lock, before any socket; then whatever earlier drivers left is cleared away.
//! 3. The driver, from the machine and the records: in place before anybody can call.
//! 4. The operator's socket, HTTP, the kubelet's sockets, the runtime, the slices, what may change: a task each. One that ends early ends the
//!    process with its reason.
//! 5. A signal stops all of them; calls that run are finished, within a deadline. The sockets go; slices
//!    and CDI specs stay.
//! 6. The node lock ends last.

use crate::cdi::{self, Probe, SpecDir, Step};
use crate::cli::Failure;
use crate::clock::SystemClock;
use crate::config::{Config, ConfigFlags, DeviceMode};
use crate::dra::{self, Access, KubeApi, LockError, NodeLock, Plugin, Registrar, SocketError};
use crate::driver::{Driver, DriverParts, LoadedOnce, StartError};
use crate::events::{self, KubeEvents};
use crate::hotplug::{self, Sysfs};
use crate::http::metrics::{Metrics, NodeState};
use crate::http::{self, Health};
use crate::live;
use crate::logging;
use crate::memory;
use crate::metadata::MetadataFiles;
use crate::nri;
use crate::readiness::Readiness;
use crate::reload::{self, Reload, Watched};
use crate::report::Report;
use crate::slices::{self, Pool};
use crate::strategy::{Cache, Catalogue};
use anyhow::{Context as _, anyhow};
use dracpu_topology::Overlay;
use std::future::Future;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// For the calls that run when the daemon is told to stop. A pod has 30 s in all.
const DRAIN: Duration = Duration::from_secs(10);
/// For the runtime's first word of its containers, which it says as soon as it is connected. The kubelet waits 45 s for all
/// claims of a pod.
const CONTAINERS: Duration = Duration::from_secs(10);
/// For components that are not compiled yet, before anybody is served. What takes longer is compiled while the driver
/// serves, without the claims that need it.
const COMPILING: Duration = Duration::from_secs(2);
/// Between two looks at the files of claims, and for claims that nobody will unprepare.
const CLAIMS: Duration = Duration::from_secs(300);
/// After that a start is over: the kubelet and the runtime have called, what is published is written.
const STARTED: Duration = Duration::from_secs(2);
/// Strategies, files and name look-ups: calls wait for each other there anyway, and threads cost memory.
const BLOCKING_THREADS: usize = 16;

/// Run the daemon: serve the kubelet and the container runtime of this node
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: dracpu run --config=/etc/dracpu/config.yaml --v=4")]
pub struct Args {
    #[command(flatten)]
    config: ConfigFlags,

    /// Form of log lines
    #[arg(long, value_enum, default_value_t)]
    log_format: logging::Format,
}

impl Args {
    /// The configuration flags alone.
    pub(crate) fn into_config(self) -> ConfigFlags {
        self.config
    }
}

/// Runs until a signal or a fault ends it.
///
/// # Errors
/// [`Failure`] with the reason.
pub fn run(args: Args) -> Result<ExitCode, Failure> {
    logging::start(args.config.verbosity, args.log_format);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(BLOCKING_THREADS)
        .enable_all()
        .build()
        .context("cannot start the threads of the daemon")
        .map_err(Failure::Failed)?;
    let result = runtime.block_on(serve(args));
    // A blocking call that outlives the drain is cut off with the process, as by a crash.
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS)
}

/// The daemon on the caller's runtime, with the caller's log and clock.
///
/// # Errors
/// [`Failure`] with the reason.
pub async fn serve(args: Args) -> Result<(), Failure> {
    let flags = args.config;
    let mut watched = Watched::new(&flags);
    let config = flags.load()?;
    watched.add(&config.selection);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), config = %config.describe(), "effective configuration");
    // Fails when the process has one already, which serves as well.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    daemon(flags, config, watched).await
}

async fn daemon(flags: ConfigFlags, config: Config, watched: Watched) -> Result<(), Failure> {
    let access = dra::access(&config).await.map_err(|error| Failure::Usage(error.into()))?;
    let mut signals = Signals::new().context("cannot listen for signals").map_err(Failure::Failed)?;
    // From here on it ends nobody.
    let hangup =
        signal(SignalKind::hangup()).context("cannot listen for signals").map_err(Failure::Failed)?;
    let probe = cdi::from_environment();
    let begin = async {
        let lock = take_node(&config, &*probe).await?;
        let overlay = config.sysfs_overlay.as_deref().map(Overlay::load).transpose();
        let overlay = overlay.map_err(|error| Failure::Failed(error.into()))?.unwrap_or_default();
        let sysfs = Arc::new(Sysfs { root: config.sysfs_root.clone(), overlay });
        let started = start_driver(config.clone(), access.clone(), sysfs.clone(), probe.clone()).await;
        let started = started.map_err(|error| match error.downcast_ref::<StartError>() {
            Some(StartError::NothingShared(_)) => Failure::Usage(error),
            _ => Failure::Failed(error),
        })?;
        Ok::<_, Failure>((lock, started, sysfs))
    };
    let (_lock, started, sysfs) = tokio::select! {
        begun = begin => begun?,
        name = signals.next() => {
            tracing::info!(signal = name, "stopped before anything was served");
            return Ok(());
        }
    };
    let Started { driver, catalogue, strategies } = started;
    let reload = Reload { flags, started: config.clone(), catalogue, driver: driver.clone() };
    let reload = |report: Report| async move {
        reload::watch(reload, watched, strategies, hangup, |news| report.configured(news)).await;
    };
    let tasks = Tasks::start(&config, access, driver, sysfs, probe, reload).await.map_err(Failure::Failed)?;
    tasks.join(signals).await.map_err(Failure::Failed)
}

/// Makes this process the node's only driver.
async fn take_node(config: &Config, probe: &dyn Probe) -> Result<NodeLock, Failure> {
    let socket = |error: SocketError| match error {
        SocketError::AnotherDriver(_) => Failure::Busy(error.into()),
        _ => Failure::Failed(error.into()),
    };
    dra::prepare_directories(config).map_err(socket)?;
    let lock = NodeLock::acquire(&config.lock_file(), config.lock_timeout, &identity()).await;
    let lock = lock.map_err(|error| match error {
        LockError::Held { .. } => Failure::Busy(error.into()),
        _ => Failure::Failed(error.into()),
    })?;
    probe.reached(Step::NodeLocked);
    dra::clear_the_way(config).await.map_err(socket)?;
    probe.reached(Step::WayCleared);
    Ok(lock)
}

/// Who this process is, for one that waits for the node.
fn identity() -> String {
    let pid = std::process::id();
    match (std::env::var("POD_NAMESPACE"), std::env::var("POD_NAME")) {
        (Ok(namespace), Ok(name)) => format!("pid {pid}, pod {namespace}/{name}"),
        (_, Ok(name)) => format!("pid {pid}, pod {name}"),
        _ => format!("pid {pid}"),
    }
}

/// A driver, and where its strategies come from.
struct Started {
    driver: Arc<Driver>,
    catalogue: Catalogue,
    strategies: Arc<LoadedOnce>,
}

async fn start_driver(
    mut config: Config,
    access: Access,
    sysfs: Arc<Sysfs>,
    probe: Arc<dyn Probe>,
) -> anyhow::Result<Started> {
    let start = move || {
        let boot_id = "/proc/sys/kernel/random/boot_id";
        let topology = sysfs.topology()?;
        logging::warn_all(&topology.warnings);
        config.settle_reserved(&topology, &Default::default());
        tracing::info!(reserved = %config.reserved_cpus.on(&topology), "CPUs");
        let cache = Cache::create(&config.cache_dir).map(|cache| cache.probed(probe.clone()));
        let cache = cache.map_err(|error| {
            tracing::warn!("strategies are compiled at every start: {:#}", anyhow::Error::new(error));
        });
        let catalogue =
            Catalogue::new(&config.selection.strategies)?.in_program(cache.ok(), &config.sysfs_root);
        let names = config.selection.names().filter(|_| config.mode != DeviceMode::Individual);
        let strategies = LoadedOnce::until(Instant::now() + COMPILING, catalogue.clone(), names, None);
        let strategies = Arc::new(strategies);
        let parts = DriverParts {
            topology,
            strategies: strategies.clone(),
            api: Arc::new(KubeApi::new(access)),
            specs: SpecDir::new(config.cdi_dir.clone(), probe.clone()),
            metadata: MetadataFiles::new(
                config.plugin_dir().join("dra-device-metadata"),
                config.cdi_dir.clone(),
                probe.clone(),
            ),
            probe,
            boot_id: std::fs::read_to_string(boot_id).context(boot_id)?.trim().to_owned(),
            clock: Arc::new(SystemClock),
            containers_within: Some(CONTAINERS),
            config,
        };
        anyhow::Ok(Started { driver: Driver::start(parts)?, catalogue, strategies })
    };
    tokio::task::spawn_blocking(start).await.context("the driver could not be started")?
}

/// The parts that run side by side.
struct Tasks {
    set: JoinSet<(&'static str, anyhow::Result<()>)>,
    stop: CancellationToken,
    health: Arc<Health>,
}

impl Tasks {
    async fn start<R: Future<Output = ()> + Send + 'static>(
        config: &Config,
        access: Access,
        driver: Arc<Driver>,
        sysfs: Arc<Sysfs>,
        probe: Arc<dyn Probe>,
        reload: impl FnOnce(Report) -> R,
    ) -> anyhow::Result<Self> {
        let mut tasks = Self { set: JoinSet::new(), stop: CancellationToken::new(), health: Arc::default() };
        let readiness: Arc<Readiness> = Arc::default();
        let metrics: Arc<Metrics> = Arc::default();
        let report =
            Report { driver: driver.clone(), metrics: metrics.clone(), readiness: readiness.clone() };
        report.active();

        // Before the kubelet may call, since nothing that it does is needed to answer.
        let socket = live::Socket::at(config.live_socket()).await;
        let (peer, progress) = (Arc::default(), Arc::default());
        let sources = live::Sources {
            driver: driver.clone(),
            readiness: readiness.clone(),
            peer: Arc::clone(&peer),
            progress: Arc::clone(&progress),
            node: config.node_name.clone(),
            config: config.clone(),
        };
        let live = live::serve(socket, sources, tasks.stop.clone());
        tasks.spawn("server of the command line", async move {
            live.await;
            Ok(())
        });

        let listener = http::listen(config.bind_address).await;
        let listener =
            listener.with_context(|| format!("cannot listen on --bind-address {}", config.bind_address))?;
        tracing::info!(address = %listener.local_addr()?, "serving HTTP");
        let sources = http::Sources {
            health: tasks.health.clone(),
            readiness: readiness.clone(),
            metrics: metrics.clone(),
            state: Arc::new({
                let driver = driver.clone();
                move || node_state(&driver)
            }),
        };
        let stop = tasks.stop.clone();
        tasks.spawn("HTTP server", async move {
            http::serve(listener, sources, stop).await;
            Ok(())
        });

        let endpoint = config.dra_socket().to_string_lossy().into_owned();
        let registrar = Registrar::new(endpoint, readiness.clone(), tasks.health.clone());
        let watch = dra::watch_cpu_manager(config.clone(), registrar.registrations(), readiness.clone());
        let stop = tasks.stop.clone();
        tasks.spawn("look at the kubelet's CPU manager", async move {
            stop.run_until_cancelled(watch).await;
            Ok(())
        });
        let kubelet = dra::serve(
            config.clone(),
            Plugin::new(driver.clone(), metrics.clone()),
            dra::Reported { devices: driver.health(), clock: Arc::new(SystemClock) },
            registrar,
            probe,
            tasks.stop.clone(),
        );
        tasks.spawn("kubelet plugin", async move { Ok(kubelet.await?) });

        let nri = nri::run(
            config.nri_socket.clone(),
            driver.clone(),
            metrics.clone(),
            readiness.clone(),
            peer,
            tasks.stop.clone(),
        );
        tasks.spawn("runtime plugin", async move {
            nri.await;
            Ok(())
        });

        let server = Arc::new(KubeEvents::new(access.client.clone()));
        let events = events::run(
            driver.clone(),
            config.node_name.clone(),
            server,
            metrics.clone(),
            Arc::new(SystemClock),
        );
        let stop = tasks.stop.clone();
        tasks.spawn("writer of events", async move {
            stop.run_until_cancelled(events).await;
            Ok(())
        });

        let slices = slices::run(
            access.client,
            Pool::from(config),
            driver.devices(),
            readiness,
            progress,
            tasks.stop.clone(),
        );
        tasks.spawn("slice publisher", slices);

        let stop = tasks.stop.clone();
        let reload = reload(report.clone());
        tasks.spawn("watch of strategies", async move {
            stop.run_until_cancelled(reload).await;
            Ok(())
        });

        let stop = tasks.stop.clone();
        let watch = hotplug::watch(sysfs, driver.clone(), move || report.active());
        tasks.spawn("watch of online CPUs", async move {
            stop.run_until_cancelled(watch).await;
            Ok(())
        });

        if config.claim_status {
            let stop = tasks.stop.clone();
            let write = driver.clone().write_statuses_forever(Arc::new(SystemClock));
            tasks.spawn("writer of claim status", async move {
                stop.run_until_cancelled(write).await;
                Ok(())
            });
        }

        let stop = tasks.stop.clone();
        tasks.spawn("claim keeper", async move {
            stop.run_until_cancelled(keep_claims(driver)).await;
            Ok(())
        });
        Ok(tasks)
    }

    fn spawn(&mut self, name: &'static str, task: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        self.set.spawn(async move { (name, task.await) });
    }

    /// Waits for a signal, or for a task that ends early; then drains. The error is that task's reason.
    async fn join(mut self, mut signals: Signals) -> anyhow::Result<()> {
        let result = tokio::select! {
            name = signals.next() => {
                tracing::info!(signal = name, "stopping");
                Ok(())
            }
            Some(ended) = self.set.join_next() => Err(early(ended)),
        };
        if let Err(reason) = &result {
            self.health.failed(format!("{reason:#}"));
        }
        self.stop.cancel();
        let drain = async {
            while let Some(ended) = self.set.join_next().await {
                if let Ok((name, Err(error))) = ended {
                    tracing::warn!("the {name} did not stop cleanly: {error:#}");
                }
            }
        };
        if tokio::time::timeout(DRAIN, drain).await.is_err() {
            tracing::warn!(deadline = ?DRAIN, "calls were still running at the deadline, they are cut off");
            self.set.shutdown().await;
        }
        result
    }
}

/// Why a task that should not have ended did.
fn early(ended: Result<(&'static str, anyhow::Result<()>), JoinError>) -> anyhow::Error {
    match ended {
        Ok((name, Ok(()))) => anyhow!("the {name} ended by itself"),
        Ok((name, Err(error))) => error.context(format!("the {name} ended")),
        Err(error) => anyhow!("a part of the daemon failed: {error}"),
    }
}

/// What goes on in the background: claims without a record are asked for as they turn up; now and then files that were
/// lost are written again, and claims that nobody will unprepare are looked for.
async fn keep_claims(driver: Arc<Driver>) {
    let tidy = async {
        let mut pause = STARTED;
        loop {
            tokio::time::sleep(pause).await;
            match memory::unmap_program() {
                Ok(bytes) => tracing::trace!(bytes, "unmapped the program, most of which is needed rarely"),
                Err(error) => {
                    tracing::debug!(%error, "the program stays in memory as far as it was needed once")
                }
            }
            pause = CLAIMS;
        }
    };
    let look = async {
        loop {
            tokio::time::sleep(CLAIMS).await;
            driver.mend_files().await;
            driver.find_orphans().await;
        }
    };
    tokio::join!(driver.clone().prove_forever(), look, tidy);
}

fn node_state(driver: &Driver) -> NodeState {
    let status = driver.status();
    NodeState {
        allocated_cpus: status.allocated.len(),
        available_cpus: status.available.len(),
        reserved_cpus: status.reserved.len(),
        active_claims: status.claims.len(),
        stranded_cpus: status.stranded_cpus.len(),
        conflicted_cpus: status.conflicted_cpus.len(),
        orphaned_claims: status.orphaned.len(),
        shared_pool_pending: status.pending_updates,
        overlap: status.overlap,
        ..NodeState::default()
    }
}

/// The signals that end the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Not one of them: caught so that a limit on file sizes is an error of the write, not the end of the daemon.
    _file_size: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let file_size = SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            _file_size: signal(file_size)?,
        })
    }

    /// The name of the next one.
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
