//! The API server as the place where events go.

use super::{Failure, Server};
use crate::words::{chain, sentence};
use futures::future::BoxFuture;
use http::{Method, Request, header};
use kube::Client;
use serde_json::Value;
use std::future::Future;
use std::time::Duration;

/// For one write.
const DEADLINE: Duration = Duration::from_secs(8);

/// The API server's events.
#[derive(Clone)]
pub struct KubeEvents {
    client: Client,
}

impl KubeEvents {
    /// Writes through this client.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// What the server answers beside a refusal is of no interest, so no typed client reads it.
    async fn send(&self, method: Method, path: String, kind: &str, body: &Value) -> Result<(), kube::Error> {
        let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, kind);
        let request = request.body(body.to_string().into_bytes()).map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await.map(|_event| ())
    }
}

fn path(namespace: &str) -> String {
    format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")
}

impl Server for KubeEvents {
    fn create<'a>(&'a self, namespace: &'a str, event: &'a Value) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(bounded(async move {
            match self.send(Method::POST, path(namespace), "application/json", event).await {
                // By a first try of which the answer was lost.
                Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                answer => answer,
            }
        }))
    }

    fn patch<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
        fields: &'a Value,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        let path = format!("{}/{name}", path(namespace));
        Box::pin(bounded(self.send(Method::PATCH, path, "application/merge-patch+json", fields)))
    }
}

async fn bounded(write: impl Future<Output = Result<(), kube::Error>>) -> Result<(), Failure> {
    let within = DEADLINE.as_secs();
    match tokio::time::timeout(DEADLINE, write).await {
        Ok(written) => written.map_err(failure),
        Err(_elapsed) => Err(Failure::Away(format!("no answer from the API server within {within} s"))),
    }
}

fn failure(error: kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) => {
            let words = format!("{} {}", status.code, sentence(&status.message));
            match status.code {
                404 => Failure::Gone,
                401 | 429 | 500.. => Failure::Away(words),
                403 => Failure::Refused(format!(
                    "{words}; does the driver's service account have the roles of the chart?"
                )),
                _ => Failure::Refused(words),
            }
        }
        // A name that cannot be part of an address.
        error @ kube::Error::HttpError(_) => Failure::Refused(chain(&error)),
        error => Failure::Away(chain(&error)),
    }
}
