//! A scheduler as far as the documentation's claims need one: classes, selectors, constraints and capacity decide on devices; then
//! the driver prepares the claim, on paper (`dracpu simulate`).
//!
//! Sources: KEP-4381 (classes, selectors, `matchAttribute`), KEP-5075 (capacity, `distinctAttribute`), KEP-5491 (lists match when
//! they share an item).

use super::cel;
use super::pages::{self, REPOSITORY};
use anyhow::{Context as _, Result, bail, ensure};
use dracpu_tests::support::daemon::dracpu_bin;
use serde_json::{Map, Value, json};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use tempfile::TempPath;

/// Device classes by name.
pub(crate) struct Classes(BTreeMap<String, Value>);

impl Classes {
    /// That of the chart, those of the examples, and those of the drivers that examples take along.
    pub(crate) fn of_the_examples() -> Result<Self> {
        let mut classes = BTreeMap::new();
        let chart = std::fs::read_to_string(
            Path::new(REPOSITORY).join("charts/dra-driver-cpu/templates/deviceclass.yaml"),
        )?;
        let expression = chart.lines().find_map(|line| line.trim().strip_prefix("expression: "));
        let of = |expression: &str| json!({"selectors": [{"cel": {"expression": expression}}]});
        classes.insert("dra.cpu".to_owned(), of(expression.context("the chart's class has an expression")?));
        for driver in ["gpu.example.com", "nic.example.com"] {
            classes.insert(driver.to_owned(), of(&format!("device.driver == \"{driver}\"")));
        }
        for class in pages::examples("classes")?.into_values().flatten() {
            let name = class["metadata"]["name"].as_str().context("a name")?.to_owned();
            classes.insert(name, class["spec"].clone());
        }
        Ok(Self(classes))
    }

    fn get(&self, name: &str) -> Result<&Value> {
        self.0.get(name).with_context(|| format!("there is no device class {name}"))
    }
}

/// The devices of a node, as selectors see them, and beside it a GPU on each of two PCIe roots and a network card on one.
pub(crate) fn devices(machine: &str, config: &str) -> Result<Vec<Value>> {
    let (child, _config) =
        dracpu(&["slices", "--machine", machine, "-o", "json", "--expose-pcie-roots"], config)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let slices: Value = serde_json::from_slice(&output.stdout)?;
    let published = slices["items"].as_array().into_iter().flatten();
    let published =
        published.flat_map(|slice| slice["spec"]["devices"].as_array().cloned().unwrap_or_default());
    let mut devices: Vec<Value> = published.map(|device| seen(&device)).collect();
    for (driver, name, root) in [
        ("gpu.example.com", "gpu-0", "pci0000:00"),
        ("gpu.example.com", "gpu-1", "pci0000:80"),
        ("nic.example.com", "nic-0", "pci0000:80"),
    ] {
        let attributes = json!({"resource.kubernetes.io": {"pcieRoot": root}});
        devices.push(json!({"name": name, "driver": driver, "allowMultipleAllocations": false, "attributes": attributes, "capacity": {}}));
    }
    Ok(devices)
}

/// Attributes and capacities by domain and name, with plain values.
fn seen(device: &Value) -> Value {
    let by_domain = |fields: &Value, plain: &dyn Fn(&Value) -> Value| {
        let mut domains: Map<String, Value> = Map::new();
        for (name, value) in fields.as_object().into_iter().flatten() {
            let (domain, name) = name.rsplit_once('/').unwrap_or(("dra.cpu", name));
            let domain = domains.entry(domain.to_owned()).or_insert_with(|| json!({}));
            domain[name] = plain(value);
        }
        Value::Object(domains)
    };
    let attributes = by_domain(&device["attributes"], &|value| {
        value.as_object().and_then(|value| value.values().next()).cloned().unwrap_or_default()
    });
    let capacity = by_domain(&device["capacity"], &|value| {
        value["value"].as_str().and_then(|value| value.parse::<i64>().ok()).into()
    });
    json!({"name": device["name"], "driver": "dra.cpu", "attributes": attributes, "capacity": capacity,
           "allowMultipleAllocations": device["allowMultipleAllocations"] == true})
}

