use crate::DRIVER_NAME;
use crate::words::{chain, sentence};

/// Why the slices could not be brought to where they should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum PublishError {
    /// Try again: what was written against is not what is there.
    #[error("slice {name} changed meanwhile")]
    Stale { name: String },
    /// Useless to send again as it is.
    #[error("the API server refuses slice {name}: {message}{}", remedy(message))]
    Invalid { name: String, message: String },
    /// The node's name is not one that the API server knows.
    #[error(
        "the API server knows no node `{name}`; set hostnameOverride, or NODE_NAME in the pod's environment, \
         to the name that `kubectl get nodes` shows"
    )]
    NodeUnknown { name: String },
    /// The cluster is too old, or its configuration turns the API off.
    #[error("the API server does not serve resource.k8s.io/v1; it does from Kubernetes 1.34 on")]
    NotServed,
    /// A role, or the admission policy.
    #[error(
        "not allowed to {verb}: {message}; give the driver's service account the role of the chart, and start \
         the driver with the node's own name"
    )]
    Forbidden { verb: &'static str, message: String },
    /// The server is away, overloaded or broken.
    #[error("the API server did not {verb}: {message}")]
    Unavailable { verb: &'static str, message: String },
}

fn remedy(message: &str) -> &'static str {
    // Without the gate the server first drops the list and then misses the value.
    if message.contains("pcieRoot") {
        "; --expose-pcie-roots needs the feature gate DRAListTypeAttributes of the API server: turn the gate on, or \
         the option off"
    } else {
        ""
    }
}

impl PublishError {
    /// For what has no meaning of its own in the call: permission and availability.
    pub(super) fn of(verb: &'static str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.is_forbidden() => {
                Self::Forbidden { verb, message: sentence(&status.message).into_owned() }
            }
            kube::Error::Api(status) => Self::Unavailable {
                verb,
                message: format!("{} ({})", sentence(&status.message), status.code),
            },
            error => Self::Unavailable { verb, message: chain(error) },
        }
    }

    /// For the answer to a write of a slice.
    pub(super) fn of_write(verb: &'static str, name: &str, error: &kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => match status.code {
                404 | 409 | 410 => Self::Stale { name: name.to_owned() },
                400 | 413 | 422 => {
                    Self::Invalid { name: name.to_owned(), message: sentence(&status.message).into_owned() }
                }
                _ => Self::of(verb, error),
            },
            _ => Self::of(verb, error),
        }
    }
}

/// What an API server leaves out of a device when a feature gate is off, with what follows from it.
pub(super) fn consequence(field: &str) -> String {
    let (gate, effect) = match field {
        "allowMultipleAllocations" | "requestPolicy" => (
            "DRAConsumableCapacity",
            "a claim then takes a whole device, and claims of single CPUs of it fail",
        ),
        "nodeAllocatableResources" => (
            "DRANodeAllocatableResources",
            "the CPUs of claims then do not count against the node's allocatable CPUs",
        ),
        _ => ("for it", "devices are then published without it"),
    };
    format!(
        "the API server leaves {field} out of the slices of {DRIVER_NAME}: {effect}; turn on the feature gate {gate} \
         of API server and scheduler"
    )
}
