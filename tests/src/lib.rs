//! The embedded node: a kubelet, a container runtime and an API server that behave towards the driver as
//! the real ones do, on real sockets; and the harness that runs the real daemon among them.
//!
//! Integration tests (`tests/*.rs`) and the demo (`bin/embedded-node.rs`) use it. Each rule is taken from
//! the protocols' own sources, never from the driver: a mistake that both share would go unseen.

pub mod support;
