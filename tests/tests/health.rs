//! What the kubelet knows of the devices, over a longer time than a test has: the time is told.

use anyhow::Result;
use dracpu::cdi::NoProbe;
use dracpu::config::{Config, ConfigFlags};
use dracpu::dra::{self, Claims, Plugin, Registrar, Reported, Results};
use dracpu::driver::{ClaimRef, DeviceHealth, DevicesHealth as Devices, Prepared};
use dracpu::http::Health as Liveness;
use dracpu::http::metrics::Metrics;
use dracpu::readiness::Readiness;
use dracpu_tests::support::api_server::{ApiServer, Gates};
use dracpu_tests::support::clock::{Clock, Hands};
use dracpu_tests::support::kubelet::{Health, Kubelet, KubeletConfig, KubeletVersion, Reports};
use dracpu_tests::support::scheduler::DRIVER;
use dracpu_tests::support::wait::{self, SOON};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const POOL: &str = "n";

/// The driver's time.
struct Told(Clock);

impl dracpu::clock::Clock for Told {
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(self.0.sleep(time))
    }
}

/// Nobody has a claim here.
struct NoClaims;

impl Claims for NoClaims {
    fn prepare(self: Arc<Self>, _: Vec<ClaimRef>) -> BoxFuture<'static, Results<Prepared>> {
        Box::pin(async { Vec::new() })
    }

    fn unprepare(self: Arc<Self>, _: Vec<ClaimRef>) -> BoxFuture<'static, Results<()>> {
        Box::pin(async { Vec::new() })
    }
}

fn devices(troubles: [Option<&str>; 2]) -> Devices {
    let device = |(n, trouble): (usize, Option<&str>)| DeviceHealth {
        pool: POOL.to_owned(),
        device: format!("d{n}"),
        trouble: trouble.map(str::to_owned),
    };
    Arc::new(troubles.into_iter().enumerate().map(device).collect())
}

/// A kubelet and the driver's sockets, on one clock.
struct Stage {
    kubelet: Kubelet,
    devices: watch::Sender<Devices>,
    clock: Clock,
    hands: Hands,
    directory: TempDir,
}

impl Stage {
    async fn new(version: KubeletVersion) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("dh").tempdir_in("/tmp")?;
        let (clock, hands) = Clock::told();
        let kubelet = Kubelet::start(KubeletConfig {
            root: directory.path().to_owned(),
            node: POOL.to_owned(),
            version,
            api: Arc::new(ApiServer::start(Gates::defaults_of(36)).await?),
            slice_grace: SOON,
            clock: clock.clone(),
        })?;
        let devices = watch::Sender::new(devices([None, None]));
        Ok(Self { kubelet, devices, clock, hands, directory })
    }

    fn config(&self) -> Config {
        let flags = ConfigFlags {
            kubelet_root_dir: Some(self.directory.path().to_owned()),
            hostname_override: Some(POOL.to_owned()),
            ..ConfigFlags::default()
        };
        flags.load().unwrap()
    }

    /// Serves the sockets until told to stop.
    fn serve(&self) -> (CancellationToken, JoinHandle<()>) {
        let config = self.config();
        dra::prepare_directories(&config).unwrap();
        let plugin = Plugin::new(Arc::new(NoClaims), Arc::<Metrics>::default());
        let endpoint = config.dra_socket().to_str().unwrap().to_owned();
        let readiness = Arc::<Readiness>::default();
        let registrar = Registrar::new(endpoint, readiness, Arc::<Liveness>::default());
        let reported =
            Reported { devices: self.devices.subscribe(), clock: Arc::new(Told(self.clock.clone())) };
        let stop = CancellationToken::new();
        let serving = dra::serve(config, plugin, reported, registrar, Arc::new(NoProbe), stop.clone());
        (stop, tokio::spawn(async move { serving.await.unwrap() }))
    }

    fn health(&self) -> [Health; 2] {
        ["d0", "d1"].map(|device| self.kubelet.device_health(DRIVER, POOL, device).0)
    }

    /// Waits for so many reports in all.
    async fn wait_reports(&self, count: u32) -> Result<()> {
        let enough = |reports: &Reports| reports.count.get(DRIVER).is_some_and(|found| *found >= count);
        let reports = wait::until("report", SOON, &mut self.kubelet.reports(), enough).await?;
        assert_eq!(reports.count[DRIVER], count);
        Ok(())
    }
}

#[tokio::test]
async fn a_minute_without_any_change_never_lets_a_lease_run_out() -> Result<()> {
    for version in [KubeletVersion::Current, KubeletVersion::V136] {
        let stage = Stage::new(version).await?;
        let (_stop, _serving) = stage.serve();
        stage.wait_reports(1).await?;
        for second in 1..=60 {
            stage.hands.advance(Duration::from_secs(1));
            assert_eq!(stage.health(), [Health::Healthy; 2], "{version:?}, second {second}");
            stage.wait_reports(1 + second / 10).await?; // all devices again, halfway through the lease
        }
        let reports = stage.kubelet.reports();
        assert_eq!(reports.borrow().streams[DRIVER], 1, "{version:?}");
        // what would happen without them
        let texts = ["d0", "d1"].map(|device| stage.kubelet.device_health(DRIVER, POOL, device).1);
        assert_eq!(texts, ["device initialized"; 2]);
        stage.hands.advance(Duration::from_secs(20));
        assert_eq!(stage.health(), [Health::Unknown; 2], "{version:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_change_is_told_at_once_and_a_new_instance_follows_the_old_one() -> Result<()> {
    let stage = Stage::new(KubeletVersion::Current).await?;
    let (stop, serving) = stage.serve();
    stage.wait_reports(1).await?;
    stage.devices.send_replace(devices([Some("offline: CPU 1 of claim default/a"), None]));
    let text = stage.kubelet.wait_health(DRIVER, POOL, "d0", Health::Unhealthy, SOON).await?;
    assert_eq!(text, "offline: CPU 1 of claim default/a");
    assert_eq!(stage.health(), [Health::Unhealthy, Health::Healthy]);

    stop.cancel();
    serving.await?;
    stage.kubelet.wait_health(DRIVER, POOL, "d1", Health::Unknown, SOON).await?;
    stage.devices.send_replace(devices([None, None]));
    let _next = stage.serve();
    stage.kubelet.wait_health(DRIVER, POOL, "d0", Health::Healthy, SOON).await?;
    stage.wait_reports(3).await?;
    Ok(())
}
