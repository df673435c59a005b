//! What the driver reads from the API server: one object at a time, by name, when it is needed. It writes nothing but
//! the status of claims.

use super::{claim_status, convert, kubeconfig};
use crate::config::Config;
use crate::driver::{Api as DriverApi, ApiError, Claim, ClaimStatus};
use crate::words::{chain, sentence};
use futures::future::{BoxFuture, try_join_all};
use http_body_util::Limited;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{ListParams, Patch, PatchParams};
use kube::client::ClientBuilder;
use kube::config::KubeConfigOptions;
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use tower::util::MapResponseLayer;

/// For a question with all its requests. The kubelet gives a prepare call 45 s in all.
const DEADLINE: Duration = Duration::from_secs(8);
const CONNECT: Duration = Duration::from_secs(5);
/// Bytes of an answer, or of all events of a watch. The slices of a node with 8192 devices are a third of it.
const ANSWER: usize = 16 << 20;

/// Why there is no client for the API server. Says nothing of the server: nobody has asked it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KubeError {
    /// The file, or what it refers to.
    #[error("kubeconfig {} cannot be used: {why}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// Not in a pod.
    #[error(
        "no service account of a pod is here ({0}); run in a pod, or name a kubeconfig file with --kubeconfig"
    )]
    NotInCluster(String),
    /// Certificates or credentials.
    #[error("the client for the API server cannot be made: {0}")]
    Client(String),
}

/// A client for the API server, and where that is.
#[derive(Clone)]
pub struct Access {
    /// Has connected to nothing yet.
    pub client: Client,
    /// For messages.
    pub server: String,
}

/// A client for the API server of the configuration. It neither limits its own
/// rate nor retries by itself: who asks knows what a failure means.
///
/// # Errors
/// [`KubeError`] when the configuration of access is missing or wrong.
pub async fn access(config: &Config) -> Result<Access, KubeError> {
    let mut access = match &config.kubeconfig {
        Some(path) => {
            let refused = |why| KubeError::Kubeconfig { path: path.clone(), why };
            let file = kubeconfig::read(path).map_err(refused)?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|error| refused(chain(&error)))?
        }
        None => kube::Config::incluster().map_err(|error| KubeError::NotInCluster(chain(&error)))?,
    };
    access.connect_timeout = Some(CONNECT);
    access.default_retry = false;
    let server = access.cluster_url.to_string();
    let client = ClientBuilder::try_from(access).map_err(|error| KubeError::Client(chain(&error)))?;
    let bounded =
        MapResponseLayer::new(|answer: http::Response<_>| answer.map(|body| Limited::new(body, ANSWER)));
    Ok(Access { client: client.with_layer(&bounded).build(), server })
}

/// The API server behind the driver's questions.
#[derive(Clone)]
pub struct KubeApi {
    access: Access,
    deadline: Duration,
}

