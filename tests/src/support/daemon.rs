//! The real daemon as a child process.

use super::wait;
use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The daemon's binary: `$DRACPU_BIN`, else beside this executable or in the directory above it, where
/// cargo puts it.
///
/// # Errors
/// When it is not there; says how to make it.
pub fn dracpu_bin() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("DRACPU_BIN") {
        return Ok(PathBuf::from(path));
    }
    let this = std::env::current_exe()?;
    let found = this.ancestors().skip(1).take(2).map(|dir| dir.join("dracpu")).find(|path| path.is_file());
    found.with_context(|| {
        let directory = this.parent().unwrap_or(&this).display().to_string();
        format!("no `dracpu` in {directory} or above: run `cargo build -p dracpu --bin dracpu` (same profile) first")
    })
}

/// An address on the loopback interface that nobody else asks for: its host part is this process's own, so that no
/// outgoing connection can have taken the port meanwhile.
fn own_address() -> Result<SocketAddr> {
    static NEXT: AtomicU16 = AtomicU16::new(1024);
    let [low, middle, high, _] = std::process::id().to_le_bytes();
    let host = Ipv4Addr::new(127, 64 | high, middle, low);
    loop {
        let address = SocketAddr::from((host, NEXT.fetch_add(1, Ordering::Relaxed).max(1024)));
        match std::net::TcpListener::bind(address) {
            Ok(_free) => return Ok(address),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(error).with_context(|| format!("cannot listen on {address}")),
        }
    }
}

/// Where built-in strategies are compiled once for all nodes, a directory of its owner's alone.
///
/// # Errors
/// When it cannot be made.
pub fn compiled_strategies() -> Result<PathBuf> {
    let directory = Path::new(env!("OUT_DIR")).join("compiled-strategies");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    Ok(directory)
}

/// What the daemon is started with.
#[derive(Debug, Clone)]
pub struct DaemonArgs {
    /// Arguments, without the bind address.
    pub args: Vec<String>,
    /// A command that ends in running what follows it in its own place: the binary and its arguments. None: directly.
    pub launcher: Vec<String>,
    /// Environment variables beside the harness's own.
    pub envs: Vec<(String, String)>,
    /// Where its output goes, appended.
    pub log: PathBuf,
}

/// A started daemon's process, for those who watch it or end it.
#[derive(Clone)]
pub struct Process {
    pid: Pid,
    ended: watch::Receiver<Option<ExitStatus>>,
    written: watch::Receiver<usize>,
}

impl Process {
    /// The process id, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        if self.status().is_some() { None } else { self.pid.as_raw_nonzero().get().try_into().ok() }
    }

    /// How it ended; none while it runs.
    #[must_use]
    pub fn status(&self) -> Option<ExitStatus> {
        *self.ended.borrow()
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When nobody can tell any more.
    pub async fn ended(&self) -> Result<ExitStatus> {
        let mut ended = self.ended.clone();
        let status = ended.wait_for(Option::is_some).await.ok().and_then(|status| *status);
        status.context("cannot wait for the daemon")
    }

    /// Sends a signal; none once it has ended.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        match self.pid() {
            Some(_) => Ok(rustix::process::kill_process(self.pid, signal)?),
            None => Ok(()),
        }
    }

    /// Waits until it has written so many lines, or has ended.
    pub async fn wait_lines(&self, count: usize) {
        let mut written = self.written.clone();
        let _ended = written.wait_for(|written| *written >= count).await;
    }
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    process: Process,
    http: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
    readers: JoinSet<()>,
    /// Owns the process, which is killed when this is dropped.
    _waiting: JoinSet<()>,
}

