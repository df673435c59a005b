//! The loop, with a server and a clock of the test's.

use super::*;
use crate::driver::{Kind, Matter, Subject};
use crate::http::metrics::NodeState;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

type Heard = (Vec<Notice>, u64);

/// Everything around the loop.
struct Stage {
    notices: mpsc::UnboundedSender<Heard>,
    around: Arc<Around>,
    metrics: Arc<Metrics>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Around {
    told: tokio::sync::Mutex<Option<mpsc::UnboundedReceiver<Heard>>>,
    /// Answers of the server, in order; then it writes.
    failures: Mutex<VecDeque<Failure>>,
    /// What the server was asked.
    asked: watch::Sender<Vec<String>>,
    /// Pauses that were begun, each with its end.
    pauses: watch::Sender<Vec<(Duration, Arc<Notify>)>>,
}

impl Told for Around {
    fn next(&self) -> BoxFuture<'_, Heard> {
        Box::pin(async {
            let told = self.told.lock().await.as_mut().unwrap().recv().await;
            match told {
                Some(told) => told,
                None => pending().await,
            }
        })
    }
}

impl Around {
    fn answer(&self, asked: String) -> BoxFuture<'_, Result<(), Failure>> {
        let failure = self.failures.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        self.asked.send_modify(|all| all.push(asked));
        Box::pin(async { failure.map_or(Ok(()), Err) })
    }
}

impl Server for Around {
    fn create<'a>(&'a self, namespace: &'a str, event: &'a Value) -> BoxFuture<'a, Result<(), Failure>> {
        let count = event["series"]["count"].as_u64().unwrap_or(1);
        self.answer(format!("create {namespace} {} {count}", event["note"].as_str().unwrap()))
    }

    fn patch<'a>(
        &'a self,
        namespace: &'a str,
        _: &'a str,
        fields: &'a Value,
    ) -> BoxFuture<'a, Result<(), Failure>> {
        self.answer(format!("patch {namespace} {}", fields["series"]["count"]))
    }
}

impl Clock for Around {
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        let over = Arc::new(Notify::new());
        self.pauses.send_modify(|all| all.push((time, over.clone())));
        Box::pin(async move { over.notified().await })
    }

    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
    }
}

impl Stage {
    fn start(failures: &[Failure]) -> Self {
        let (notices, told) = mpsc::unbounded_channel();
        let around = Around { told: tokio::sync::Mutex::new(Some(told)), ..Around::default() };
        around.failures.lock().unwrap().extend(failures.iter().cloned());
        let (around, metrics) = (Arc::new(around), Arc::<Metrics>::default());
        let task = tokio::spawn(run(
            around.clone(),
            "node".to_owned(),
            around.clone(),
            metrics.clone(),
            around.clone(),
        ));
        Self { notices, around, metrics, task }
    }

    fn tell(&self, name: &str) {
        let about = Subject { kind: Kind::Pod, uid: "u".into(), namespace: "ns".into(), name: name.into() };
        let notice = Notice { about, matter: Matter::Throttled, text: format!("{name} slow"), times: 1 };
        self.notices.send((vec![notice], 0)).unwrap();
    }

    /// Waits for so many writes; returns the last.
    async fn asked(&self, count: usize) -> String {
        let mut asked = self.around.asked.subscribe();
        let enough = asked.wait_for(|asked| asked.len() >= count);
        let asked = tokio::time::timeout(Duration::from_secs(30), enough).await.unwrap().unwrap().clone();
        assert_eq!(asked.len(), count, "{asked:?}");
        asked.last().cloned().unwrap()
    }

    /// Waits for the n-th pause and ends it; returns how long it was.
    async fn pause(&self, n: usize) -> Duration {
        let mut pauses = self.around.pauses.subscribe();
        let begun = pauses.wait_for(|pauses| pauses.len() > n);
        let pauses = tokio::time::timeout(Duration::from_secs(30), begun).await.unwrap().unwrap();
        pauses[n].1.notify_one();
        pauses[n].0
    }

