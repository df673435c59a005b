//! Whether the kubelet manages CPUs itself. With its static policy it writes the masks of containers as this driver does,
//! from books of its own: two managers give the same CPUs away twice.
//!
//! The kubelet is asked after each registration: one that starts registers its plugins anew, and knows its policy by
//! then. Source: kubelet, `pkg/kubelet/cm/cpumanager` (the policy `none` has no allocatable CPUs),
//! `initializeRuntimeDependentModules` (the CPU manager is started before plugins are registered).

use crate::config::Config;
use crate::readiness::{Part, Readiness};
use crate::words::chain;
use dracpu_cpuset::CpuSet;
use dracpu_proto::pod_resources::AllocatableResourcesRequest;
use dracpu_proto::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::Status;

/// For the connection and the answer.
const ANSWER: Duration = Duration::from_secs(5);
/// The largest answer: it names every device of the node. The kubelet's own limit.
const ANSWER_BYTES: usize = 16 << 20;
/// Pauses between questions while there is no answer.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// What the kubelet's CPU manager does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CpuManager {
    /// Nothing: the policy is `none`.
    Idle,
    /// It gives CPUs to containers: these, where that is known.
    Manages(Option<CpuSet>),
}

impl CpuManager {
    /// What to do when it is on.
    #[must_use]
    pub fn remedy(kubelet_root_dir: &Path) -> String {
        let state = kubelet_root_dir.join("cpu_manager_state");
        format!(
            "set cpuManagerPolicy: none in the kubelet's configuration, delete {} and restart the kubelet",
            state.display()
        )
    }

    /// Why this driver cannot work beside it, and what to do; none when it can.
    #[must_use]
    pub fn problem(&self, kubelet_root_dir: &Path) -> Option<String> {
        let Self::Manages(cpus) = self else { return None };
        let cpus = cpus.as_ref().map(|cpus| format!(", CPUs {cpus}")).unwrap_or_default();
        Some(format!(
            "the kubelet's own CPU manager is on (policy static{cpus}) and gives the same CPUs away: {}",
            Self::remedy(kubelet_root_dir)
        ))
    }
}

