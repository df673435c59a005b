//! `dracpu topology`: the machine, drawn for a terminal or as SVG, or as JSON.

use super::Failure;
use crate::config::Config;
use crate::config::flags::ConfigFlags;
use crate::driver::ClaimState;
use crate::live::{LiveError, NodeReport};
use crate::words::plain;
use dracpu_topology::machine::Machine;
use dracpu_topology::{Drawing, Mark, examples, to_json};
use serde_json::json;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Draw a machine: sockets, NUMA nodes, caches, cores and threads
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dracpu topology\n  dracpu topology --list\n  \
                        dracpu topology --machine two-socket --reserved-cpus=0-1\n  \
                        dracpu topology --machine node.yaml -o json\n  \
                        dracpu topology --machine node.tar.gz -o svg > node.svg\n\n\
                        A CPU's sign says what it is for: # reserved, ~ isolated; and where the driver runs on this \
                        host, a letter for each claim, x for what a claim keeps idle. Threads of a core stand below \
                        each other; on large machines they stand side by side and each is only a sign.")]
pub(super) struct Args {
    /// The machine: a sysfs directory, a .tar.gz of one (`gatherinfo --bundle`), a file of `topology -o json` or
    /// `gatherinfo`, an example of --list, or random-N, drawn from the number N [default: this host]
    #[arg(long, value_name = "WHAT")]
    machine: Option<String>,

    /// List the example machines
    #[arg(long)]
    list: bool,

    /// Form of the answer; svg is one file for a browser or a printer, each CPU tells more when pointed at
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,

    #[command(flatten)]
    config: ConfigFlags,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Output {
    #[default]
    Text,
    Json,
    Svg,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.list {
        return super::print(&list(args.output)?);
    }
    let config = args.config.load()?;
    let machine = super::machine::load_reserved(args.machine.as_deref(), &config)?;
    let node = match (&args.machine, args.output) {
        (None, Output::Text | Output::Svg) => driver_of_this_host(&args.config, &config)?,
        _ => None,
    };
    super::print(&render(&machine, node.as_ref(), args.output, super::text::colour()))
}

/// What the driver of this host says, if one answers that looks at the same machine.
fn driver_of_this_host(flags: &ConfigFlags, config: &Config) -> Result<Option<NodeReport>, Failure> {
    let answer = super::live::client(flags.kubelet_root_dir.clone())?.node();
    let here = config.describe();
    let same = |node: &NodeReport| {
        ["--sysfs-root", "sysfsOverlay"].into_iter().all(|key| node.config.get(key) == here.get(key))
    };
    match answer {
        Ok(node) => Ok(Some(node).filter(same)),
        Err(LiveError::NoDaemon { .. }) => Ok(None),
        Err(error) => {
            tracing::warn!("claims are not drawn: {error}");
            Ok(None)
        }
    }
}

fn render(machine: &Machine, node: Option<&NodeReport>, output: Output, colour: bool) -> String {
    let reserved = &machine.reserved;
    let drawing = || {
        let drawing = Drawing::new(&machine.topology).mark(reserved, Mark::Reserved);
        node.map_or(drawing.clone(), |node| claimed(drawing, node))
    };
    match output {
        Output::Text => drawing().colour(colour).to_string(),
        Output::Json => format!("{:#}\n", to_json(&machine.topology, reserved)),
        Output::Svg => drawing().svg(),
    }
}

/// The drawing with the driver's reserved CPUs, what claims keep idle, and a letter for each claim.
fn claimed<'a>(drawing: Drawing<'a>, node: &NodeReport) -> Drawing<'a> {
    let mut drawing = drawing.mark(&node.cpus.reserved, Mark::Reserved);
    let mut letters = letters();
    let mut letter = 'A';
    for claim in &node.claims {
        // Past the last letter, claims share it.
        letter = letters.next().unwrap_or(letter);
        let name = match claim.name.as_str() {
            "" => claim.uid.clone(),
            name => format!("{}/{name}", claim.namespace),
        };
        let name = match claim.state {
            ClaimState::Bound => plain(&name),
            state => format!("{} {state}", plain(&name)),
        };
        let name = match claim.offline.is_empty() {
            true => name,
            false => format!("{name} (offline {})", claim.offline),
        };
        drawing = drawing
            .mark(&claim.blocked, Mark::Blocked)
            .mark(&claim.cpus, Mark::Claim(letter))
            .name(letter, name);
    }
    drawing
}

/// Letters that stand for claims, one column each, none of them a sign of something else.
fn letters() -> impl Iterator<Item = char> {
    let small = ('a'..='z').filter(|letter| *letter != 'x');
    let more = ('\u{c0}'..='\u{17f}').filter(|letter| letter.is_alphabetic());
    ('A'..='Z').chain(small).chain(more)
}

