//! The real daemon as a child process.

use super::wait;
use anyhow::{Context, Result, bail, ensure};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
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

/// Where built-in strategies are compiled once for all nodes, a directory of its owner's alone.
///
/// # Errors
/// When it cannot be made.
pub fn compiled_strategies() -> Result<PathBuf> {
    let directory = Path::new(env!("OUT_DIR")).join("compiled-strategies");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    Ok(directory)
}

/// A loopback port that nobody has just now.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// What the daemon is started with.
#[derive(Debug, Clone)]
pub struct DaemonArgs {
    /// Arguments, without the bind address.
    pub args: Vec<String>,
    /// Environment variables beside the harness's own.
    pub envs: Vec<(String, String)>,
    /// Where its output goes, appended.
    pub log: PathBuf,
}

/// A running daemon; killed when dropped.
pub struct Daemon {
    child: Child,
    http: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
    written: watch::Receiver<usize>,
    readers: JoinSet<()>,
}

impl Daemon {
    /// Starts it; does not wait for anything.
    ///
    /// # Errors
    /// When the binary cannot be started.
    pub fn spawn(daemon: &DaemonArgs) -> Result<Self> {
        let binary = dracpu_bin()?;
        let http = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let mut command = Command::new(&binary);
        command
            .args(&daemon.args)
            .arg(format!("--bind-address={http}"))
            .envs(daemon.envs.iter().map(|(key, value)| (key, value)))
            .env_remove("NODE_NAME")
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
        Ok(Self { child, http, lines, written, readers })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
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
        wait::look(&format!("line with `{text}`"), limit, &mut self.written.clone(), find).await
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
            if let Some(status) = self.child.try_wait()? {
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
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill the daemon")
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub async fn terminate(mut self, limit: Duration) -> Result<ExitStatus> {
        let pid = self.pid().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
        ensure!(pid.is_some(), "the daemon has ended already:\n{}", self.tail());
        rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::TERM)?;
        self.wait_exit(limit).await
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// After `limit`.
    pub async fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let ended = tokio::time::timeout(limit, self.child.wait()).await;
        let ended =
            ended.with_context(|| format!("the daemon still runs after {limit:?}:\n{}", self.tail()))?;
        while self.readers.join_next().await.is_some() {} // its last words
        ended.context("cannot wait for the daemon")
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
