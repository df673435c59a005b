//! `make demo`: the driver's whole story on an embedded node, told step by step and checked at each.
//!
//! Three processes, as in life: this one tells the story; the embedded node (kubelet, container runtime and
//! API server stand-ins) runs beside it; and the node starts, kills and restarts the real daemon. What is
//! shown is read from the node: from the API server, from the claim specs on disk, from the masks that the
//! runtime has in place. Ends with 1 when a step is not as it should be.

mod node;
mod show;

use anyhow::{Context, Result};
use dracpu_cpuset::CpuSet;
use dracpu_tests::support::guests::HIGHEST_FIRST;
use dracpu_topology::{Topology, machine, to_json};
use node::{EmbeddedNode, claims_in, cpus_in};
use serde_json::{Value, json};
use show::Show;
use std::process::ExitCode;

/// The machine: two sockets with interleaved numbering, two threads a core, four last-level caches each.
const MACHINE: &str = "two-socket";
/// The first core of each socket is kept for the system.
const RESERVED: &str = "0-1,32-33";

/// A claim of the story: its letter in the drawing, its name, its CPUs, and where they come from.
struct Wish {
    letter: char,
    name: &'static str,
    cpus: u32,
    device: &'static str,
}

const WISHES: [Wish; 3] = [
    Wish { letter: 'A', name: "trader", cpus: 4, device: "cpudevnuma000" },
    Wish { letter: 'B', name: "database", cpus: 8, device: "cpudevnuma000" },
    Wish { letter: 'C', name: "solver", cpus: 12, device: "cpudevnuma001" },
];
const LATE_WISH: Wish = Wish { letter: 'D', name: "scanner", cpus: 4, device: "cpudevnuma001" };

fn main() -> Result<ExitCode> {
    let mut story = Story::begin()?;
    let outcome = story.tell();
    if outcome.is_err() {
        story.show_daemon_log();
    }
    outcome?;
    Ok(story.show.close())
}

struct Story {
    show: Show,
    node: EmbeddedNode,
    topology: Topology,
    reserved: CpuSet,
    /// All CPUs but the reserved ones.
    usable: CpuSet,
}

impl Story {
    fn begin() -> Result<Self> {
        let topology = machine::load(MACHINE)?.topology;
        let reserved: CpuSet = RESERVED.parse()?;
        let usable = topology.online().difference(&reserved);
        Ok(Self { show: Show::new(), node: EmbeddedNode::start()?, topology, reserved, usable })
    }

    fn tell(&mut self) -> Result<()> {
        self.start_the_node()?;
        self.run_plain_pods()?;
        self.run_pods_with_claims()?;
        self.refuse_what_does_not_fit()?;
        self.refuse_a_forged_variable()?;
        self.kill_and_restart()?;
        self.swap_the_strategy()?;
        self.give_back()
    }

    fn start_the_node(&mut self) -> Result<()> {
        self.show.step("A node, and the daemon on it");
        let facts = to_json(&self.topology, &self.reserved);
        let row = |cpu: &Value| {
            json!({"cpu": cpu["cpu"], "coreId": cpu["coreId"], "socket": cpu["socket"], "numa": cpu["numa"],
                "llcId": cpu["llcId"]})
        };
        let rows: Vec<Value> = facts["cpus"].as_array().into_iter().flatten().map(row).collect();
        let machine = json!({"cpus": rows});
        let up = self.node.ask(
            &json!({"op": "up", "machine": machine, "config": {"reservedCPUs": RESERVED}, "kubernetes": 37}),
        )?;
        self.show
            .says(&format!("kubelet, container runtime and API server listen under {}", up["directory"]));
        self.show.draw(&self.topology, &self.reserved, &CpuSet::new(), &[]);
        self.node.ask(&json!({"op": "daemon", "do": "start"}))?;
        let state = self.node.ask(&json!({"op": "state"}))?;
        self.show.check("the kubelet has registered the driver dra.cpu", state["registered"] == true);
        let plugins = state["plugins"].to_string();
        self.show.check("the runtime has it as an NRI plugin", plugins.contains("dra.cpu"));

        let slices = self.node.ask(&json!({"op": "slices"}))?;
        let devices: Vec<&Value> = slices["items"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|slice| slice["spec"]["devices"].as_array().into_iter().flatten())
            .collect();
        self.show.says("It published this ResourceSlice pool:");
        for device in &devices {
            let attribute = |name: &str| device["attributes"][name]["int"].to_string();
            self.show.says(&format!(
                "  {}  dra.cpu/cpu {}  numaNode {}  socketID {}",
                device["name"].as_str().unwrap_or("?"),
                device["capacity"]["dra.cpu/cpu"]["value"].as_str().unwrap_or("?"),
                attribute("resource.kubernetes.io/numaNode"),
                attribute("dra.cpu/socketID"),
            ));
        }
        let capacities: Vec<&str> =
            devices.iter().filter_map(|device| device["capacity"]["dra.cpu/cpu"]["value"].as_str()).collect();
        self.show
            .check("two devices, a NUMA node each, 30 CPUs to give out in each", capacities == ["30", "30"]);
        Ok(())
    }

