//! Who may do what: authorization, and the admission policy that holds a driver to its own node.

use super::http::Call;
use super::status::Refusal;
use super::store::Resource;
use super::{State, Verb};
use serde_json::Value;

impl State {
    pub(super) fn authorize(&self, call: &Call) -> Result<(), Refusal> {
        let Some(allowed) = &self.allowed else { return Ok(()) };
        let wanted = |&&(verb, resource, sub): &&(Verb, Resource, &str)| {
            (verb, resource) == (call.verb, call.resource) && sub == call.subresource
        };
        if allowed.iter().any(|rule| wanted(&rule)) {
            return Ok(());
        }
        let (group, plural, _) = call.resource.names();
        let verb = format!("{:?}", call.verb).to_lowercase();
        let message = format!(
            "{plural}.{group} \"{}\" is forbidden: User \"system:serviceaccount:kube-system:dracpu\" cannot {verb} resource \"{plural}\" in API group \"{group}\"",
            call.name
        );
        Err(call.resource.subject(&call.name).refusal(403, "Forbidden", &message))
    }

    /// From 1.36 on a driver needs leave of its own to write about its devices, and has it for its node only.
    pub(super) fn authorize_devices(&self, call: &Call, sent: &Value) -> Result<(), Refusal> {
        let Some(allowed) = self.allowed.as_ref().filter(|_| self.gates.minor >= 36) else { return Ok(()) };
        let devices = sent["status"]["devices"].as_array().cloned().unwrap_or_default();
        let foreign = |device: &Value| self.confined_to.as_ref().is_some_and(|own| device["pool"] != **own);
        let leave = allowed.contains(&(call.verb, Resource::ResourceClaims, "driver"));
        if leave && !devices.iter().any(foreign) {
            return Ok(());
        }
        let verb = format!("{:?}", call.verb).to_lowercase();
        let message = format!(
            "resourceclaims.resource.k8s.io \"{}\" is forbidden: changing status.devices requires resource=\"resourceclaims/driver\", verb=[\"associated-node:{verb}\" \"arbitrary-node:{verb}\"] permission",
            call.name
        );
        Err(call.resource.subject(&call.name).refusal(403, "Forbidden", &message))
    }

    pub(super) fn confine(&self, call: &Call, node: &Value) -> Result<(), Refusal> {
        match &self.confined_to {
            Some(own) if node != own => {
                let message = format!(
                    "resourceslices.resource.k8s.io \"{}\" is forbidden: ValidatingAdmissionPolicy 'dra-cpu-own-node' denied request: this user's node is {own}, the slice's node is {node}",
                    call.name
                );
                Err(call.resource.subject(&call.name).refusal(403, "Forbidden", &message))
            }
            _ => Ok(()),
        }
    }
}
