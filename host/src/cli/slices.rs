//! `dracpu slices`: the ResourceSlices that a node would publish, exactly.

use super::{Failure, machine, print};
use crate::config::flags::ConfigFlags;
use crate::driver::{self, LoadedOnce, Strategies};
use crate::logging;
use crate::slices::{Pool, generate_name};
use crate::strategy::Catalogue;
use dracpu_topology::machine::Machine;
use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::process::ExitCode;
use std::sync::Arc;

/// Print the ResourceSlices that the node would publish
///
/// Reads the machine, opens the strategy and builds the slices as the daemon does; talks to no cluster. The
/// API server adds names and the owner.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dracpu slices --config=config.yaml\n  \
    dracpu slices --machine=node.tar.gz --group-by=socket -o json")]
pub(super) struct Args {
    /// Machine to answer for: a sysfs directory or .tar.gz of one, a file written by `topology -o json` or
    /// `gatherinfo`, or an example of `topology --list` [default: this host]
    #[arg(long, value_name = "WHAT")]
    machine: Option<String>,
    #[command(flatten)]
    config: ConfigFlags,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Output {
    #[default]
    Yaml,
    Json,
}

/// Prints a v1 List of the slices to standard output; warnings go to the log.
///
/// # Errors
/// When the configuration or the machine is bad, or the strategy does not open for them.
pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let mut config = args.config.load()?;
    let Machine { topology, reserved, .. } = machine::load(args.machine.as_deref(), &config)?;
    config.settle_reserved(&topology, &reserved);
    let catalogue =
        Catalogue::new(&config.selection.strategies).map_err(|error| Failure::Failed(error.into()))?;
    let strategies: Arc<dyn Strategies> = Arc::new(LoadedOnce::new(catalogue));
    let published = driver::published(&strategies, &config, &topology);
    let published = published.map_err(|why| Failure::Usage(anyhow::Error::msg(why)))?;
    logging::warn_all(topology.warnings.iter().chain(&published.warnings));
    let pool = Pool::from(&config);
    let specs = pool.desired(&published.devices).into_iter().enumerate();
    let slices = specs.map(|(place, spec)| slice(place, spec, &pool.node_name)).collect();
    print(&text(slices, args.output).map_err(Failure::Failed)?)
}

fn slice(place: usize, spec: ResourceSliceSpec, node: &str) -> ResourceSlice {
    let metadata = ObjectMeta { generate_name: Some(generate_name(place, node)), ..Default::default() };
    ResourceSlice { metadata, spec }
}

fn text(slices: Vec<ResourceSlice>, output: Output) -> anyhow::Result<String> {
    let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": slices});
    Ok(match output {
        Output::Yaml => serde_saphyr::to_string(&list)?,
        Output::Json => format!("{}\n", serde_json::to_string_pretty(&list)?),
    })
}
