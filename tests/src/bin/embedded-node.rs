//! The embedded node as a process of its own, driven by JSON lines: a command in on standard input, an
//! answer out on standard output. The demo uses it; so can a person.
//!
//! ```text
//! {"op":"up","machine":{"sockets":2,"numaPerSocket":1,"l3PerNuma":2,"coresPerL3":4,"threads":2},"config":{"reservedCPUs":"0"}}
//! {"op":"daemon","do":"start"}
//! {"op":"allocate","claim":"A","requests":[{"request":"cpus","device":"","cpus":4}]}
//! {"op":"pod","pod":"web","claims":["A"],"containers":[{"name":"app","claims":["A"]}]}
//! {"op":"state"}
//! {"op":"terminate","pod":"web"}
//! ```
//!
//! Every answer has `ok`; a refusal has `error`. `up` comes first and once. With end of input, or `quit`, the
//! node and the daemon end.

use anyhow::{Context, Result, bail};
use dracpu_tests::support::api_server::{Gates, Presence, Resource};
use dracpu_tests::support::cpus::{Cpus, list, parse};
use dracpu_tests::support::kubelet::{ClaimRef, KubeletVersion};
use dracpu_tests::support::machine::{CpuRow, Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, NODE, Node, NodeConfig, Pod};
use dracpu_tests::support::runtime::{ContainerState, CpuChange, RuntimeVersion};
use dracpu_tests::support::scheduler::{Ask, DRIVER};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use tokio::sync::mpsc;

