//! An hour in which nothing changes: nothing is written, sent or logged.
//!
//! The daemon runs in this process, with its clock: once it serves, an hour is told in seconds.

use anyhow::{Context, Result, ensure};
use clap::Parser;
use dracpu::run::{self, serve};
use dracpu_tests::support::api_server::{Resource, Seen, Verb};
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig, PLUGIN};
use dracpu_tests::support::scheduler::{Ask, DRIVER};
use dracpu_tests::support::wait::SOON;
use serde_json::json;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    run: run::Args,
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn take(&self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut *self.0.lock().unwrap())).into_owned()
    }
}

fn is_write(seen: &Seen) -> bool {
    !matches!(seen.verb, Verb::Get | Verb::List | Verb::Watch)
}

#[tokio::test]
async fn in_an_hour_without_changes_nothing_is_written_sent_or_logged() -> Result<()> {
    let log = Log::default();
    let writer = log.clone();
    // As the chart has it.
    let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(move || writer.clone());
    let own = Targets::new().with_default(LevelFilter::WARN).with_target("dracpu", LevelFilter::DEBUG);
    // For all threads: this is the only test of its process.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(own).with(lines))?;

    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    let config = json!({"hostnameOverride": NODE});
    let node = Node::without_daemon(NodeConfig::new(Machine::of(shape)).with_config(config)).await?;
    let args = node.daemon_args()?.args;
    let words =
        ["dracpu".to_owned()].into_iter().chain(args).chain(["--bind-address=127.0.0.1:0".to_owned()]);
    let daemon = tokio::spawn(serve(Cli::try_parse_from(words)?.run));
    node.kubelet.wait_registered(DRIVER, SOON).await.with_context(|| log.take())?;
    node.runtime.wait_plugin(PLUGIN, SOON).await?;
    let claim = node.allocate("a", &[Ask::of("r", "cpudevnuma000", 4)]).await?;
    node.run_pod("p", &[&claim], &[ContainerAsk::new("app", &[&claim])]).await?;
    node.run_pod("q", &[], &[ContainerAsk::new("app", &[])]).await?;

    tokio::time::pause();
    // What the start has set going comes to its end.
    tokio::time::sleep(Duration::from_secs(60)).await;
    ensure!(log.take().contains("registered with the kubelet"), "the log is not seen");
    let before = (node.runtime.calls().len(), node.api.seen().len());
    ensure!(node.api.count(Verb::Create, Resource::ResourceSlices) > 0);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    ensure!(!daemon.is_finished(), "the daemon has ended");
    let lines = log.take();
    ensure!(lines.is_empty(), "logged: {lines}");
    ensure!(
        node.runtime.calls().len() == before.0,
        "the runtime was called: {:?}",
        node.runtime.calls().last()
    );
    let seen = node.api.seen();
    let writes: Vec<&Seen> = seen[before.1..].iter().filter(|seen| is_write(seen)).collect();
    ensure!(writes.is_empty(), "written: {writes:?}");
    let reads = seen.len() - before.1;
    ensure!(
        reads < 20,
        "{reads} reads, where a watch is begun anew every five minutes: {:?}",
        &seen[before.1..]
    );
    daemon.abort();
    Ok(())
}
