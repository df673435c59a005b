//! What an operator asks the daemon of a node, and the one thing that only an operator decides.

use anyhow::{Context, Result, ensure};
use dracpu_tests::support::api_server::{Presence, Resource};
use dracpu_tests::support::cpus::list;
use dracpu_tests::support::daemon::{Daemon, dracpu_bin};
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig};
use dracpu_tests::support::scheduler::Ask;
use dracpu_tests::support::wait::{SOON, poll};
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;

const NUMA0: &str = "cpudevnuma000";

fn small() -> NodeConfig {
    NodeConfig::new(Machine::small(8, 2))
}

fn socket(node: &Node) -> PathBuf {
    node.path("k/plugins/dra.cpu/dracpu.sock")
}

/// What `dracpu claims` says of a claim.
async fn claim_of(node: &Node, uid: &str) -> Result<Value> {
    let answer = node.dracpu_json(&["claims"]).await?;
    ensure!(answer["schema"] == "dracpu.claims/v1" && answer["node"] == "node-a", "{answer}");
    let claims = answer["claims"].as_array().context("a list of claims")?;
    claims.iter().find(|claim| claim["uid"] == uid).cloned().with_context(|| format!("{uid} in {answer}"))
}

async fn state_of(node: &Node, claim: &ClaimRef) -> Result<String> {
    Ok(claim_of(node, &claim.uid).await?["state"].as_str().context("a state")?.to_owned())
}

