use crate::driver::{Container, Created, Update, Updated};
use dracpu_cpuset::CpuSet;
use futures::future::BoxFuture;
use std::collections::BTreeSet;
use std::time::Duration;

/// What the driver does when the runtime calls.
///
/// The runtime calls one hook at a time, waits for it, and drops a plugin that takes longer than 2 s in all:
/// no implementation may wait for a strategy, a file, the network or the state of a container. Events come
/// only after [`synchronize`](Self::synchronize), which follows every new connection. Ids that the driver
/// does not know, and stops that come late or twice, are normal.
pub trait Hooks: Send + Sync {
    /// A runtime has connected, perhaps another one than before; `may_name_devices`: it is not known as one that never
    /// names the CDI devices of containers.
    fn connected(&self, may_name_devices: bool);

    /// A container is about to be created: its CPUs, and new ones for others. Must not name the container
    /// itself among the others.
    ///
    /// # Errors
    /// The container is not created; the text reaches the pod's events. The kubelet tries again.
    fn create_container(&self, container: &Container) -> anyhow::Result<Created>;

    /// Someone, mostly the kubelet, is about to change a container's resources; `wanted` is the mask asked
    /// for, if any. `container` shows the state before.
    fn update_container(&self, container: &Container, wanted: Option<&CpuSet>) -> Updated;

    /// A container's process runs. May come after its stop, when it was short.
    fn start_container(&self, container: &Container);

    /// A container was stopped or has exited. New masks for others.
    fn stop_container(&self, id: &str) -> Vec<Update>;

    /// A container was removed.
    fn remove_container(&self, id: &str);

    /// All containers that exist; what is not among them is gone. New masks for those that need one.
    fn synchronize(&self, containers: Vec<Container>) -> Vec<Update>;

    /// The final mask of a container being created, after all plugins; none = not set, or not understood.
    /// Only runtimes with NRI 0.12 ask.
    ///
    /// # Errors
    /// The container is not created; the text reaches the pod's events.
    fn validate_container(&self, container: &Container, cpus: Option<&CpuSet>) -> anyhow::Result<()>;

    /// Resolves when masks may be due that no hook brings soon. Asked only where the runtime bears updates
    /// outside of hooks; may be dropped while it waits.
    fn masks_due(&self) -> BoxFuture<'_, ()>;

    /// The masks that are due, counted as set.
    fn take_masks(&self) -> Vec<Update>;

    /// How setting them ended: which containers have failed.
    fn masks_set(&self, sent: &[Update], failed: &BTreeSet<String>);
}

/// A hook whose time is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// CreateContainer
    Create,
    /// StopContainer
    Stop,
    /// RemoveContainer
    Remove,
}

/// Told of every hook after it. Called in the hook's time, so it must be quick.
pub trait Observer: Send + Sync {
    /// How a hook ended; `exclusive`: the container has claimed CPUs.
    fn nri_hook(&self, hook: Hook, ok: bool, exclusive: bool, duration: Duration);

    /// How Synchronize ended.
    fn nri_synchronize(&self, ok: bool, duration: Duration);
}
