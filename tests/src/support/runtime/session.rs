//! A plugin's connection: register, configure, synchronize, then live until it fails.

use super::adjust::HookResult;
use super::mux::Trunk;
use super::ttrpc::{Client, Incoming, Reply, RpcError, UNIMPLEMENTED, UNKNOWN, serve};
use super::{HookCall, RegisterOrder, Shared};
use dracpu_proto::nri;
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A plugin that is synchronized.
pub(super) struct Plugin {
    /// `<index>-<name>`
    pub(super) name: String,
    /// Event mask.
    pub(super) events: i32,
    pub(super) client: Arc<Client>,
    /// It does not know the methods of 0.12.
    pub(super) by_state_change: AtomicBool,
}

impl Plugin {
    pub(super) fn is_open(&self) -> bool {
        self.client.trunk.why_closed().is_none()
    }

    pub(super) fn wants(&self, event: nri::Event) -> bool {
        self.events & (1 << (i32::from(event) - 1)) != 0
    }

    pub(super) async fn close(&self, why: &str) {
        self.client.trunk.close(why);
        self.client.trunk.shut().await;
    }

    pub(super) fn abandon(&self) {
        self.client.trunk.close("the runtime is gone");
    }

    pub(super) fn speaks_by_state_change(&self) -> bool {
        self.by_state_change.load(Ordering::Relaxed)
    }

    pub(super) fn fall_back_to_state_change(&self) {
        self.by_state_change.store(true, Ordering::Relaxed);
    }
}

/// Takes plugins, one after another: one that stays silent keeps the others waiting.
pub(super) async fn accept_plugins(shared: Arc<Shared>, listener: UnixListener, stop: CancellationToken) {
    let accept = async {
        while let Ok((stream, _)) = listener.accept().await {
            if let Err(refusal) = take_plugin(&shared, stream).await {
                shared.state().refusals.push(refusal);
                shared.changed();
            }
        }
    };
    tokio::select! {
        () = accept => {}
        () = stop.cancelled() => {}
    }
}

async fn take_plugin(shared: &Arc<Shared>, stream: UnixStream) -> Result<(), String> {
    let (trunk, plugin_side, runtime_side) = Trunk::open(stream);
    let mut calls = serve(Arc::clone(&trunk), runtime_side);
    let limit = shared.config.registration_timeout;
    let client = Client::new(Arc::clone(&trunk), plugin_side);
    let outcome = introduce(shared, &client, &mut calls, limit).await;
    match outcome {
        Ok(()) => {
            tokio::spawn(serve_updates(Arc::clone(shared), Arc::clone(&trunk), calls));
            Ok(())
        }
        Err(Refused::Told(why)) => {
            Err(why) // the socket of a refused plugin is left open: it is the plugin's to close
        }
        Err(Refused::Closed(why)) => {
            trunk.close(why.clone());
            trunk.shut().await;
            Err(why)
        }
    }
}

enum Refused {
    Told(String),
    Closed(String),
}

async fn introduce(
    shared: &Arc<Shared>,
    client: &Arc<Client>,
    calls: &mut mpsc::Receiver<Incoming>,
    limit: Duration,
) -> Result<(), Refused> {
    let first = tokio::time::timeout(limit, calls.recv()).await;
    let call = match first {
        Err(_) => return Err(Refused::Closed(format!("no plugin registered within {limit:?}"))),
        Ok(None) => {
            let why = client.trunk.why_closed().unwrap_or_default();
            return Err(Refused::Closed(format!("closed before registration: {why}")));
        }
        Ok(Some(call)) => call,
    };
    if call.method != "RegisterPlugin" {
        let why = format!("{} before RegisterPlugin", call.method);
        call.reply.error(UNIMPLEMENTED, &why).await;
        return Err(Refused::Closed(why));
    }
    let request = nri::RegisterPluginRequest::decode(call.payload.as_slice())
        .map_err(|error| Refused::Closed(error.to_string()))?;
    if let Err(why) = check_name(shared, &request) {
        call.reply.error(UNKNOWN, &why).await;
        return Err(Refused::Told(why));
    }
    let name = format!("{}-{}", request.plugin_idx, request.plugin_name);
    let mut reply = Some(call.reply);
    let order = shared.config.order;
    answer(&mut reply, order == RegisterOrder::AnswerFirst).await;
    let events = configure(shared, client, &name).await.map_err(Refused::Closed)?;
    answer(&mut reply, order == RegisterOrder::ConfigureFirst).await;
    let plugin = Arc::new(Plugin {
        name,
        events,
        client: Arc::clone(client),
        by_state_change: AtomicBool::new(shared.version().nri_minor() < 12),
    });
    // hooks wait, so that no container falls between the list and the first event
    let dead_locked = |error: anyhow::Error| Refused::Closed(error.to_string());
    let _no_hook_meanwhile = shared.alone().await.map_err(dead_locked)?;
    synchronize(shared, &plugin).await.map_err(Refused::Closed)?;
    answer(&mut reply, true).await;
    let mut state = shared.state();
    state.plugins.retain(|other| other.is_open());
    state.plugins.push(Arc::clone(&plugin));
    state.plugins.sort_by(|a, b| a.name[..2].cmp(&b.name[..2]));
    drop(state);
    let (watching, trunk) = (Arc::clone(shared), Arc::clone(&client.trunk));
    tokio::spawn(async move {
        trunk.closed().await;
        let why = trunk.why_closed().unwrap_or_default();
        watching.state().refusals.push(format!("{}: closed: {why}", plugin.name));
        trunk.shut().await;
        watching.changed();
    });
    shared.changed();
    Ok(())
}

