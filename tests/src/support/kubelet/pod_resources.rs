//! What the kubelet tells of the CPUs that it manages itself: none with the CPU manager's policy `none`, all but the reserved
//! ones with `static`.
//!
//! Source: `pkg/kubelet/apis/podresources` and `pkg/kubelet/cm/cpumanager`; the socket is made anew by each kubelet, before it
//! registers plugins, and a killed one leaves it behind.

use super::super::cpus::Cpus;
use anyhow::{Context, Result};
use dracpu_proto::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use dracpu_proto::pod_resources::{AllocatableResourcesRequest, AllocatableResourcesResponse};
use std::path::Path;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

struct Managed(Cpus);

#[tonic::async_trait]
impl PodResourcesLister for Managed {
    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        let cpu_ids = self.0.iter().map(|cpu| i64::from(*cpu)).collect();
        Ok(Response::new(AllocatableResourcesResponse { cpu_ids }))
    }
}

/// Serves the socket in the kubelet's directory until `stop`.
pub(super) fn serve(root: &Path, managed: Cpus, stop: CancellationToken) -> Result<JoinHandle<()>> {
    let directory = root.join("pod-resources");
    std::fs::create_dir_all(&directory)?;
    let socket = directory.join("kubelet.sock");
    match std::fs::remove_file(&socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(&socket).with_context(|| socket.display().to_string())?;
    Ok(tokio::spawn(async move {
        let server =
            tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(Managed(managed)));
        let serving = server.serve_with_incoming(UnixListenerStream::new(listener));
        // A killed process takes no leave.
        stop.run_until_cancelled(serving).await;
    }))
}