    fn run_plain_pods(&mut self) -> Result<()> {
        self.show.step("Pods without claims share everything that is not reserved");
        for pod in ["web", "batch"] {
            let created = self.node.run_pod(pod, &[], &[])?;
            let mask = cpus_in(&created["containers"]["main"]["cpus"])?;
            self.show.says(&format!("{pod:<9} runs on {mask}"));
            self.show.check(&format!("{pod} may use every CPU but the reserved ones"), mask == self.usable);
        }
        Ok(())
    }

    fn run_pods_with_claims(&mut self) -> Result<()> {
        self.show.step("Pods with claims get CPUs of their own, close together");
        for wish in &WISHES {
            self.claim_and_run(wish)?;
        }
        let state = self.node.ask(&json!({"op": "state"}))?;
        self.draw(&state)?;
        let shared = self.shared_pool(&state)?;
        for pod in ["web", "batch"] {
            let mask = cpus_in(&state["pods"][pod]["main"]["cpus"])?;
            self.show
                .check(&format!("{pod} was moved to the {} CPUs that are left", mask.len()), mask == shared);
        }
        Ok(())
    }

    /// Allocates a claim and runs a pod with it; checks what it got.
    fn claim_and_run(&mut self, wish: &Wish) -> Result<CpuSet> {
        let Wish { letter, name, cpus, device } = wish;
        let before = claims_in(&self.node.ask(&json!({"op": "state"}))?)?;
        let request = json!({"request": "cpus", "device": device, "cpus": cpus});
        self.node.ask(&json!({"op": "allocate", "claim": name, "requests": [request]}))?;
        let created = self.node.run_pod(name, &[name], &[])?;
        let mask = cpus_in(&created["containers"]["main"]["cpus"])?;
        self.show.says(&format!("{letter}  {name:<9} claimed {cpus:>2} CPUs of {device}: runs on {mask}"));
        let caches = self.topology.caches.iter().filter(|cache| !cache.cpus.is_disjoint(&mask)).count();
        let nodes = self.topology.numa_nodes.iter().filter(|node| !node.cpus.is_disjoint(&mask)).count();
        let whole = self.topology.cores.iter().all(|core| core.is_disjoint(&mask) || core.is_subset(&mask));
        self.show.check(
            &format!("{cpus} CPUs, whole cores, 1 NUMA node, {caches} last-level cache(s)"),
            mask.len() == *cpus as usize && whole && nodes == 1,
        );
        self.show.check("nobody else has any of them", before.values().all(|other| other.is_disjoint(&mask)));
        Ok(mask)
    }

    fn refuse_what_does_not_fit(&mut self) -> Result<()> {
        self.show.step("A claim that does not fit is refused, with the reason in the pod's events");
        let before = claims_in(&self.node.ask(&json!({"op": "state"}))?)?;
        self.node.ask(&json!({"op": "claim", "claim": "greedy", "device": "cpudevnuma000", "cpus": "24"}))?;
        let refused = self.node.refusal(&json!({"op": "prepare", "claim": "greedy"}))?;
        self.show.quote(&refused);
        self.show.check("the reason names what was asked", refused.contains("24"));
        let after = claims_in(&self.node.ask(&json!({"op": "state"}))?)?;
        self.show.check("nothing was booked", before == after);
        Ok(())
    }

    fn refuse_a_forged_variable(&mut self) -> Result<()> {
        self.show.step("A pod cannot help itself to CPUs by setting the variable");
        let state = self.node.ask(&json!({"op": "state"}))?;
        let database =
            state["pods"]["database"]["main"]["env"].as_array().context("the database's variables")?;
        let variable = database
            .iter()
            .filter_map(Value::as_str)
            .find(|entry| entry.starts_with("DRA_CPUSET_"))
            .context("the database has a DRA_CPUSET variable")?
            .to_owned();
        self.show.says(&format!("mallory sets {variable}, the database's own"));
        let created = self.node.run_pod("mallory", &[], &[&variable])?;
        let refused = created["containers"]["main"]["error"].as_str().unwrap_or_default().to_owned();
        self.show.quote(&refused);
        self.show.check("its container was not created", !refused.is_empty());
        let after = self.node.ask(&json!({"op": "state"}))?;
        self.show.check("the claims are as they were", claims_in(&state)? == claims_in(&after)?);
        self.node.ask(&json!({"op": "terminate", "pod": "mallory"}))?;
        Ok(())
    }