impl KubeApi {
    /// Asks through the client of `access`.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self { access, deadline: DEADLINE }
    }

    async fn get_claim(&self, namespace: &str, name: &str) -> Result<Claim, ApiError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.access.client.clone(), namespace);
        let object = claims.get(name).await.map_err(|error| self.reason(error))?;
        convert::claim(object).map_err(ApiError::Other)
    }

    async fn get_claims_of_pod(&self, namespace: &str, pod: &str, uid: &str) -> Result<Vec<Claim>, ApiError> {
        let kind = ApiResource::erase::<Pod>(&());
        let pods: Api<DynamicObject> = Api::namespaced_with(self.access.client.clone(), namespace, &kind);
        let pod = pods.get(pod).await.map_err(|error| self.reason(error))?;
        if pod.metadata.uid.as_deref() != Some(uid) {
            return Err(ApiError::NotFound);
        }
        let pod: PodView =
            serde_json::from_value(pod.data).map_err(|error| ApiError::Other(chain(&error)))?;
        // The claims of a pod that has ended are unprepared; none of its containers runs.
        if matches!(pod.status.phase.as_str(), "Succeeded" | "Failed") {
            return Ok(Vec::new());
        }
        let claims = claim_names(pod).into_iter().map(|name| async move {
            match self.get_claim(namespace, &name).await {
                Ok(claim) => Ok(Some(claim)),
                Err(ApiError::NotFound) => Ok(None),
                Err(error) => Err(error),
            }
        });
        Ok(try_join_all(claims).await?.into_iter().flatten().collect())
    }

    async fn get_pcie_roots(
        &self,
        node: &str,
        driver: &str,
        pool: &str,
        device: &str,
    ) -> Result<BTreeSet<String>, ApiError> {
        let slices: Api<ResourceSlice> = Api::all(self.access.client.clone());
        let of_driver = ListParams::default().fields(&format!("spec.driver={driver},spec.nodeName={node}"));
        let slices = slices.list(&of_driver).await.map_err(|error| self.reason(error))?;
        Ok(slices.items.into_iter().flat_map(|slice| convert::pcie_roots(slice, pool, device)).collect())
    }

    /// Whoever has written the entries of this driver's devices before: they are this driver's to write.
    async fn apply_status(&self, status: &ClaimStatus) -> Result<(), ApiError> {
        let claims: Api<ResourceClaim> = Api::namespaced(self.access.client.clone(), &status.claim.namespace);
        let how = PatchParams::apply(claim_status::FIELD_MANAGER).force();
        let object = claim_status::applied(status);
        let written = claims.patch_status(&status.claim.name, &how, &Patch::Apply(object)).await;
        written.map(|_claim| ()).map_err(|error| self.reason(error))
    }

    async fn bounded<T>(&self, question: impl Future<Output = Result<T, ApiError>>) -> Result<T, ApiError> {
        tokio::time::timeout(self.deadline, question).await.unwrap_or_else(|_elapsed| {
            let within = self.deadline.as_secs_f64();
            Err(ApiError::Unreachable(format!("no answer from {} within {within} s", self.access.server)))
        })
    }

    fn reason(&self, error: kube::Error) -> ApiError {
        let server = &self.access.server;
        match error {
            kube::Error::Api(status) => match status.code {
                404 => ApiError::NotFound,
                429 | 500.. => ApiError::Unreachable(format!(
                    "{server} answers {} {}",
                    status.code,
                    sentence(&status.message)
                )),
                401 | 403 => ApiError::Other(format!(
                    "{} {}; does the driver's service account have the roles of the chart?",
                    status.code,
                    sentence(&status.message)
                )),
                code => ApiError::Other(format!("{code} {}", sentence(&status.message))),
            },
            error @ kube::Error::SerdeError(_) => ApiError::Other(chain(&error)),
            error => ApiError::Unreachable(format!("{server}: {}", chain(&error))),
        }
    }
}

impl DriverApi for KubeApi {
    fn claim<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, Result<Claim, ApiError>> {
        Box::pin(self.bounded(self.get_claim(namespace, name)))
    }

    fn claims_of_pod<'a>(
        &'a self,
        namespace: &'a str,
        pod: &'a str,
        uid: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Claim>, ApiError>> {
        Box::pin(self.bounded(self.get_claims_of_pod(namespace, pod, uid)))
    }

    fn pcie_roots<'a>(
        &'a self,
        node: &'a str,
        driver: &'a str,
        pool: &'a str,
        device: &'a str,
    ) -> BoxFuture<'a, Result<BTreeSet<String>, ApiError>> {
        Box::pin(self.bounded(self.get_pcie_roots(node, driver, pool, device)))
    }

    fn write_status<'a>(&'a self, status: &'a ClaimStatus) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(self.bounded(self.apply_status(status)))
    }
}