    fn counts(&self, line: &str) {
        let text = self.metrics.render(&NodeState::default());
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn what_happens_again_is_patched_after_the_rest_and_silence_writes_nothing() {
    let stage = Stage::start(&[]);
    stage.tell("p");
    assert_eq!(stage.asked(1).await, "create ns p slow 1");
    stage.tell("p");
    stage.tell("p");
    stage.tell("q");
    assert_eq!(stage.asked(2).await, "create ns q slow 1", "p rests");
    assert_eq!(stage.pause(0).await, Duration::from_secs(60));
    assert_eq!(stage.asked(3).await, "patch ns 3");
    assert_eq!(stage.pause(2).await, Duration::from_secs(120));
    stage.pause(1).await;
    stage.tell("r");
    assert_eq!(stage.asked(4).await, "create ns r slow 1", "nothing more of p and q");
    stage.counts("dra_cpu_events_total{result=\"written\"} 4");
    stage.counts("dra_cpu_events_total{result=\"dropped\"} 0");
}

#[tokio::test]
async fn a_server_that_is_away_is_tried_again_after_growing_pauses_and_nothing_is_lost() {
    let away = Failure::Away("503".into());
    let stage = Stage::start(&[away.clone(), away.clone(), away]);
    stage.tell("p");
    for (n, seconds) in [1_u64, 2, 4].into_iter().enumerate() {
        stage.asked(n + 1).await;
        if n == 0 {
            stage.tell("p");
            stage.tell("q");
        }
        let quarter = Duration::from_millis(seconds * 250);
        let pause = stage.pause(n).await;
        assert!(pause >= 3 * quarter && pause <= 5 * quarter, "{pause:?} instead of {seconds} s");
    }
    assert_eq!(stage.asked(5).await, "create ns q slow 1");
    let asked = stage.around.asked.borrow().clone();
    assert_eq!(asked[3], "create ns p slow 2");
    stage.counts("dra_cpu_events_total{result=\"written\"} 2");
}

#[tokio::test]
async fn a_refused_event_keeps_no_other_back_and_is_dropped_in_the_end() {
    let refused = Failure::Refused("403".into());
    let stage = Stage::start(std::slice::from_ref(&refused));
    stage.tell("p");
    stage.asked(1).await;
    stage.tell("q");
    assert_eq!(stage.asked(2).await, "create ns q slow 1");
    let more = vec![refused; 5];
    stage.around.failures.lock().unwrap().extend(more);
    let pauses = || stage.around.pauses.borrow().len();
    for tries in 1..=5 {
        // The pause of q is the second one.
        let n = if tries == 1 { 0 } else { pauses() - 1 };
        stage.pause(n).await;
        assert_eq!(stage.asked(2 + tries).await, "create ns p slow 1");
        if tries < 5 {
            let mut begun = stage.around.pauses.subscribe();
            begun.wait_for(|all| all.len() == 2 + tries).await.unwrap();
        }
    }
    stage.tell("r");
    stage.asked(8).await;
    stage.counts("dra_cpu_events_total{result=\"dropped\"} 1");
}

#[tokio::test]
async fn an_event_that_has_expired_is_made_anew_and_one_without_a_place_is_dropped() {
    let stage = Stage::start(&[]);
    stage.tell("p");
    stage.asked(1).await;
    stage.tell("p");
    stage.tell("q");
    stage.asked(2).await;
    stage.around.failures.lock().unwrap().push_back(Failure::Gone);
    stage.pause(0).await;
    assert_eq!(stage.asked(4).await, "create ns p slow 1");
    assert_eq!(stage.around.asked.borrow()[2], "patch ns 2");
    stage.around.failures.lock().unwrap().push_back(Failure::Gone);
    stage.tell("r");
    stage.asked(5).await;
    stage.tell("s");
    stage.asked(6).await;
    stage.counts("dra_cpu_events_total{result=\"dropped\"} 1");
    stage.notices.send((Vec::new(), 7)).unwrap();
    stage.tell("t");
    stage.asked(7).await;
    stage.counts("dra_cpu_events_total{result=\"dropped\"} 8");
}