    fn kill_and_restart(&mut self) -> Result<()> {
        self.show.step("SIGKILL: the daemon dies, and comes back knowing everything");
        let before = self.node.ask(&json!({"op": "state"}))?;
        self.node.ask(&json!({"op": "daemon", "do": "kill"}))?;
        self.show.says("killed. Containers run on; a pod that starts meanwhile runs anywhere:");
        let late = self.node.run_pod("late", &[], &[])?;
        let mask = cpus_in(&late["containers"]["main"]["cpus"])?;
        self.show.says(&format!("late      runs on {mask}"));
        self.node.ask(&json!({"op": "daemon", "do": "start"}))?;
        let after = self.node.ask(&json!({"op": "state"}))?;
        self.show.check("every claim has the CPUs it had", claims_in(&before)? == claims_in(&after)?);
        let shared = self.shared_pool(&after)?;
        let mask = cpus_in(&after["pods"]["late"]["main"]["cpus"])?;
        self.show.check("late was moved to the shared pool as soon as the daemon was back", mask == shared);
        for wish in &WISHES {
            let again = self.node.ask(&json!({"op": "prepare", "claim": wish.name}))?;
            let had = &before["claims"][wish.name];
            self.show.check(
                &format!("asked again for {}, it gives the same answer", wish.name),
                !had.is_null() && again["cpus"] == *had,
            );
        }
        Ok(())
    }

    fn swap_the_strategy(&mut self) -> Result<()> {
        self.show.step("Another strategy: a component file and one word of configuration");
        let file = self.node.directory().join("highest-first.wasm");
        std::fs::write(&file, HIGHEST_FIRST)?;
        self.show.says(&format!("{} bytes of WebAssembly, from examples/highest-first", HIGHEST_FIRST.len()));
        let before = self.node.ask(&json!({"op": "state"}))?;
        self.node.ask(&json!({"op": "daemon", "do": "terminate"}))?;
        let config = json!({
            "reservedCPUs": RESERVED,
            "allocator": "highest-first",
            "strategies": [{"name": "highest-first", "path": file}],
        });
        self.node.ask(&json!({"op": "config", "config": config}))?;
        self.node.ask(&json!({"op": "daemon", "do": "start"}))?;
        let after = self.node.ask(&json!({"op": "state"}))?;
        self.show.check("the claims of before keep their CPUs", claims_in(&before)? == claims_in(&after)?);
        let free = self.shared_pool(&after)?;
        let mask = self.claim_and_run(&LATE_WISH)?;
        let node = self.topology.numa_nodes.get(1).context("a second NUMA node")?;
        let left = free.intersection(&node.cpus).difference(&mask);
        let cores: Vec<&CpuSet> = self.topology.cores.iter().filter(|core| core.is_subset(&mask)).collect();
        let above = |core: &CpuSet| cores.iter().all(|chosen| chosen.first() > core.first());
        let highest = self.topology.cores.iter().filter(|core| core.is_subset(&left)).all(above);
        self.show.check("they are the highest-numbered free cores of the node", highest && !cores.is_empty());
        let state = self.node.ask(&json!({"op": "state"}))?;
        self.draw(&state)
    }

    fn give_back(&mut self) -> Result<()> {
        self.show.step("Pods end, their CPUs go back");
        for pod in ["trader", "database", "solver", "scanner"] {
            self.node.ask(&json!({"op": "terminate", "pod": pod}))?;
        }
        self.node.ask(&json!({"op": "restart-container", "pod": "web", "container": "main"}))?;
        let state = self.node.ask(&json!({"op": "state"}))?;
        self.draw(&state)?;
        self.show.check("no claim is left", claims_in(&state)?.is_empty());
        for pod in ["web", "batch", "late"] {
            let mask = cpus_in(&state["pods"][pod]["main"]["cpus"])?;
            self.show
                .check(&format!("{pod} may use every CPU but the reserved ones again"), mask == self.usable);
        }
        self.node.ask(&json!({"op": "ledger", "claims": {}}))?;
        self.show.check("records, metrics and masks agree", true);
        let status = self.node.ask(&json!({"op": "daemon", "do": "terminate"}))?;
        let clean = status["status"].as_str().is_some_and(|status| status.contains("status: 0"));
        self.show.check("SIGTERM ends the daemon with exit code 0", clean);
        Ok(())
    }

    /// What is neither reserved nor claimed.
    fn shared_pool(&self, state: &Value) -> Result<CpuSet> {
        let mut shared = self.usable.clone();
        for claimed in claims_in(state)?.values() {
            shared.subtract(claimed);
        }
        Ok(shared)
    }

    fn draw(&mut self, state: &Value) -> Result<()> {
        let claims = claims_in(state)?;
        let known = WISHES.iter().chain([&LATE_WISH]);
        let marks: Vec<(char, &str, CpuSet)> =
            known.filter_map(|wish| Some((wish.letter, wish.name, claims.get(wish.name)?.clone()))).collect();
        let shared = self.shared_pool(state)?;
        self.show.draw(&self.topology, &self.reserved, &shared, &marks);
        Ok(())
    }

    fn show_daemon_log(&mut self) {
        let Ok(log) = self.node.ask(&json!({"op": "log"})) else { return };
        self.show.says("the daemon's last lines:");
        let lines: Vec<&str> =
            log["lines"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for line in lines.iter().rev().take(20).rev() {
            self.show.quote(line);
        }
    }
}
