//! The kubelet's side: registration, and the plugin service that prepares and unprepares claims, in both
//! versions of the API; and what the driver reads of claim and pod objects from the API server.
//!
//! Translates and calls the driver; decides nothing, stores nothing. What the node reports of its devices
//! (health, metadata) belongs here too.
//!
//! Reading order: `lock` and `sockets` (one driver on the node, and where it is reached), `registration`,
//! `service` (the calls), `convert` (objects and answers), `api` (the API server).

mod api;
mod convert;
mod lock;
mod registration;
mod service;
mod sockets;

pub use api::{KubeApi, KubeError, client};
pub use lock::{LockError, NodeLock};
pub use registration::Registrar;
pub use service::{Claims, Plugin, Refusal};
pub use sockets::{Endpoint, SocketError, claim_node};

#[cfg(test)]
mod tests;