/// A machine: a regular shape, or its CPUs.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum MachineAsk {
    #[serde(rename_all = "camelCase")]
    Shape {
        sockets: u32,
        numa_per_socket: u32,
        l3_per_numa: u32,
        cores_per_l3: u32,
        threads: u32,
    },
    Cpus {
        cpus: Vec<CpuRow>,
    },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Daemon {
    Start,
    Kill,
    Terminate,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Life {
    Stop,
    Start,
    Restart,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Api {
    Refuse,
    Hang,
    Return,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RequestAsk {
    request: String,
    #[serde(default)]
    device: String,
    #[serde(default)]
    cpus: u32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ContainerJson {
    name: String,
    #[serde(default)]
    claims: Vec<String>,
    #[serde(default)]
    env: Vec<String>,
}

/// A command.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
enum Command {
    /// Starts the stand-ins. `kubernetes`: minor version of the API server.
    Up {
        machine: MachineAsk,
        #[serde(default)]
        config: Value,
        #[serde(default)]
        flags: Vec<String>,
        #[serde(default)]
        old_kubelet: bool,
        #[serde(default)]
        old_runtime: bool,
        #[serde(default)]
        kubernetes: Option<u8>,
    },
    /// Keys of the configuration file from the daemon's next start on, in place of all others.
    Config {
        config: Value,
    },
    Daemon {
        r#do: Daemon,
    },
    Kubelet {
        r#do: Life,
    },
    Runtime {
        r#do: Life,
    },
    Api {
        r#do: Api,
    },
    /// Lets the scheduler allocate a claim.
    Allocate {
        claim: String,
        requests: Vec<RequestAsk>,
    },
    /// Writes an allocated claim of one request as told; `config` as in the API.
    Claim {
        claim: String,
        device: String,
        cpus: String,
        #[serde(default)]
        config: Vec<Value>,
    },
    Prepare {
        claim: String,
    },
    Unprepare {
        claim: String,
    },
    Pod {
        pod: String,
        #[serde(default)]
        claims: Vec<String>,
        containers: Vec<ContainerJson>,
    },
    RestartContainer {
        pod: String,
        container: String,
    },
    /// What an in-place resize or a kubelet restart does.
    Resize {
        pod: String,
        container: String,
        cpus: String,
    },
    Terminate {
        pod: String,
    },
    Slices,
    State,
    /// Asserts that the books hold exactly these claims with these CPUs.
    Ledger {
        claims: BTreeMap<String, String>,
    },
    /// The daemon's lines so far.
    Log,
    Quit,
}

/// The node and the names given to its claims and pods.
#[derive(Default)]
struct Stage {
    node: Option<Node>,
    claims: BTreeMap<String, ClaimRef>,
    pods: BTreeMap<String, Pod>,
}

impl Stage {
    fn node(&self) -> Result<&Node> {
        self.node.as_ref().context("no node yet; begin with {\"op\":\"up\", …}")
    }

    fn claim(&self, name: &str) -> Result<&ClaimRef> {
        self.claims.get(name).with_context(|| format!("no claim `{name}`"))
    }

    fn pod(&self, name: &str) -> Result<&Pod> {
        self.pods.get(name).with_context(|| format!("no pod `{name}`"))
    }

    async fn play(&mut self, command: Command) -> Result<Value> {
        match command {
            Command::Up { machine, config, flags, old_kubelet, old_runtime, kubernetes } => {
                if self.node.is_some() {
                    bail!("the node is up already");
                }
                let machine = match machine {
                    MachineAsk::Cpus { cpus } => Machine { cpus, ..Machine::default() },
                    MachineAsk::Shape { sockets, numa_per_socket, l3_per_numa, cores_per_l3, threads } => {
                        Machine::of(Shape { sockets, numa_per_socket, l3_per_numa, cores_per_l3, threads })
                    }
                };
                let mut wanted = NodeConfig::new(machine);
                wanted.flags = flags;
                wanted.gates = Gates::defaults_of(kubernetes.unwrap_or(36));
                if !config.is_null() {
                    wanted.config = config;
                }
                if old_kubelet {
                    wanted.kubelet = KubeletVersion::V133;
                }
                if old_runtime {
                    wanted.runtime = RuntimeVersion::Containerd21;
                }
                let node = Node::without_daemon(wanted).await?;
                let answer = json!({
                    "node": NODE, "directory": node.path(""), "apiServer": node.api.url(),
                    "daemonArgs": node.daemon_args()?.args,
                });
                self.node = Some(node);
                Ok(answer)
            }
            Command::Config { config } => {
                self.node.as_mut().context("no node yet")?.config.config = config;
                Ok(json!({}))
            }
            Command::Daemon { r#do } => {
                let node = self.node()?;
                match r#do {
                    Daemon::Start => node.start_daemon().await?,
                    Daemon::Kill => node.kill_daemon().await?,
                    Daemon::Terminate => {
                        let status = node.terminate_daemon().await?;
                        return Ok(json!({"status": status.to_string()}));
                    }
                }
                Ok(json!({}))
            }
            Command::Kubelet { r#do } => {
                let kubelet = &self.node()?.kubelet;
                match r#do {
                    Life::Stop => kubelet.stop().await,
                    Life::Start => kubelet.begin(),
                    Life::Restart => kubelet.restart().await,
                }
                Ok(json!({}))
            }
            Command::Runtime { r#do } => {
                let runtime = &self.node()?.runtime;
                match r#do {
                    Life::Stop => runtime.stop().await,
                    Life::Start => runtime.begin()?,
                    Life::Restart => runtime.restart().await?,
                }
                Ok(json!({}))
            }
            Command::Api { r#do } => {
                let presence = match r#do {
                    Api::Refuse => Presence::Refusing,
                    Api::Hang => Presence::Hanging,
                    Api::Return => Presence::Here,
                };
                self.node()?.api.set_presence(presence).await?;
                Ok(json!({}))
            }
            Command::Allocate { claim, requests } => {
                let asks = requests.iter().map(|ask| Ask::of(&ask.request, &ask.device, ask.cpus));
                let claimed = self.node()?.allocate(&claim, &asks.collect::<Vec<_>>()).await?;
                Ok(self.keep_claim(claim, claimed))
            }
            Command::Claim { claim, device, cpus, config } => {
                let written = self.node()?.write_claim(&claim, &device, &cpus, &config);
                Ok(self.keep_claim(claim, written))
            }
            Command::Prepare { claim } => {
                let claim = self.claim(&claim)?;
                let devices = self.node()?.prepare(claim).await?;
                let devices: Vec<_> = devices
                    .iter()
                    .map(|device| {
                        json!({"requests": device.request_names, "pool": device.pool_name,
                                         "device": device.device_name, "cdi": device.cdi_device_ids})
                    })
                    .collect();
                let cpus = self.node()?.recorded()?.get(&claim.uid).map(list);
                Ok(json!({"devices": devices, "cpus": cpus}))
            }
            Command::Unprepare { claim } => {
                self.node()?.unprepare(self.claim(&claim)?).await?;
                Ok(json!({}))
            }
            Command::Pod { pod, claims, containers } => {
                let claims = claims.iter().map(|name| self.claim(name)).collect::<Result<Vec<_>>>()?;
                let asks: Vec<_> = containers
                    .into_iter()
                    .map(|ask| ContainerAsk { name: ask.name, claims: ask.claims, env: ask.env, quota: None })
                    .collect();
                let running = self.node()?.run_pod(&pod, &claims, &asks).await?;
                let answer = self.containers_of(&running)?;
                self.pods.insert(pod, running);
                Ok(json!({"containers": answer}))
            }
            Command::RestartContainer { pod, container } => {
                let mut running = self.pod(&pod)?.clone();
                self.node()?.restart_container(&mut running, &container).await?;
                let answer = self.containers_of(&running)?;
                self.pods.insert(pod, running);
                Ok(json!({"containers": answer}))
            }
            Command::Resize { pod, container, cpus } => {
                let running = self.pod(&pod)?;
                let id = running.containers.get(&container).cloned().context("no such container")?;
                let id = id.map_err(|why| anyhow::anyhow!("the container does not run: {why}"))?;
                let change = CpuChange { cpus, ..CpuChange::default() };
                self.node()?.runtime.update_container(&id, change).await?;
                Ok(json!({"containers": self.containers_of(running)?}))
            }
            Command::Terminate { pod } => {
                let running = self.pod(&pod)?;
                self.node()?.terminate_pod(running).await?;
                self.pods.remove(&pod);
                Ok(json!({}))
            }
            Command::Slices => {
                let node = self.node()?;
                node.devices().await?;
                Ok(json!({"items": node.api.list(Resource::ResourceSlices)}))
            }
            Command::State => self.state(),
            Command::Ledger { claims } => {
                let parsed: Vec<(&ClaimRef, Cpus)> = claims
                    .iter()
                    .map(|(name, cpus)| Ok((self.claim(name)?, parse(cpus)?)))
                    .collect::<Result<_>>()?;
                let wanted: Vec<_> = parsed.iter().map(|(claim, cpus)| (*claim, cpus)).collect();
                let shared = self.node()?.ledger_is(&wanted).await?;
                Ok(json!({"shared": list(&shared)}))
            }
            Command::Log => Ok(json!({"lines": self.node()?.daemon_lines().await})),
            Command::Quit => Ok(json!({})),
        }
    }

    fn keep_claim(&mut self, name: String, claim: ClaimRef) -> Value {
        let answer = json!({"uid": claim.uid});
        self.claims.insert(name, claim);
        answer
    }

    /// By container name: its id, state and CPUs, or why there is none.
    fn containers_of(&self, pod: &Pod) -> Result<Value> {
        let runtime = &self.node()?.runtime;
        let all = runtime.containers();
        let mut shown = Map::new();
        for (name, outcome) in &pod.containers {
            let value = match outcome {
                Err(why) => json!({"error": why}),
                Ok(id) => match all.get(id) {
                    None => json!({"id": id, "state": "removed"}),
                    Some(container) => json!({
                        "id": id,
                        "state": match container.state {
                            ContainerState::Created => "created",
                            ContainerState::Running => "running",
                            ContainerState::Exited => "exited",
                        },
                        "cpus": list(&runtime.effective_cpus(id)),
                        "env": container.env,
                    }),
                },
            };
            shown.insert(name.clone(), value);
        }
        Ok(Value::Object(shown))
    }

    fn state(&self) -> Result<Value> {
        let node = self.node()?;
        let recorded = node.recorded()?;
        let names: BTreeMap<_, _> = self.claims.iter().map(|(name, claim)| (&claim.uid, name)).collect();
        let claims: Map<_, _> = recorded
            .iter()
            .map(|(uid, cpus)| {
                (names.get(uid).map_or_else(|| uid.clone(), |name| (*name).clone()), list(cpus).into())
            })
            .collect();
        let pods: Map<_, _> = self
            .pods
            .iter()
            .map(|(name, pod)| Ok((name.clone(), self.containers_of(pod)?)))
            .collect::<Result<_>>()?;
        let registered =
            node.kubelet.plugins().borrow().drivers.get(DRIVER).is_some_and(|driver| driver.connected);
        Ok(json!({
            "online": list(&node.config.machine.online()), "claims": claims, "pods": pods,
            "registered": registered, "plugins": node.runtime.plugins().into_keys().collect::<Vec<_>>(),
            "oddities": node.runtime.oddities(), "refusals": node.runtime.refusals(),
        }))
    }
}