async fn answer(reply: &mut Option<Reply>, now: bool) {
    if now && let Some(reply) = reply.take() {
        reply.ok(&nri::Empty {}).await;
    }
}

fn check_name(shared: &Shared, request: &nri::RegisterPluginRequest) -> Result<(), String> {
    let (index, name) = (&request.plugin_idx, &request.plugin_name);
    if index.len() != 2 || !index.bytes().all(|b| b.is_ascii_digit()) {
        return Err(format!("invalid plugin index \"{index}\", must be 2 digits"));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "_.+-".contains(c);
    if shared.version().nri_minor() >= 12 {
        if name.is_empty() {
            return Err("invalid plugin name \"\": empty".to_owned());
        }
        if let Some(bad) = name.chars().find(|c| !plain(*c)) {
            return Err(format!("invalid plugin name \"{name}\": contains invalid character {bad:?}"));
        }
    }
    Ok(())
}

async fn configure(shared: &Shared, client: &Client, name: &str) -> Result<i32, String> {
    let (config, version) = (&shared.config, shared.version());
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap();
    let request = nri::ConfigureRequest {
        config: String::new(),
        runtime_name: "containerd".to_owned(),
        runtime_version: version.runtime_version().to_owned(),
        registration_timeout: millis(config.registration_timeout),
        request_timeout: millis(config.request_timeout),
        nri_version: version.nri_version().to_owned(),
    };
    let answer: nri::ConfigureResponse = client
        .call("Configure", &request, config.request_timeout)
        .await
        .map_err(|error| format!("{name}: failed to configure plugin: {error}"))?;
    let valid = version.valid_events();
    match answer.events {
        0 => Ok(valid), // everything, validation too where there is such a thing
        events if events & !valid == 0 => Ok(events),
        events => Err(format!("{name}: invalid plugin events: 0x{events:x}, valid are 0x{valid:x}")),
    }
}

/// Shows all pods and live containers, in parts if so switched, and applies the updates of the answer.
async fn synchronize(shared: &Shared, plugin: &Plugin) -> Result<(), String> {
    let (pods, containers, parts) = {
        let state = shared.state();
        let pods: Vec<_> = state.pods.iter().map(|(id, pod)| pod.shown(id)).collect();
        let live = state.containers.values().filter(|c| c.state != super::ContainerState::Exited);
        let containers: Vec<_> = live.map(|c| c.shown(shared.version())).collect();
        (pods, containers, state.sync_parts.max(1))
    };
    let part = |all: usize, n: usize| (all * n / parts, all * (n + 1) / parts);
    let began = Instant::now();
    for n in 0..parts {
        let more = n + 1 < parts;
        let ((pod_from, pod_to), (from, to)) = (part(pods.len(), n), part(containers.len(), n));
        let request = nri::SynchronizeRequest {
            pods: pods[pod_from..pod_to].to_vec(),
            containers: containers[from..to].to_vec(),
            more,
        };
        // one budget for all parts
        let left = shared.config.request_timeout.saturating_sub(began.elapsed());
        let answer: Result<nri::SynchronizeResponse, RpcError> =
            plugin.client.call("Synchronize", &request, left).await;
        let failed = |why: String| format!("{}: failed to synchronize plugin: {why}", plugin.name);
        let answer = answer.map_err(|error| failed(error.to_string()))?;
        if answer.more != more {
            return Err(failed(format!("answered more={} to a part with more={more}", answer.more)));
        }
        if more && !answer.update.is_empty() {
            return Err(failed(format!(
                "{} updates in answer to a part with more=true",
                answer.update.len()
            )));
        }
        if !more {
            let mut result = HookResult::new("", false);
            result.update(&plugin.name, &answer.update).map_err(failed)?;
            shared.finish(&result);
            let call = HookCall {
                plugin: plugin.name.clone(),
                method: "Synchronize".to_owned(),
                container: String::new(),
                took: began.elapsed(),
                masks: super::hooks::masks(None, &answer.update),
                failure: None,
            };
            shared.state().calls.push(call);
        }
    }
    Ok(())
}

/// Calls of a live plugin: UpdateContainers only.
async fn serve_updates(shared: Arc<Shared>, trunk: Arc<Trunk>, mut calls: mpsc::Receiver<Incoming>) {
    loop {
        let call = tokio::select! {
            call = calls.recv() => call,
            () = trunk.closed() => return,
        };
        let Some(call) = call else { return };
        match (call.method.as_str(), nri::UpdateContainersRequest::decode(call.payload.as_slice())) {
            ("UpdateContainers", Ok(request)) => {
                // from within a hook this waits for the hook, which waits for the plugin
                let Ok(_alone) = shared.alone().await else { return };
                if shared.version().nri_minor() < 12 {
                    // holds the plugins' lock and wants the runtime's; a hook takes them the other way round, and
                    // the next one is taken for the one that did
                    shared.state().dead_locked = true;
                    return;
                }
                let mut result = HookResult::new("", false);
                match result.update("UpdateContainers", &request.update) {
                    Ok(()) => {
                        shared.finish(&result);
                        call.reply.ok(&nri::UpdateContainersResponse::default()).await;
                    }
                    Err(why) => call.reply.error(UNKNOWN, &why).await,
                }
            }
            ("UpdateContainers", Err(error)) => call.reply.error(UNKNOWN, &error.to_string()).await,
            (method, _) => call.reply.error(UNIMPLEMENTED, &format!("method {method}")).await,
        }
    }
}