/// The devices that a claim's requests get, in their order.
pub(crate) fn place(spec: &Value, classes: &Classes, devices: &[Value]) -> Result<Vec<String>> {
    let requests = spec["devices"]["requests"].as_array().context("requests")?;
    let mut chosen = Vec::new();
    ensure!(search(spec, requests, classes, devices, &mut chosen)?, "no devices fit the claim");
    Ok(chosen
        .iter()
        .map(|(_, device)| devices[*device]["name"].as_str().unwrap_or_default().to_owned())
        .collect())
}

type Chosen<'a> = Vec<(&'a Value, usize)>;

fn search<'a>(
    spec: &Value,
    requests: &'a [Value],
    classes: &Classes,
    devices: &[Value],
    chosen: &mut Chosen<'a>,
) -> Result<bool> {
    let Some(request) = requests.get(chosen.len()) else { return Ok(true) };
    let exactly = &request["exactly"];
    let class = classes.get(exactly["deviceClassName"].as_str().context("a class")?)?;
    let selectors: Vec<&str> = [class, exactly]
        .iter()
        .flat_map(|of| of["selectors"].as_array().into_iter().flatten())
        .map(|selector| selector["cel"]["expression"].as_str().context("an expression"))
        .collect::<Result<_>>()?;
    for (n, device) in devices.iter().enumerate() {
        // The class decides first, so that a claim's selector is asked of devices of its driver only.
        let mut fits = has_room(request, n, devices, chosen);
        for selector in &selectors {
            fits = fits && cel::holds(selector, device)?;
        }
        if fits {
            chosen.push((request, n));
            if constraints_hold(spec, devices, chosen) && search(spec, requests, classes, devices, chosen)? {
                return Ok(true);
            }
            chosen.pop();
        }
    }
    Ok(false)
}

fn asked(request: &Value) -> Option<i64> {
    request["exactly"]["capacity"]["requests"]["dra.cpu/cpu"].as_str()?.parse().ok()
}

fn has_room(request: &Value, device: usize, devices: &[Value], chosen: &Chosen) -> bool {
    let taken = chosen.iter().filter(|(_, other)| *other == device);
    match (devices[device]["capacity"]["dra.cpu"]["cpu"].as_i64(), asked(request)) {
        (Some(capacity), Some(more)) => {
            taken.filter_map(|(other, _)| asked(other)).sum::<i64>() + more <= capacity
        }
        (None, None) => taken.count() == 0,
        // Without a number a claim would take all of a group; single devices have no capacity.
        _ => false,
    }
}

fn constraints_hold(spec: &Value, devices: &[Value], chosen: &Chosen) -> bool {
    spec["devices"]["constraints"].as_array().into_iter().flatten().all(|constraint| {
        let named = constraint["requests"].as_array();
        let of_it = |request: &Value| named.is_none_or(|named| named.contains(&request["name"]));
        let devices: Vec<&Value> =
            chosen.iter().filter(|(request, _)| of_it(request)).map(|(_, n)| &devices[*n]).collect();
        match (constraint["matchAttribute"].as_str(), constraint["distinctAttribute"].as_str()) {
            (Some(name), None) => shared(&devices, name),
            (None, Some(name)) => distinct(&devices, name),
            _ => false,
        }
    })
}

/// The values of an attribute: a list, or one; none when the device does not have it.
fn values_of(device: &Value, name: &str) -> Option<BTreeSet<String>> {
    let (domain, name) = name.split_once('/')?;
    let value = device["attributes"].get(domain)?.get(name)?;
    Some(
        value
            .as_array()
            .map_or_else(|| [value.to_string()].into(), |items| items.iter().map(Value::to_string).collect()),
    )
}

fn shared(devices: &[&Value], name: &str) -> bool {
    let values: Option<Vec<_>> = devices.iter().map(|device| values_of(device, name)).collect();
    values.is_some_and(|values| {
        values.into_iter().reduce(|a, b| &a & &b).is_none_or(|common| !common.is_empty())
    })
}