const HELP: &str = r#"The embedded node: stand-ins for kubelet, container runtime, scheduler and API server around a real dracpu
daemon, driven by JSON lines. A command in on standard input, an answer out on standard output.

Usage: embedded-node        the commands come on standard input
       embedded-node --help

Every answer has `ok`; a refusal has `error`. `up` comes first and once. With end of input, or `quit`, the node
and the daemon end.

Commands:
  {"op":"up","machine":M,"config":{},"flags":[],"old_kubelet":false,"old_runtime":false,"kubernetes":36}
      starts the stand-ins; M is {"sockets":1,"numaPerSocket":1,"l3PerNuma":1,"coresPerL3":4,"threads":2} or {"cpus":[...]}
  {"op":"config","config":{}}                 the daemon's configuration from its next start on
  {"op":"daemon","do":"start|kill|terminate"}
  {"op":"kubelet","do":"stop|start|restart"}
  {"op":"runtime","do":"stop|start|restart"}
  {"op":"api","do":"refuse|hang|return"}
  {"op":"allocate","claim":C,"requests":[{"request":"r","device":"","cpus":4}]}     by the scheduler
  {"op":"claim","claim":C,"device":D,"cpus":"4","config":[]}                        as told
  {"op":"prepare","claim":C}
  {"op":"unprepare","claim":C}
  {"op":"pod","pod":P,"claims":[C],"containers":[{"name":"app","claims":[C],"env":[]}]}
  {"op":"restart-container","pod":P,"container":"app"}
  {"op":"resize","pod":P,"container":"app","cpus":"0-3"}
  {"op":"terminate","pod":P}
  {"op":"slices"}                             what the daemon has published, as soon as it is all there
  {"op":"state"}                              claims, pods and their CPUs
  {"op":"ledger","claims":{C:"0-3"}}          asserts that the books hold exactly these
  {"op":"log"}                                the daemon's lines so far
  {"op":"quit"}