/// Why the kubelet has not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PodResourcesError {
    /// Nobody serves the socket, or it is not mounted here.
    #[error("the socket cannot be reached")]
    Unreachable(#[source] std::io::Error),
    /// What is served is something else.
    #[error("no gRPC is spoken there")]
    Protocol(#[source] hyper::Error),
    /// The kubelet refuses.
    #[error("the kubelet refuses")]
    Refused(#[source] Box<Status>),
    /// Somebody listens, and says nothing.
    #[error("no answer within {} s", ANSWER.as_secs())]
    Silent,
}

/// Asks the kubelet what its CPU manager does.
///
/// # Errors
/// [`PodResourcesError`]
pub async fn cpu_manager(socket: &Path) -> Result<CpuManager, PodResourcesError> {
    tokio::time::timeout(ANSWER, ask(socket)).await.unwrap_or(Err(PodResourcesError::Silent))
}

async fn ask(socket: &Path) -> Result<CpuManager, PodResourcesError> {
    let stream = UnixStream::connect(socket).await.map_err(PodResourcesError::Unreachable)?;
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = handshake.map_err(PodResourcesError::Protocol)?;
    // Ends with its last sender, or with the kubelet; the answer says whether it went well.
    tokio::spawn(connection);
    let send = tower::service_fn(move |request| sender.clone().send_request(request));
    let origin = http::Uri::from_static("http://localhost");
    let mut kubelet =
        PodResourcesListerClient::with_origin(send, origin).max_decoding_message_size(ANSWER_BYTES);
    let answer = kubelet.get_allocatable_resources(AllocatableResourcesRequest {}).await;
    let answer = answer.map_err(|status| PodResourcesError::Refused(Box::new(status)))?;
    let ids = answer.into_inner().cpu_ids;
    if ids.is_empty() {
        return Ok(CpuManager::Idle);
    }
    let mut cpus = CpuSet::new();
    for cpu in ids.into_iter().filter_map(|id| u32::try_from(id).ok()) {
        cpus.insert(cpu);
    }
    Ok(CpuManager::Manages(Some(cpus)))
}

/// Asks after each of the kubelet's registrations until it answers, and states readiness. Before the first answer, and while
/// there is none, readiness stays as it is.
pub async fn watch_cpu_manager(
    config: Config,
    mut registrations: watch::Receiver<u64>,
    readiness: Arc<Readiness>,
) {
    let socket = config.pod_resources_socket();
    let mut known = CpuManager::Idle;
    while registrations.changed().await.is_ok() {
        let answer = answered(&socket, &mut registrations).await;
        match answer.problem(&config.kubelet_root_dir) {
            Some(problem) => {
                if known != answer {
                    tracing::error!("{problem}");
                }
                readiness.not_ready(Part::CpuManager, problem);
            }
            None => {
                if known != answer {
                    tracing::info!("the kubelet's own CPU manager is off");
                }
                readiness.ready(Part::CpuManager);
            }
        }
        known = answer;
    }
}

/// Asks until there is an answer, at once again when another kubelet has registered the driver.
async fn answered(socket: &Path, registrations: &mut watch::Receiver<u64>) -> CpuManager {
    let mut pause = RETRY.0;
    let mut said = false;
    loop {
        match cpu_manager(socket).await {
            Ok(answer) => return answer,
            Err(error) if !said => {
                said = true;
                tracing::info!(
                    socket = %socket.display(),
                    "not known yet whether the kubelet's own CPU manager is off: {}", chain(&error)
                );
            }
            Err(_) => {}
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
            Ok(()) = registrations.changed() => pause = RETRY.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_proto::pod_resources::AllocatableResourcesResponse;
    use dracpu_proto::pod_resources::pod_resources_lister_server::{
        PodResourcesLister, PodResourcesListerServer,
    };
    use tokio::net::UnixListener;
    use tokio_stream::wrappers::UnixListenerStream;
    use tonic::{Request, Response};

    /// A kubelet whose CPU manager has these CPUs; none: it refuses.
    struct Kubelet(Option<Vec<i64>>);

    #[tonic::async_trait]
    impl PodResourcesLister for Kubelet {
        async fn get_allocatable_resources(
            &self,
            _: Request<AllocatableResourcesRequest>,
        ) -> Result<Response<AllocatableResourcesResponse>, Status> {
            let cpu_ids = self.0.clone().ok_or_else(|| Status::unavailable("too many questions"))?;
            Ok(Response::new(AllocatableResourcesResponse { cpu_ids }))
        }
    }

    async fn asked(kubelet: Kubelet) -> Result<CpuManager, PodResourcesError> {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("kubelet.sock");
        let listener = UnixListenerStream::new(UnixListener::bind(&socket).unwrap());
        let server = tonic::transport::Server::builder().add_service(PodResourcesListerServer::new(kubelet));
        let server = tokio::spawn(server.serve_with_incoming(listener));
        let answer = cpu_manager(&socket).await;
        server.abort();
        answer
    }

    #[tokio::test]
    async fn a_kubelet_that_has_cpus_to_give_manages_them() {
        assert_eq!(asked(Kubelet(Some(Vec::new()))).await.unwrap(), CpuManager::Idle);
        let manages = asked(Kubelet(Some(vec![1, 2, 3, 9]))).await.unwrap();
        assert_eq!(manages, CpuManager::Manages(Some([1, 2, 3, 9].into())));
        // Ids that no machine has do not make it idle.
        assert_ne!(asked(Kubelet(Some(vec![-1, i64::MAX]))).await.unwrap(), CpuManager::Idle);
        // As large as the machine.
        let all: Vec<i64> = (0..8192).collect();
        assert!(
            matches!(asked(Kubelet(Some(all))).await.unwrap(), CpuManager::Manages(Some(cpus)) if cpus.len() == 8192)
        );
    }

    #[tokio::test]
    async fn no_answer_says_why() {
        let error = asked(Kubelet(None)).await.unwrap_err();
        assert!(chain(&error).contains("too many questions"), "{}", chain(&error));
        let error = cpu_manager(Path::new("/no/such/kubelet.sock")).await.unwrap_err();
        assert!(matches!(error, PodResourcesError::Unreachable(_)), "{error:?}");
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::spawn(async move { drop(listener.accept().await) });
        assert!(cpu_manager(&socket).await.is_err());
    }

    #[test]
    fn the_problem_says_what_to_do() {
        let root = Path::new("/var/lib/kubelet");
        assert_eq!(CpuManager::Idle.problem(root), None);
        let problem = CpuManager::Manages(Some([1, 2].into())).problem(root).unwrap();
        for part in ["CPUs 1-2", "cpuManagerPolicy: none", "delete /var/lib/kubelet/cpu_manager_state"] {
            assert!(problem.contains(part), "{part} in {problem}");
        }
    }
}