/// Of a pod, what is looked at. The whole type's reader would be a fiftieth of the binary.
#[derive(Deserialize)]
struct PodView {
    #[serde(default)]
    spec: PodSpecView,
    #[serde(default)]
    status: PodStatusView,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodSpecView {
    resource_claims: Vec<ClaimName>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatusView {
    phase: String,
    resource_claim_statuses: Vec<ClaimName>,
    extended_resource_claim_status: Option<ClaimName>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimName {
    resource_claim_name: Option<String>,
}

/// The names of the claims that a pod uses: named by it, made for it from a template, or made for its
/// extended resources.
fn claim_names(pod: PodView) -> BTreeSet<String> {
    let PodStatusView { resource_claim_statuses, extended_resource_claim_status, .. } = pod.status;
    let all = pod.spec.resource_claims.into_iter().chain(resource_claim_statuses);
    all.chain(extended_resource_claim_status).filter_map(|claim| claim.resource_claim_name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigFlags;
    use axum::Router;
    use axum::extract::RawQuery;
    use axum::http::StatusCode;
    use axum::routing::get;
    use serde_json::{Value, json};
    use std::path::Path;

    fn config(kubeconfig: Option<&Path>) -> Config {
        let flags = ConfigFlags {
            kubeconfig: kubeconfig.map(Path::to_owned),
            hostname_override: Some("node".to_owned()),
            ..ConfigFlags::default()
        };
        flags.load().unwrap()
    }

    /// A plain-http API server at this address.
    async fn api(address: impl std::fmt::Display) -> KubeApi {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
        );
        std::fs::write(&path, text).unwrap();
        KubeApi::new(access(&config(Some(&path))).await.unwrap())
    }

    async fn serve(router: Router) -> KubeApi {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await });
        api(address).await
    }

    fn object(kind: &str, name: &str, rest: Value) -> axum::Json<Value> {
        let version = if kind == "Pod" { "v1" } else { "resource.k8s.io/v1" };
        let mut object = json!({
            "apiVersion": version, "kind": kind,
            "metadata": {"name": name, "namespace": "n", "uid": format!("uid-of-{name}")},
        });
        for (key, value) in rest.as_object().unwrap() {
            object[key] = value.clone();
        }
        axum::Json(object)
    }

    fn failure(code: u16, message: &str) -> (StatusCode, axum::Json<Value>) {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message, "code": code, "reason": "X",
        });
        (StatusCode::from_u16(code).unwrap(), axum::Json(status))
    }

    const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/n/resourceclaims";

    fn claims(names: &'static [&'static str]) -> Router {
        names.iter().fold(Router::new(), |router, name| {
            let answer = move || async { object("ResourceClaim", name, json!({"spec": {}})) };
            router.route(&format!("{CLAIMS}/{name}"), get(answer))
        })
    }

    #[tokio::test]
    async fn claim_is_read_by_name() {
        let api = serve(claims(&["a"])).await;
        let claim = api.claim("n", "a").await.unwrap();
        assert_eq!((claim.id.uid.as_str(), claim.id.name.as_str()), ("uid-of-a", "a"));
    }

    #[tokio::test]
    async fn refusals_are_told_apart() {
        let answer = |code| get(move || async move { failure(code, "words") });
        let router = [404, 403, 409, 429, 503]
            .into_iter()
            .fold(Router::new(), |router, code| router.route(&format!("{CLAIMS}/{code}"), answer(code)));
        let router = router.route(&format!("{CLAIMS}/strange"), get(|| async { "{}" }));
        let api = serve(router).await;
        assert_eq!(api.claim("n", "404").await.unwrap_err(), ApiError::NotFound);
        for (name, unreachable, part) in [
            ("403", false, "roles of the chart"),
            ("409", false, "409 words"),
            ("429", true, "429 words"),
            ("503", true, "503 words"),
            ("strange", false, ""),
        ] {
            let error = api.claim("n", name).await.unwrap_err();
            assert_eq!(matches!(error, ApiError::Unreachable(_)), unreachable, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[tokio::test]
    async fn server_that_does_not_answer_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let silent = KubeApi { deadline: Duration::from_millis(50), ..api(address).await };
        let error = silent.claim("n", "a").await.unwrap_err();
        assert_eq!(error, ApiError::Unreachable(format!("no answer from http://{address}/ within 0.05 s")));
        drop(listener);
        let error = api(address).await.claim("n", "a").await.unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ApiError::Unreachable(_)), "{text}");
        assert!(text.contains(&address.to_string()) && text.contains("refused"), "{text}");
    }

    #[tokio::test]
    async fn claims_of_a_pod_are_all_that_exist() {
        let pod = || async {
            let rest = json!({
                "spec": {"containers": [], "resourceClaims": [
                    {"name": "x", "resourceClaimName": "direct"},
                    {"name": "y", "resourceClaimTemplateName": "t"},
                    {"name": "z", "resourceClaimName": "gone"},
                ]},
                "status": {"resourceClaimStatuses": [{"name": "y", "resourceClaimName": "made"}, {"name": "none"}],
                    "extendedResourceClaimStatus": {"resourceClaimName": "extended", "requestMappings": []}},
            });
            object("Pod", "p", rest)
        };
        let ended = || async {
            let claims = json!([{"name": "x", "resourceClaimName": "direct"}]);
            let rest =
                json!({"spec": {"containers": [], "resourceClaims": claims}, "status": {"phase": "Failed"}});
            object("Pod", "ended", rest)
        };
        let router = claims(&["direct", "made", "extended"])
            .route("/api/v1/namespaces/n/pods/p", get(pod))
            .route("/api/v1/namespaces/n/pods/ended", get(ended));
        let api = serve(router).await;
        let found = api.claims_of_pod("n", "p", "uid-of-p").await.unwrap();
        let names: Vec<&str> = found.iter().map(|claim| claim.id.name.as_str()).collect();
        assert_eq!(names, ["direct", "extended", "made"]);
        assert_eq!(api.claims_of_pod("n", "ended", "uid-of-ended").await.unwrap(), []);
        assert_eq!(api.claims_of_pod("n", "p", "another").await.unwrap_err(), ApiError::NotFound);
        assert_eq!(api.claims_of_pod("n", "q", "u").await.unwrap_err(), ApiError::NotFound);
    }

    #[tokio::test]
    async fn roots_of_a_device_come_from_its_drivers_slices_of_this_node() {
        let slices = |query: RawQuery| async move {
            assert_eq!(query.0.as_deref(), Some("&fieldSelector=spec.driver%3Dgpu%2Cspec.nodeName%3Dnode"));
            let slice = |pool: &str, devices: Value| {
                json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu", "devices": devices,
                    "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1}}})
            };
            let root = |value: Value| json!({"resource.kubernetes.io/pcieRoot": value});
            axum::Json(
                json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList", "metadata": {}, "items": [
                    slice("other", json!([{"name": "one", "attributes": root(json!({"string": "pci0000:99"}))}])),
                    slice("p", json!([
                        {"name": "one", "attributes": root(json!({"string": "pci0000:00"}))},
                        {"name": "two", "attributes": root(json!({"strings": ["pci0000:00", "pci0000:40"]}))},
                        {"name": "bare"},
                    ])),
                ]}),
            )
        };
        let api = serve(Router::new().route("/apis/resource.k8s.io/v1/resourceslices", get(slices))).await;
        for (device, roots) in [
            ("one", vec!["pci0000:00"]),
            ("two", vec!["pci0000:00", "pci0000:40"]),
            ("bare", vec![]),
            ("none", vec![]),
        ] {
            let found = api.pcie_roots("node", "gpu", "p", device).await.unwrap();
            assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), roots, "{device}");
        }
    }

    #[tokio::test]
    async fn bad_access_says_what_to_do() {
        let error = access(&config(Some(Path::new("/no/such/kubeconfig")))).await.err().unwrap();
        assert!(error.to_string().contains("/no/such/kubeconfig"), "{error}");
        let error = access(&config(None)).await.err().unwrap();
        assert!(error.to_string().contains("--kubeconfig"), "{error}");
    }
}
