//! What the node says to kubelet and container runtime: messages and services, generated from the `.proto`
//! files of this crate, where every field is documented.
//!
//! Clients and servers are there with the feature `services`; messages always.
//!
//! Knows no meaning: the edges of the daemon translate. Strings are checked on decoding, so a message with
//! invalid UTF-8 in any string is an error as a whole.

macro_rules! generated {
    ($($(#[$doc:meta])* $module:ident = $package:literal;)*) => {$(
        $(#[$doc])*
        pub mod $module {
            #![allow(
                clippy::all,
                clippy::allow_attributes_without_reason,
                clippy::indexing_slicing,
                clippy::unwrap_used,
                reason = "generated code"
            )]
            include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
        }
    )*};
}

generated! {
    /// `k8s.io.kubelet.pkg.apis.dra.v1`: prepare and unprepare, kubelet 1.34 and newer.
    dra_v1 = "k8s.io.kubelet.pkg.apis.dra.v1";
    /// `k8s.io.kubelet.pkg.apis.dra.v1beta1`: prepare and unprepare, kubelet 1.32 and newer.
    dra_v1beta1 = "k8s.io.kubelet.pkg.apis.dra.v1beta1";
    /// `v1`: health of devices, kubelet 1.37 and newer.
    health_v1 = "v1";
    /// `v1alpha1`: health of devices, kubelet 1.34 and newer.
    health_v1alpha1 = "v1alpha1";
    /// `nri.pkg.api.v1alpha1`: the Node Resource Interface.
    nri = "nri.pkg.api.v1alpha1";
    /// `v1`: what the kubelet tells of the resources that it manages.
    pod_resources = "pod_resources/v1";
    /// `pluginregistration`: how a plugin registers with the kubelet.
    registration = "pluginregistration";
    /// The envelopes of ttrpc.
    ttrpc = "ttrpc";
}

/// Full name of the ttrpc service that an NRI plugin serves.
pub const NRI_PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// Full name of the ttrpc service that the runtime serves to NRI plugins.
pub const NRI_RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";

#[cfg(test)]
#[cfg(feature = "services")]
mod tests;
