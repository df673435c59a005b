//! `dracpu topology`: the machine, drawn for a terminal or as SVG, or as JSON.

use super::Failure;
use crate::config::flags::ConfigFlags;
use dracpu_cpuset::CpuSet;
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
                        A CPU's sign says what it is for: # reserved, ~ isolated. Threads of a core stand below \
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
    super::print(&render(&machine, &machine.reserved, args.output, super::text::colour()))
}

fn render(machine: &Machine, reserved: &CpuSet, output: Output, colour: bool) -> String {
    let drawing = || Drawing::new(&machine.topology).mark(reserved, Mark::Reserved);
    match output {
        Output::Text => drawing().colour(colour).to_string(),
        Output::Json => format!("{:#}\n", to_json(&machine.topology, reserved)),
        Output::Svg => drawing().svg(),
    }
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
    use dracpu_topology::machine;

    #[test]
    fn reserved_cpus_show_in_picture_and_json() {
        let machine = machine::load("two-socket").unwrap();
        let reserved = CpuSet::from([0, 32]);
        let text = render(&machine, &reserved, Output::Text, false);
        assert!(text.contains(" 0#") && text.contains("32#"), "{text}");
        assert!(!text.contains('\x1b'), "no colours unless asked for");
        assert!(render(&machine, &reserved, Output::Text, true).contains('\x1b'));
        let json: serde_json::Value =
            serde_json::from_str(&render(&machine, &reserved, Output::Json, true)).unwrap();
        assert_eq!(json["schema"], "dracpu.topology/v1");
        assert_eq!(json["reserved"], "0,32");
        assert_eq!(json["threadsPerCore"], 2);
        let svg = render(&machine, &reserved, Output::Svg, true);
        assert!(svg.starts_with("<svg ") && svg.contains(">32#</text>") && !svg.contains('\x1b'), "{svg}");
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