Example:
  {"op":"up","machine":{"sockets":2,"numaPerSocket":1,"l3PerNuma":2,"coresPerL3":4,"threads":2},"config":{"reservedCPUs":"0"}}
  {"op":"daemon","do":"start"}
  {"op":"allocate","claim":"A","requests":[{"request":"cpus","device":"","cpus":4}]}
  {"op":"pod","pod":"web","claims":["A"],"containers":[{"name":"app","claims":["A"]}]}
  {"op":"state"}
"#;

/// Bad usage, as `dracpu` itself has it.
const USAGE: u8 = 64;

/// What the arguments alone come to; none when the commands are to be read.
fn answered(args: impl IntoIterator<Item = String>) -> Option<ExitCode> {
    let mut args = args.into_iter();
    match (args.next().as_deref(), args.next()) {
        (None, _) => None,
        (Some("--help" | "-h" | "help"), None) => {
            // Nobody is left to tell when that fails.
            let _unwritable = std::io::stdout().write_all(HELP.as_bytes());
            Some(ExitCode::SUCCESS)
        }
        (Some(other), _) => {
            let line = format!(
                "embedded-node: unexpected argument `{other}`; the commands come on standard input, see --help\n"
            );
            let _unwritable = std::io::stderr().write_all(line.as_bytes());
            Some(ExitCode::from(USAGE))
        }
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned());
    if let Some(code) = answered(args) {
        return Ok(code);
    }
    let mut stage = Stage::default();
    let (input, mut lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if input.blocking_send(line).is_err() {
                return;
            }
        }
    });
    let mut out = std::io::stdout();
    while let Some(line) = lines.recv().await {
        if line.trim().is_empty() {
            continue;
        }
        let command = serde_json::from_str::<Command>(&line);
        let quit = matches!(command, Ok(Command::Quit));
        let outcome = match command {
            Ok(command) => stage.play(command).await,
            Err(error) => Err(error.into()),
        };
        let answer = match outcome {
            Ok(mut answer) => {
                answer["ok"] = true.into();
                answer
            }
            Err(error) => json!({"ok": false, "error": format!("{error:#}")}),
        };
        writeln!(out, "{answer}")?;
        out.flush()?;
        if quit {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_every_command_and_other_arguments_are_refused() {
        // Every command answers to its name; the one that does not exist names them all.
        let all = serde_json::from_str::<Command>(r#"{"op":"?"}"#).unwrap_err().to_string();
        let names: Vec<&str> = all.split('`').skip(3).step_by(2).collect();
        assert!(names.len() > 15 && names.contains(&"restart-container"), "{all}");
        for name in names {
            assert!(HELP.contains(&format!("{{\"op\":\"{name}\"")), "{name}");
        }
        let answered = |args: &[&str]| {
            answered(args.iter().map(|arg| (*arg).to_owned())).map(|code| format!("{code:?}"))
        };
        assert_eq!(answered(&[]), None);
        assert_eq!(answered(&["--help"]), Some(format!("{:?}", ExitCode::SUCCESS)));
        for args in [&["--port=1"][..], &["--help", "x"], &["up"]] {
            assert_eq!(answered(args), Some(format!("{:?}", ExitCode::from(USAGE))), "{args:?}");
        }
    }
}