/// Why a claim is not released.
async fn refusal(node: &Node, uid: &str) -> Result<String> {
    let answer = node.dracpu(&["claims", "release", uid]).await?;
    ensure!(answer.code == 1 && answer.stdout.is_empty(), "{uid}: {answer:?}");
    Ok(answer.stderr)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_nobody_will_unprepare_is_reported_and_its_cpus_are_freed_by_hand() -> Result<()> {
    let node = Node::start(small()).await?;
    let gone = node.allocate("gone", &[Ask::of("r", NUMA0, 2)]).await?;
    let other = node.allocate("other", &[Ask::of("r", NUMA0, 2)]).await?;
    node.prepare(&other).await?;
    let of_other = node.record_of(&other.uid)?;
    let pod = node.run_pod("p", &[&gone], &[ContainerAsk::new("app", &[&gone])]).await?;
    let plain = node.run_pod("plain", &[], &[ContainerAsk::new("app", &[])]).await?.id("app");

    let claim = claim_of(&node, &gone.uid).await?;
    ensure!(claim["state"] == "bound", "{claim}");
    ensure!(claim["cpus"] == list(&node.record_of(&gone.uid)?), "{claim}");
    ensure!(claim["name"] == "gone" && claim["namespace"] == "default", "{claim}");
    ensure!(claim["pod"]["name"] == "p" && claim["container"] == "app", "{claim}");
    ensure!(claim["strategy"]["name"] == "packed", "{claim}");
    ensure!(
        claim["strategy"]["digest"].as_str().is_some_and(|digest| digest.starts_with("sha256:")),
        "{claim}"
    );

    // The kubelet dies after it has stopped the container, and the pod and its claim are deleted by force.
    node.kubelet.stop().await;
    node.runtime.stop_container(&pod.id("app")).await?;
    assert_eq!(state_of(&node, &gone).await?, "held");
    node.runtime.remove_pod_sandbox(&pod.sandbox).await?;
    assert!(refusal(&node, &gone.uid).await?.contains("still exists"));
    node.api.delete(Resource::ResourceClaims, "default", "gone");
    assert_eq!(state_of(&node, &gone).await?, "orphan");
    assert_eq!(node.metric("dra_cpu_orphaned_claims").await?, 1.0);
    let text = node.dracpu(&["claims"]).await?.stdout;
    assert!(text.contains("default/gone") && text.contains("dracpu claims release"), "{text}");
    assert!(!text.contains('\u{1b}'), "no colours but on a terminal: {text}");

    let answer = node.dracpu(&["claims", "release", &gone.uid]).await?;
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.stdout.contains(&format!("released claim {}", gone.uid)), "{answer:?}");
    node.ledger_is(&[(&other, &of_other)]).await?;
    assert_eq!(
        node.runtime.effective_cpus(&plain),
        &node.config.machine.online() - &of_other,
        "the pool is whole"
    );
    assert!(refusal(&node, &gone.uid).await?.contains("no such claim"), "it is gone");

    // Unprepare comes after all.
    node.kubelet.begin();
    node.wait_connected().await?;
    node.unprepare(&gone).await?;
    node.ledger_is(&[(&other, &of_other)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_not_released_while_somebody_may_need_it_and_the_refusal_says_what_to_do() -> Result<()> {
    let node = Node::start(small()).await?;
    let waiting = node.allocate("waiting", &[Ask::of("r", NUMA0, 2)]).await?;
    let bound = node.allocate("bound", &[Ask::of("r", NUMA0, 2)]).await?;
    node.prepare(&waiting).await?;
    let pod = node.run_pod("p", &[&bound], &[ContainerAsk::new("app", &[&bound])]).await?;
    let (of_waiting, of_bound) = (node.record_of(&waiting.uid)?, node.record_of(&bound.uid)?);
    let all = [(&waiting, &of_waiting), (&bound, &of_bound)];

    assert_eq!(state_of(&node, &waiting).await?, "waiting");
    let why = refusal(&node, &waiting.uid).await?;
    assert!(why.contains("still exists") && why.contains("kubelet unprepares it"), "{why}");
    let why = refusal(&node, &bound.uid).await?;
    assert!(why.contains("container app of pod default/p") && why.contains("delete the pod"), "{why}");
    for nobody in ["no-such-claim", "../../etc/passwd", "a\u{7f}b", &"x".repeat(10_000)] {
        let why = refusal(&node, nobody).await?;
        assert!(why.contains("no such claim") && why.contains("dracpu claims"), "{why}");
    }
    for usage in [&["claims", "release"][..], &["claims", "release", ""]] {
        let answer = node.dracpu(usage).await?;
        assert_eq!(answer.code, 64, "{answer:?}");
    }
    node.ledger_is(&all).await?;

    // An object that is gone while its container runs is no orphan.
    let object = node.api.get(Resource::ResourceClaims, "default", "bound").context("the claim")?;
    node.api.delete(Resource::ResourceClaims, "default", "bound");
    assert_eq!(state_of(&node, &bound).await?, "bound");
    assert!(refusal(&node, &bound.uid).await?.contains("delete the pod"));
    // What was an orphan is looked at again.
    node.runtime.remove_pod_sandbox(&pod.sandbox).await?;
    assert_eq!(state_of(&node, &bound).await?, "orphan");
    node.api.set_presence(Presence::Refusing).await?;
    let why = refusal(&node, &bound.uid).await?;
    assert!(why.contains("not known") && why.contains("when the API server answers"), "{why}");
    assert_eq!(state_of(&node, &bound).await?, "orphan", "as it was known before");
    node.api.set_presence(Presence::Here).await?;
    node.api.put(Resource::ResourceClaims, object);
    assert!(refusal(&node, &bound.uid).await?.contains("still exists"), "its object has come back");
    assert_eq!(state_of(&node, &bound).await?, "held");
    node.ledger_is(&all).await?;
    Ok(())
}

/// A spec as the Go driver writes it.
fn write_plain_spec(node: &Node, uid: &str, cpus: &str) -> Result<()> {
    let spec = json!({
        "cdiVersion": "0.8.0", "kind": "dra.k8s.io/cpu",
        "devices": [{"name": format!("claim-{uid}"),
                     "containerEdits": {"env": [format!("DRA_CPUSET_{uid}={cpus}")]}}],
    });
    std::fs::write(node.cdi_dir().join(format!("dra.k8s.io-cpu_claim-{uid}.json")), spec.to_string())?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_in_trouble_are_told_by_state_and_stay() -> Result<()> {
    let mut node = Node::without_daemon(small()).await?;
    write_plain_spec(&node, "u1", "1-2")?;
    write_plain_spec(&node, "u2", "2-3")?;
    write_plain_spec(&node, "u3", "7")?;
    node.config.config = json!({"reservedCPUs": "7"});
    node.start_daemon().await?;
    for (uid, state) in [("u1", "conflicted"), ("u2", "conflicted"), ("u3", "stranded")] {
        let claim = claim_of(&node, uid).await?;
        ensure!(
            claim["state"] == state && claim["name"] == "" && claim["strategy"] == Value::Null,
            "{claim}"
        );
        let why = refusal(&node, uid).await?;
        ensure!(why.contains("nothing but its CPUs") && why.contains("delete the pod"), "{why}");
    }
    let text = node.dracpu(&["claims"]).await?.stdout;
    ensure!(text.contains("conflicted: ") && text.contains("stranded: "), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemons_socket_is_roots_alone_and_comes_and_goes_with_the_daemon() -> Result<()> {
    let node = Node::without_daemon(small()).await?;
    let socket = socket(&node);
    let nobody = node.dracpu(&["claims"]).await?;
    ensure!(nobody.code == 1 && nobody.stdout.is_empty(), "{nobody:?}");
    ensure!(
        nobody.stderr.contains("no dracpu answers on") && nobody.stderr.contains("kubectl exec"),
        "{nobody:?}"
    );

    // What is planted where the socket should be leads nowhere.
    let precious = node.path("precious");
    std::fs::write(&precious, "precious")?;
    std::fs::create_dir_all(node.path("k/plugins/dra.cpu"))?;
    symlink(&precious, &socket)?;
    node.start_daemon().await?;
    let file = std::fs::symlink_metadata(&socket)?;
    ensure!(file.file_type().is_socket() && file.permissions().mode() & 0o7777 == 0o600, "{file:?}");
    ensure!(std::fs::read_to_string(&precious)? == "precious");
    ensure!(node.dracpu(&["claims"]).await?.stdout == "no claim holds CPUs of node node-a\n");

    node.kill_daemon().await?;
    ensure!(socket.exists(), "a killed daemon leaves its socket");
    ensure!(node.dracpu(&["claims"]).await?.stderr.contains("no dracpu answers on"));
    node.start_daemon().await?;
    ensure!(node.dracpu(&["claims"]).await?.code == 0);

    // A second daemon does not take it.
    let mut second = node.daemon_args()?;
    second.args.push("--lock-timeout=100ms".to_owned());
    let status = Daemon::spawn(&second)?.wait_exit(SOON).await?;
    ensure!(status.code() == Some(75), "{status}");
    ensure!(node.dracpu(&["claims"]).await?.code == 0);

    // Somebody cleans up where he should not.
    std::fs::remove_file(&socket)?;
    let answers = || async {
        ensure!(node.dracpu(&["claims"]).await?.code == 0, "no answer yet");
        Ok(())
    };
    poll("the socket again", SOON, answers).await?;
    node.terminate_daemon().await?;
    ensure!(!socket.exists(), "a daemon that ends takes its socket with it");

    // Nothing that a pod needs waits for it.
    std::fs::create_dir_all(socket.join("in-the-way"))?;
    node.start_daemon().await?;
    let claim = node.write_claim("c", NUMA0, "2", &[]);
    node.prepare(&claim).await?;
    ensure!(node.dracpu(&["claims"]).await?.stderr.contains("no dracpu answers on"));
    std::fs::remove_dir_all(&socket)?;
    poll("the socket once there is room for it", SOON, answers).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_talks_nonsense_to_the_socket_costs_nobody_else_anything() -> Result<()> {
    let node = Node::start(small()).await?;
    let claim = node.allocate("c", &[Ask::of("r", NUMA0, 2)]).await?;
    node.prepare(&claim).await?;
    let own = node.record_of(&claim.uid)?;
    let head = |first: &str, rest: &str| format!("{first}\r\nhost: x\r\n{rest}\r\n").into_bytes();
    let post = "POST /claims/release HTTP/1.1";
    let json = "content-type: application/json\r\n";
    for (what, bytes) in [
        ("nothing", Vec::new()),
        ("zeros", vec![0; 100_000]),
        ("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec()),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec()),
        ("an endless line", vec![b'a'; 1 << 20]),
        ("endless headers", head("GET /node HTTP/1.1", &"x: y\r\n".repeat(100_000))),
        ("no such page", head("GET /etc/passwd HTTP/1.1", "")),
        ("another method", head("DELETE /node HTTP/1.1", "")),
        ("another question", head("GET /node?fresh=perhaps HTTP/1.1", "")),
        ("no body", head(post, &format!("{json}content-length: 0\r\n"))),
        ("a body without end", head(post, &format!("{json}content-length: 99999999999\r\n"))),
        ("no JSON", [head(post, &format!("{json}content-length: 4\r\n")), b"{uid".to_vec()].concat()),
        ("another type", [head(post, "content-length: 11\r\n"), br#"{"uid":"a"}"#.to_vec()].concat()),
        (
            "a number",
            [head(post, &format!("{json}content-length: 9\r\n")), br#"{"uid":7}"#.to_vec()].concat(),
        ),
    ] {
        let mut stream = UnixStream::connect(socket(&node))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let _it_may_hang_up = stream.write_all(&bytes);
        let _ended = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _it_may_reset = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        ensure!(!answer.starts_with("HTTP/1.1 2"), "{what}: {answer}");
        ensure!(answer.len() < 2048, "{what}: {} bytes", answer.len());
    }
    // Callers who say nothing are hung up on, and others are served then.
    let idle: Vec<UnixStream> =
        (0..12).map(|_| UnixStream::connect(socket(&node))).collect::<Result<_, _>>()?;
    ensure!(claim_of(&node, &claim.uid).await?["state"] == "waiting");
    drop(idle);
    node.ledger_is(&[(&claim, &own)]).await?;
    // Nor does the end wait for bodies that do not come.
    let mut half = Vec::new();
    for _ in 0..8 {
        let mut stream = UnixStream::connect(socket(&node))?;
        stream.write_all(&head(post, &format!("{json}content-length: 9\r\n")))?;
        half.push(stream);
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let begun = std::time::Instant::now();
    ensure!(node.terminate_daemon().await?.success());
    ensure!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    drop(half);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_drawing_of_the_machine_shows_the_claims_where_its_driver_runs() -> Result<()> {
    let mut node = Node::without_daemon(small()).await?;
    node.config.config = json!({"reservedCPUs": "0"});
    let sysfs = format!("--sysfs-root={}", node.path("sys").display());
    let before = node.dracpu(&["topology", &sysfs]).await?;
    ensure!(before.code == 0 && before.stderr.is_empty(), "no daemon is no error: {before:?}");
    node.start_daemon().await?;
    let claim = node.allocate("drawn", &[Ask::of("r", NUMA0, 2)]).await?;
    node.prepare(&claim).await?;
    let text = node.dracpu(&["topology", &sysfs]).await?;
    let cpus: Vec<u32> = node.record_of(&claim.uid)?.into_iter().collect();
    for sign in ["0#".to_owned(), format!("{}A", cpus[0]), format!("{}A", cpus[1])] {
        ensure!(text.stdout.contains(&sign) && !before.stdout.contains(&sign), "{sign} in {}", text.stdout);
    }
    ensure!(text.stdout.contains("A default/drawn waiting"), "{}", text.stdout);
    let svg = node.dracpu(&["topology", &sysfs, "-o", "svg"]).await?.stdout;
    ensure!(svg.contains("default/drawn"), "{svg}");
    // The claims are not those of another machine.
    let other = node.dracpu(&["topology", "--machine=two-socket"]).await?.stdout;
    ensure!(!other.contains("drawn"), "{other}");
    let another = node.path("another");
    Machine::small(4, 2).write_sysfs(&another)?;
    let another = format!("--sysfs-root={}", another.display());
    ensure!(!node.dracpu(&["topology", &another]).await?.stdout.contains("drawn"));
    Ok(())
}

/// What `dracpu explain` says of a claim, as an object with `claim`, `decision`, `replay` and `help`.
async fn explained(node: &Node, what: &str) -> Result<Value> {
    let answer = node.dracpu_json(&["explain", what]).await?;
    ensure!(answer["schema"] == "dracpu.explain/v1", "{answer}");
    let claims = answer["claims"].as_array().context("a list")?;
    ensure!(claims.len() == 1, "{answer}");
    Ok(claims[0].clone())
}

/// A question of `explain`, as `strategy decide` answers it: the CPUs of each request.
async fn decided_elsewhere(node: &Node, question: &Value) -> Result<Value> {
    let sysfs = format!("--sysfs-root={}", node.path("sys").display());
    let mut child = tokio::process::Command::new(dracpu_bin()?)
        .args(["strategy", "decide", "--strategy=packed", &sysfs])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().context("its input")?.write_all(format!("{question}\n").as_bytes()).await?;
    let output = child.wait_with_output().await?;
    serde_json::from_slice(&output.stdout).with_context(|| format!("{output:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claims_cpus_are_explained_by_the_question_that_its_strategy_was_asked() -> Result<()> {
    let node = Node::start(small()).await?;
    let other = node.allocate("other", &[Ask::of("r", NUMA0, 3)]).await?;
    node.prepare(&other).await?;
    let web = node.allocate("web", &[Ask::of("a", NUMA0, 4), Ask::of("b", NUMA0, 2)]).await?;
    let pod = node.run_pod("p", &[&web], &[ContainerAsk::new("app", &[&web])]).await?;
    let own = list(&node.record_of(&web.uid)?);
    for what in ["web", "default/web", &web.uid, "p", "default/p", &pod.uid] {
        let about = explained(&node, what).await?;
        ensure!(
            about["claim"]["uid"] == web.uid.as_str() && about["claim"]["cpus"] == own.as_str(),
            "{what}: {about}"
        );
        ensure!(about["claim"]["why"] == about["decision"]["answer"]["why"], "{about}");
        ensure!(about["decision"]["requests"][0]["count"] == 4 && about["help"] == json!([]), "{about}");
        ensure!(about["replay"]["answer"] == about["decision"]["answer"], "the same again: {about}");
        ensure!(about["replay"]["strategy"] == about["decision"]["strategy"], "{about}");
        let elsewhere = decided_elsewhere(&node, &about["decision"]["question"]).await?;
        for at in 0..2 {
            let granted = &about["decision"]["answer"]["grants"][at]["cpus"];
            ensure!(elsewhere["grants"][at]["cpus"] == *granted, "{elsewhere}: {about}");
        }
        ensure!(elsewhere["id"] == web.uid.as_str(), "{elsewhere}");
    }
    let text = node.dracpu(&["explain", "web"]).await?.stdout;
    let digest =
        claim_of(&node, &web.uid).await?["strategy"]["digest"].as_str().context("a digest")?.to_owned();
    for words in [
        "claim default/web",
        "bound, container app of pod default/p",
        &own,
        &digest,
        "a: 4 CPUs of cpudevnuma000; free were ",
        "asked again  the same answer",
    ] {
        ensure!(text.contains(words), "{words} in {text}");
    }

    // A pod without claims.
    node.run_pod("plain", &[], &[ContainerAsk::new("app", &[])]).await?;
    let text = node.dracpu(&["explain", "plain"]).await?.stdout;
    ensure!(text.contains("pod default/plain, container app") && text.contains("the shared pool"), "{text}");

    // Whose a CPU is.
    let first = own.split(['-', ',']).next().unwrap_or_default().to_owned();
    let whose = node.dracpu(&["explain", "--cpu", &first]).await?.stdout;
    ensure!(whose.starts_with(&format!("CPU {first}: claim default/web has it (bound)")), "{whose}");
    let none = node.dracpu(&["explain", "--cpu=9999"]).await?;
    ensure!(none.code == 1 && none.stderr.contains("this machine has no CPU 9999"), "{none:?}");

    // After a restart there are the records.
    node.crash_and_restart().await?;
    let about = explained(&node, "web").await?;
    ensure!(about["decision"] == Value::Null && about["replay"] == Value::Null, "{about}");
    ensure!(
        about["claim"]["why"] == Value::Null && about["claim"]["strategy"]["digest"] == digest.as_str(),
        "{about}"
    );
    let text = node.dracpu(&["explain", "web"]).await?.stdout;
    ensure!(text.contains("as its record says") && text.contains("before the daemon's start"), "{text}");

    for (args, code) in [
        (&["explain", "nobody"][..], 1),
        (&["explain"], 64),
        (&["explain", ""], 64),
        (&["explain", "web", "--cpu=1"], 64),
        (&["explain", "--cpu=-1"], 64),
    ] {
        let answer = node.dracpu(args).await?;
        ensure!(
            answer.code == code && answer.stdout.is_empty() && !answer.stderr.is_empty(),
            "{args:?}: {answer:?}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_claim_is_explained_with_what_would_help() -> Result<()> {
    let node = Node::start(small()).await?;
    let holder = node.allocate("holder", &[Ask::of("r", NUMA0, 10)]).await?;
    node.prepare(&holder).await?;
    // The scheduler thinks that the CPUs are free by now.
    let big = node.write_claim("big", NUMA0, "8", &[]);
    node.prepare(&big).await.err().context("is refused")?;
    let about = explained(&node, "big").await?;
    ensure!(about["claim"] == Value::Null && about["decision"]["answer"] == Value::Null, "{about}");
    let refusal = about["decision"]["refusal"].as_str().context("a reason")?;
    ensure!(refusal.contains(&holder.uid) && refusal.contains('8'), "{refusal}");
    ensure!(
        about["decision"]["requests"][0]["free"].as_str().is_some_and(|free| !free.is_empty()),
        "{about}"
    );
    ensure!(about["replay"]["refusal"].is_string(), "{about}");
    let help = about["help"][0].as_str().context("help")?;
    ensure!(help.contains("claims hold: default/holder (10, waiting)"), "{help}");
    let text = node.dracpu(&["explain", &big.uid]).await?.stdout;
    ensure!(text.contains("refused") && text.contains("asked again  the same answer"), "{text}");

    node.unprepare(&holder).await?;
    let help = explained(&node, "big").await?["help"][0].as_str().context("help")?.to_owned();
    ensure!(help.contains("free CPUs by now"), "{help}");
    node.prepare(&big).await?;
    let about = explained(&node, "big").await?;
    ensure!(about["decision"]["refusal"] == Value::Null && about["help"] == json!([]), "{about}");

    // What never came to a question.
    let bad = node.write_claim("bad", NUMA0, "half", &[]);
    node.api.change(Resource::ResourceClaims, "default", "bad", |object| {
        object["status"]["reservedFor"] = json!([{"resource": "pods", "name": "worker", "uid": "of-worker"}]);
    });
    node.prepare(&bad).await.err().context("is refused")?;
    let about = explained(&node, "default/bad").await?;
    ensure!(about["decision"]["question"] == Value::Null && about["replay"] == Value::Null, "{about}");
    let text = node.dracpu(&["explain", "bad"]).await?.stdout;
    ensure!(text.contains("half") && text.contains("it did not come to that"), "{text}");
    for pod in ["worker", "default/worker", "of-worker"] {
        ensure!(explained(&node, pod).await? == about, "its pod has no container yet: {pod}");
    }
    // Its pod is deleted: it does not come again.
    node.unprepare(&bad).await?;
    let text = node.dracpu(&["explain", "bad"]).await?.stdout;
    ensure!(text.contains("it has been unprepared since") && !text.contains("help"), "{text}");
    Ok(())
}
