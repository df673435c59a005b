//! Plays stories: draws them from a seed, looks for the shortest that fails alike, and writes it down.

use crate::configuration::config;
use crate::event::Event;
use crate::judge::Judge;
use crate::machine::Machine;
use crate::rules::Violation;
use crate::seen::Seen;
use crate::story::{Op, story};
use crate::truth::Truth;
use anyhow::{Context as _, Result};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Map;
use std::fmt;

/// Where a story is played.
pub trait Stage {
    /// Plays an event, and looks.
    ///
    /// # Errors
    /// When the stage itself breaks down, which no event may bring about.
    fn play(&mut self, event: &Event) -> Result<Seen>;

    /// The events that stand for this one here; none where it cannot be played.
    fn events(&self, event: Event, truth: &Truth) -> Vec<Event> {
        let _ = truth;
        vec![event]
    }

    /// What the driver does when nobody waits for it may show a moment later. None: all there is to see was seen.
    ///
    /// # Errors
    /// As [`play`](Self::play).
    fn look_again(&mut self, seen: &Seen) -> Result<Option<Seen>> {
        let _ = seen;
        Ok(None)
    }

    /// What to write down of an event, so that it can be played again.
    fn script(&self, event: &Event) -> Vec<Event> {
        vec![event.clone()]
    }
}

/// What became of a story.
pub struct Told {
    /// Its events, as far as they were played.
    pub script: Vec<Event>,
    /// The rule that does not hold after the last one.
    pub violation: Option<Violation>,
    /// How many events were done, not refused.
    pub done: usize,
}

/// A node on which nothing has happened, with one of the [configurations](crate::configuration).
#[must_use]
pub fn new_node(machine: &Machine, which: u8) -> Truth {
    let mut truth = Truth::new(machine.clone(), Map::new());
    truth.config = config(&truth, which);
    truth.number_anew();
    truth
}

/// Plays a story on a new stage.
///
/// # Errors
/// When the stage breaks down.
pub fn tell(truth: Truth, stage: &mut dyn Stage, ops: &[Op]) -> Result<Told> {
    let mut telling = Telling::new(truth, stage);
    for op in ops {
        for event in op.events(&telling.judge.truth) {
            for event in telling.stage.events(event, &telling.judge.truth) {
                telling.go_on(&event)?;
            }
        }
    }
    Ok(telling.told)
}

/// Plays events that are known on a new stage.
///
/// # Errors
/// When the stage breaks down.
pub fn tell_events(truth: Truth, stage: &mut dyn Stage, events: &[Event]) -> Result<Told> {
    let mut telling = Telling::new(truth, stage);
    for event in events {
        telling.go_on(event)?;
    }
    Ok(telling.told)
}

struct Telling<'a> {
    judge: Judge,
    stage: &'a mut dyn Stage,
    told: Told,
}

impl<'a> Telling<'a> {
    fn new(truth: Truth, stage: &'a mut dyn Stage) -> Self {
        let told = Told { script: Vec::new(), violation: None, done: 0 };
        Self { judge: Judge::new(truth), stage, told }
    }

    /// Plays an event, unless a rule is broken already.
    fn go_on(&mut self, event: &Event) -> Result<()> {
        if self.told.violation.is_none() {
            self.told.script.extend(self.stage.script(event));
            let before = self.judge.clone();
            let mut seen = self.stage.play(event).with_context(|| lines(&self.told.script))?;
            self.told.done += usize::from(seen.answer.ok());
            let mut verdict = self.judge.judge(event, &seen);
            while verdict.is_err()
                && let Some(later) = self.stage.look_again(&seen)?
            {
                seen = later;
                self.judge.clone_from(&before);
                verdict = self.judge.judge(event, &seen);
            }
            self.told.violation = verdict.err();
        }
        Ok(())
    }
}

/// A story that fails, as short as it was found.
#[derive(Debug)]
pub struct Failure {
    /// The seed that gave the story.
    pub seed: u64,
    /// The machine.
    pub machine: String,
    /// The configuration at first.
    pub config: String,
    /// What does not hold.
    pub violation: Violation,
    /// The events.
    pub script: Vec<Event>,
}

/// Events as `dracpu simulate` reads them.
fn lines(script: &[Event]) -> String {
    script.iter().map(|event| serde_json::to_string(event).expect("events are JSON") + "\n").collect()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, machine, config, violation, script } = self;
        writeln!(f, "{violation}\n")?;
        writeln!(f, "SEED={seed}; to see it again:\n")?;
        writeln!(f, "echo '{config}' > config.yaml")?;
        writeln!(f, "dracpu simulate --machine={machine} --config=config.yaml --output=json - <<'END'")?;
        write!(f, "{}END", lines(script))
    }
}

/// Draws the story of this seed and plays it.
///
/// # Errors
/// The shortest story that was found to break the same rule.
pub fn play_seed(
    seed: u64,
    longest: usize,
    truth: &Truth,
    mut stage: impl FnMut() -> Result<Box<dyn Stage>>,
) -> Result<Told, Box<Failure>> {
    let mut runner = TestRunner::new_with_rng(Config::default(), rng(seed));
    let tree = story(longest).new_tree(&mut runner).expect("every story can be drawn");
    let mut play = |ops: &[Op]| {
        let told = stage().and_then(|mut stage| tell(truth.clone(), &mut *stage, ops));
        told.unwrap_or_else(|error| panic!("seed {seed}: {error:#}"))
    };
    let whole = tree.current();
    let told = play(&whole);
    let Some(violation) = &told.violation else { return Ok(told) };
    eprintln!("seed {seed} after {} events: {violation}; looking for a shorter story", told.script.len());
    let shortest = shortened(whole, told, play);
    Err(Box::new(Failure {
        seed,
        machine: truth.machine.name.clone(),
        config: serde_json::Value::from(truth.config.clone()).to_string(),
        violation: shortest.violation.expect("only stories that fail are kept"),
        script: shortest.script,
    }))
}

/// The shortest story that was found to break the same rule: parts are left out, halves first, single operations last.
fn shortened(mut ops: Vec<Op>, mut told: Told, mut play: impl FnMut(&[Op]) -> Told) -> Told {
    let rule = |told: &Told| told.violation.as_ref().map(|violation| violation.rule);
    let mut tries = 400;
    let mut part = ops.len().div_ceil(2);
    while part > 0 && tries > 0 {
        let (mut at, before) = (0, ops.len());
        while at < ops.len() && tries > 0 {
            tries -= 1;
            let mut fewer = ops.clone();
            fewer.drain(at..ops.len().min(at + part));
            let again = play(&fewer);
            if rule(&again) == rule(&told) {
                (ops, told) = (fewer, again);
            } else {
                at += part;
            }
        }
        // What could not be left out before may be left out now.
        part = if part == 1 && ops.len() < before { 1 } else { part / 2 };
    }
    told
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}