impl Daemon {
    /// Starts it; does not wait for anything.
    ///
    /// # Errors
    /// When the binary cannot be started.
    pub fn spawn(daemon: &DaemonArgs) -> Result<Self> {
        let binary = dracpu_bin()?;
        let http = own_address()?;
        let mut words = daemon.launcher.iter().map(OsStr::new).chain([binary.as_os_str()]);
        let mut command = Command::new(words.next().unwrap());
        command
            .args(words)
            .args(&daemon.args)
            .arg(format!("--bind-address={http}"))
            .env_remove("NODE_NAME")
            .envs(daemon.envs.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", binary.display()))?;
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let (counting, written) = watch::channel(0);
        let counting = Arc::new(counting);
        let log = std::fs::File::options().create(true).append(true).open(&daemon.log)?;
        let log = Arc::new(Mutex::new(log));
        let out: Box<dyn tokio::io::AsyncRead + Send + Unpin> = Box::new(child.stdout.take().unwrap());
        let err: Box<dyn tokio::io::AsyncRead + Send + Unpin> = Box::new(child.stderr.take().unwrap());
        let mut readers = JoinSet::new();
        for stream in [out, err] {
            let (lines, counting, log) = (Arc::clone(&lines), Arc::clone(&counting), Arc::clone(&log));
            readers.spawn(async move {
                let mut text = BufReader::new(stream).lines();
                while let Ok(Some(line)) = text.next_line().await {
                    let _disk_full =
                        std::io::Write::write_all(&mut *log.lock().unwrap(), format!("{line}\n").as_bytes());
                    lines.lock().unwrap().push(line);
                    counting.send_modify(|n| *n += 1);
                }
            });
        }
        let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.context("a child that was just started has a process id")?;
        let (ending, ended) = watch::channel(None);
        let mut waiting = JoinSet::new();
        waiting.spawn(async move {
            ending.send_replace(child.wait().await.ok());
            // whoever waits must be able to see it
            ending.closed().await;
        });
        let process = Process { pid, ended, written };
        Ok(Self { process, http, lines, readers, _waiting: waiting })
    }

    /// The process.
    #[must_use]
    pub fn process(&self) -> Process {
        self.process.clone()
    }

    /// Its lines so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for a line that holds `text`.
    ///
    /// # Errors
    /// After `limit`.
    pub async fn wait_line(&self, text: &str, limit: Duration) -> Result<String> {
        let find = || self.lines.lock().unwrap().iter().find(|line| line.contains(text)).cloned();
        wait::look(&format!("line with `{text}`"), limit, &mut self.process.written.clone(), find).await
    }

    /// An answer of its HTTP server: status and body.
    ///
    /// # Errors
    /// When nothing answers.
    pub async fn get(&self, path: &str) -> Result<(u16, String)> {
        let stream = TcpStream::connect(self.http).await?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let driving = tokio::spawn(connection);
        let request = hyper::Request::get(path).header("host", "node").body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        driving.abort();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }

    /// The value of a metric's series (`name` or `name{label="value"}`).
    ///
    /// # Errors
    /// When there is no such series.
    pub async fn metric(&self, series: &str) -> Result<f64> {
        let (_, text) = self.get("/metrics").await?;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.with_context(|| format!("no series {series} in:\n{text}"))?.trim().parse().context("a number")
    }

    /// Waits until `/readyz` says 200.
    ///
    /// # Errors
    /// After `limit` with the last reason, or at once when the daemon has ended.
    pub async fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let deadline = tokio::time::Instant::now() + limit;
        let mut every = tokio::time::interval(Duration::from_millis(10));
        loop {
            every.tick().await;
            if let Some(status) = self.process.status() {
                bail!("the daemon ended with {status}:\n{}", self.tail());
            }
            let why = match self.get("/readyz").await {
                Ok((200, _)) => return Ok(()),
                Ok((status, words)) => format!("{status} {words}"),
                Err(refusal) => format!("{refusal:#}"),
            };
            if tokio::time::Instant::now() > deadline {
                bail!("not ready within {limit:?}: {why}\n{}", self.tail());
            }
        }
    }

    fn tail(&self) -> String {
        let lines = self.lines();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    /// SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// When it cannot be waited for.
    pub async fn kill(self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        self.process.ended().await?;
        Ok(())
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub async fn terminate(mut self, limit: Duration) -> Result<ExitStatus> {
        ensure!(self.process.status().is_none(), "the daemon has ended already:\n{}", self.tail());
        self.process.signal(Signal::TERM)?;
        self.wait_exit(limit).await
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// After `limit`.
    pub async fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let ended = tokio::time::timeout(limit, self.process.ended()).await;
        let status =
            ended.with_context(|| format!("the daemon still runs after {limit:?}:\n{}", self.tail()))??;
        while self.readers.join_next().await.is_some() {} // its last words
        Ok(status)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- the daemon's last lines\n{}\n----", self.tail());
        }
    }
}

/// Runs the daemon's binary for a short command and returns its output.
///
/// # Errors
/// When it cannot be run.
pub async fn run_dracpu(args: &[&str], directory: &Path) -> Result<std::process::Output> {
    let output = Command::new(dracpu_bin()?).args(args).current_dir(directory).output();
    output.await.context("cannot run dracpu")
}