fn distinct(devices: &[&Value], name: &str) -> bool {
    let values: Option<Vec<_>> = devices.iter().map(|device| values_of(device, name)).collect();
    values.is_some_and(|values| {
        values.iter().enumerate().all(|(n, one)| values[..n].iter().all(|other| one.is_disjoint(other)))
    })
}

/// Prepares the claim on these devices: the driver's own `simulate`, with the configuration of class and claim.
pub(crate) fn prepare(
    spec: &Value,
    classes: &Classes,
    placed: &[String],
    machine: &str,
    config: &str,
) -> Result<()> {
    let mut requests = Vec::new();
    let mut entries = Vec::new();
    for (request, device) in spec["devices"]["requests"].as_array().into_iter().flatten().zip(placed) {
        let class = request["exactly"]["deviceClassName"].as_str().unwrap_or_default();
        let driver = if class.ends_with("dra.cpu") { "dra.cpu" } else { class };
        let mut asked_for = json!({"name": request["name"], "device": device, "driver": driver});
        if let Some(cpus) = asked(request) {
            asked_for["cpus"] = cpus.to_string().into();
        }
        requests.push(asked_for);
        for entry in classes.get(class)?["config"].as_array().into_iter().flatten() {
            let cpu_config = &entry["opaque"]["parameters"]["cpuConfig"];
            entries
                .push(json!({"source": "FromClass", "requests": [request["name"]], "cpuConfig": cpu_config}));
        }
    }
    for entry in spec["devices"]["config"].as_array().into_iter().flatten() {
        ensure!(
            entry["opaque"]["driver"] == "dra.cpu"
                && entry["opaque"]["parameters"]["apiVersion"] == "v1alpha1"
        );
        let cpu_config = &entry["opaque"]["parameters"]["cpuConfig"];
        entries.push(json!({"source": "FromClaim", "requests": entry["requests"], "cpuConfig": cpu_config}));
    }
    let mut nodes = NODES.lock().unwrap();
    let node = match nodes.entry((machine.to_owned(), config.to_owned())) {
        Entry::Occupied(node) => node.into_mut(),
        Entry::Vacant(place) => place.insert(Node::begin(machine, config)?),
    };
    let answer =
        node.tell(&json!({"op": "prepare", "claim": "c", "requests": requests, "config": entries}))?;
    ensure!(answer["ok"] == true, "{}", answer["error"].as_str().unwrap_or("no reason"));
    let end = node.tell(&json!({"op": "unprepare", "claim": "c"}))?;
    ensure!(end["ok"] == true, "{end}");
    Ok(())
}

/// The driver with a configuration, and the file of that, which it reads as it starts.
fn dracpu(arguments: &[&str], config: &str) -> Result<(Child, TempPath)> {
    let file = tempfile::NamedTempFile::new()?.into_temp_path();
    std::fs::write(&file, config)?;
    let mut command = Command::new(dracpu_bin()?);
    command.args(arguments).arg("--config").arg(&*file);
    Ok((command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?, file))
}

/// A node on paper that answers events as they come: to begin one takes longer than what it is asked.
struct Node {
    child: Child,
    answers: BufReader<ChildStdout>,
}

static NODES: Mutex<BTreeMap<(String, String), Node>> = Mutex::new(BTreeMap::new());

impl Node {
    fn begin(machine: &str, config: &str) -> Result<Self> {
        let (mut child, _config) = dracpu(&["simulate", "--machine", machine, "-o", "json", "-"], config)?;
        let answers = BufReader::new(child.stdout.take().context("its answers")?);
        let mut node = Self { child, answers };
        node.tell(&json!({"op": "state"}))?;
        Ok(node)
    }

    fn tell(&mut self, event: &Value) -> Result<Value> {
        writeln!(self.child.stdin.as_mut().context("its input")?, "{event}")?;
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            let mut words = String::new();
            self.child.stderr.as_mut().context("its words")?.read_to_string(&mut words)?;
            bail!("the node has ended: {words}");
        }
        Ok(serde_json::from_str(&line)?)
    }
}