fn list(output: Output) -> Result<String, Failure> {
    let widest = examples().iter().map(|example| example.name.len()).max().unwrap_or(0);
    match output {
        Output::Text => Ok(examples().iter().fold(String::new(), |mut text, example| {
            // Writing to a String does not fail.
            let _infallible = writeln!(text, "{:widest$}  {}", example.name, example.description());
            text
        })),
        Output::Json => {
            let machines = examples()
                .iter()
                .map(|example| json!({"name": example.name, "description": example.description()}));
            let answer = json!({"schema": "dracpu.machines/v1", "machines": machines.collect::<Vec<_>>()});
            Ok(format!("{answer:#}\n"))
        }
        Output::Svg => {
            Err(Failure::Usage(anyhow::anyhow!("--list is no picture: name an example with --machine")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::fixtures;
    use dracpu_cpuset::CpuSet;
    use dracpu_topology::machine;

    #[test]
    fn reserved_cpus_show_in_picture_and_json() {
        let machine = machine::load("two-socket").unwrap();
        let machine = Machine { reserved: CpuSet::from([0, 32]), ..machine };
        let text = render(&machine, None, Output::Text, false);
        assert!(text.contains(" 0#") && text.contains("32#"), "{text}");
        assert!(!text.contains('\x1b'), "no colours unless asked for");
        assert!(render(&machine, None, Output::Text, true).contains('\x1b'));
        let json: serde_json::Value =
            serde_json::from_str(&render(&machine, None, Output::Json, true)).unwrap();
        assert_eq!(json["schema"], "dracpu.topology/v1");
        assert_eq!(json["reserved"], "0,32");
        assert_eq!(json["threadsPerCore"], 2);
        let svg = render(&machine, None, Output::Svg, true);
        assert!(svg.starts_with("<svg ") && svg.contains(">32#</text>") && !svg.contains('\x1b'), "{svg}");
    }

    #[test]
    fn claims_of_the_running_driver_have_letters_and_colours_and_leave_json_as_it_is() {
        let machine = machine::load("two-socket").unwrap();
        let node = fixtures::node(vec![
            fixtures::claim("u-1", "web", ClaimState::Bound, "8,40", ""),
            crate::live::ClaimReport {
                offline: CpuSet::from([64]),
                ..fixtures::claim("u-3", "cut", ClaimState::Bound, "9,64", "")
            },
            fixtures::claim("u-2", "batch", ClaimState::Orphan, "1", "33"),
        ]);
        let text = render(&machine, Some(&node), Output::Text, false);
        for sign in [
            " 8A",
            "40A",
            " 1C",
            "33x",
            "A default/web ",
            "C default/batch orphan ",
            "x kept idle",
            "B default/cut (offline 64) ",
        ] {
            assert!(text.contains(sign), "{sign} in {text}");
        }
        assert!(!text.contains('\x1b'));
        let painted = render(&machine, Some(&node), Output::Text, true);
        let of = |letter: char| {
            painted.lines().find_map(|line| Some(line.split_once(&format!("{letter}\x1b"))?.0))
        };
        assert!(of('A').is_some() && of('B').is_some(), "{painted}");
        let svg = render(&machine, Some(&node), Output::Svg, false);
        assert!(svg.contains(">8A</text>") && svg.contains("default/web</title>"), "{svg}");
        let json = |node| render(&machine, node, Output::Json, false);
        assert_eq!(json(Some(&node)), json(None));
    }

    #[test]
    fn there_are_letters_for_more_claims_than_a_person_looks_at_and_none_means_something_else() {
        let all: Vec<char> = letters().collect();
        let distinct: std::collections::BTreeSet<char> = all.iter().copied().collect();
        assert!(all.len() > 200 && distinct.len() == all.len());
        assert!(['x', '·', '#', '~', '▪'].iter().all(|sign| !distinct.contains(sign)));
        let claims = (0..300).map(|n| fixtures::claim(&n.to_string(), "c", ClaimState::Bound, "1", ""));
        let node = fixtures::node(claims.collect());
        assert!(
            render(&machine::load("two-socket").unwrap(), Some(&node), Output::Text, false).contains(" 1")
        );
    }

    #[test]
    fn every_example_is_listed_and_loads() {
        let text = list(Output::Text).unwrap();
        for example in examples() {
            assert!(text.contains(example.name) && text.contains(example.description()));
            assert!(machine::load(example.name).is_ok(), "{}", example.name);
        }
        let json: serde_json::Value = serde_json::from_str(&list(Output::Json).unwrap()).unwrap();
        assert!(matches!(list(Output::Svg), Err(Failure::Usage(_))));
        assert_eq!(json["machines"].as_array().map(Vec::len), Some(examples().len()));
    }
}
