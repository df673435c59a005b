use super::super::cases::Setting;
use super::super::question::{Asked, Question};
use super::Failure;
use crate::strategy::{
    Decision, ExplicitCpuset, Fault, Holding, Loaded, Opened, Request, State, StrategyError,
};
use crate::words::counted;
use dracpu_cpuset::{CpuSet, Draw};
use serde_json::{Map, Value, json};

/// A strategy on trial, and what has been asked of it so far.
pub(super) struct Trial {
    loaded: Loaded,
    pub(super) counts: Counts,
    /// The first time that it refused a machine.
    refused: Option<String>,
    /// The first time that it did not give what it offers.
    unkept: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) machines: usize,
    /// A machine in a grouping, with options of the node.
    pub(super) settings: usize,
    pub(super) refused_settings: usize,
    /// In which it offered at least one claim's worth of CPUs.
    offering_settings: usize,
    pub(super) questions: usize,
    pub(super) granted: usize,
    pub(super) denied: usize,
}

/// A question whose answer breaks a rule.
#[derive(Debug)]
pub(super) struct Violation {
    /// With all that it takes to ask it again.
    question: Question,
    kind: &'static str,
    message: String,
}

impl Violation {
    /// One line of JSON, a question to `strategy decide`.
    pub(super) fn line(&self, number: usize) -> String {
        let violation = json!({ "kind": self.kind, "message": self.message });
        let question = Question { id: json!(number), violation, ..self.question.clone() };
        serde_json::to_string(&question).unwrap_or_default() // maps of text keys always can be written
    }
}

/// An answer in a sentence with all that it says: equal sentences, equal answers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    sentence: String,
    /// Whether it breaks a rule.
    broken: bool,
}

impl Trial {
    pub(super) fn new(loaded: Loaded) -> Self {
        Self { loaded, counts: Counts::default(), refused: None, unkept: None }
    }

    pub(super) fn loaded(&self) -> &Loaded {
        &self.loaded
    }

    /// Asks each question of a fresh instance, then all of one instance in this order and in another.
    pub(super) fn batch(
        &mut self,
        setting: &Setting,
        node_options: Map<String, Value>,
        questions: &[Question],
        draw: &mut Draw,
    ) -> Result<Vec<Violation>, Failure> {
        let asked = questions.iter().map(|question| question.asked(&setting.machine));
        let asked = asked.collect::<anyhow::Result<Vec<_>>>().map_err(Failure::Failed)?;
        let (opened, node_options) = self.open(setting, node_options);
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) if error.is_refusal() => {
                self.counts.refused_settings += 1;
                self.refused
                    .get_or_insert_with(|| format!("{}: {}", place(setting, &node_options), error.fault));
                return Ok(Vec::new());
            }
            Err(error) => {
                let first = questions.first().cloned().unwrap_or_default();
                let question =
                    Question { node_options: Some(node_options), before: Some(Vec::new()), ..first };
                return Ok(vec![broken(question, &error)?]);
            }
        };
        self.counts.settings += 1;
        self.counts.questions += questions.len();
        let offers = opened.offers().iter();
        self.counts.offering_settings +=
            usize::from(offers.clone().any(|offer| (1..=offer.capacity).contains(&offer.step)));
        let mut batch = Batch { questions, asked, opened, node_options, found: Vec::new() };
        let mut fresh = Vec::with_capacity(questions.len());
        for at in 0..questions.len() {
            let (decided, told) = batch.ask_fresh(at)?;
            self.counts.granted += usize::from(decided);
            self.counts.denied += usize::from(!decided && !told.broken);
            fresh.push(told);
        }
        let mut order: Vec<usize> = (0..questions.len()).collect();
        let mut shuffled = order.clone();
        draw.shuffle(&mut shuffled);
        order.extend(shuffled);
        batch.ask_used(&order, &fresh)?;
        let Batch { mut opened, node_options, found, .. } = batch;
        // Of its own, so that what is asked next does not depend on answers.
        let mut draw = Draw::of(draw.below(u32::MAX).into());
        if self.unkept.is_none() {
            let unkept = unkept(setting, &mut opened, &mut draw);
            self.unkept = unkept.map(|unkept| format!("{}: {unkept}", place(setting, &node_options)));
        }
        Ok(found)
    }

    /// What breaks no rule, but may not be meant: a sentence each.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = self.loaded.remarks();
        remarks.extend(self.refused.as_ref().map(|first| {
            let settings = counted(self.counts.refused_settings, "setting");
            format!("it refused to be opened in {settings}; first {first}")
        }));
        if self.counts.settings > 0 && self.counts.offering_settings == 0 {
            remarks.push("it offered no CPU of any device: a node would publish none".to_owned());
        }
        remarks.extend(self.unkept.as_ref().map(|first| {
            format!(
                "it refused a claim that its own offers have room for: the scheduler places such a claim, and its pod stays \
                 pending; first {first}"
            )
        }));
        remarks
    }

    /// Opens the strategy with these options of the node, or without any where it refuses them.
    fn open(
        &self,
        setting: &Setting,
        node_options: Map<String, Value>,
    ) -> (Result<Opened, StrategyError>, Map<String, Value>) {
        let open = |options: &Map<String, Value>| {
            let machine = &setting.machine;
            self.loaded.open(&machine.topology, &machine.reserved, &setting.groups, options)
        };
        match patiently(|| open(&node_options)) {
            Err(error) if error.is_refusal() && !node_options.is_empty() => {
                (patiently(|| open(&Map::new())), Map::new())
            }
            opened => (opened, node_options),
        }
    }
}

/// Where a strategy was opened, and with what.
fn place(setting: &Setting, node_options: &Map<String, Value>) -> String {
    let (machine, by) = (&setting.machine.name, setting.by.name());
    match node_options.is_empty() {
        true => format!("on the machine {machine}, groupBy {by}"),
        false => format!(
            "on the machine {machine}, groupBy {by}, with strategyOptions {}",
            Value::Object(node_options.clone())
        ),
    }
}

/// So many claims fill a device, or come and go.
const CLAIMS: usize = 20;

/// Claims one of the devices as the scheduler may, in multiples of the step up to the capacity: the first claim that is
/// refused.
fn unkept(setting: &Setting, opened: &mut Opened, draw: &mut Draw) -> Option<String> {
    if opened.strategy().description().explicit_cpuset == ExplicitCpuset::Required {
        return None; // it does not choose
    }
    let machine = &setting.machine;
    let devices: Vec<usize> = (0..setting.groups.len()).collect();
    let group = *draw.pick(&devices)?;
    let (device, offer) = (&setting.groups.get(group)?.device, opened.offers().get(group)?);
    let (capacity, step) = (offer.capacity, offer.step.max(1));
    let mut free = machine.topology.online().difference(&machine.reserved);
    let mut held: Vec<(u32, Holding)> = Vec::new();
    for _ in 0..CLAIMS {
        let used: u32 = held.iter().map(|(count, _)| count).sum();
        let room = capacity.saturating_sub(used) / step;
        if room == 0 || !held.is_empty() && draw.one_in(4) {
            let at = usize::try_from(draw.below(u32::try_from(held.len()).ok()?)).ok()?;
            if at < held.len() {
                let (_, Holding { cpus, blocked }) = held.swap_remove(at);
                free.extend_from(&cpus);
                free.extend_from(&blocked);
            }
            continue;
        }
        let count = step * (1 + draw.below(room.min(8)));
        let others = held.iter().map(|(_, holding)| holding.clone()).collect();
        let state = State { free: free.clone(), others };
        let request = Request {
            name: "r".to_owned(),
            group,
            count,
            cpuset: None,
            options: Map::new(),
            pcie_roots: Vec::new(),
        };
        match opened.decide_once(&[request], &state) {
            Ok(decision) => {
                let mut holding = Holding { cpus: CpuSet::new(), blocked: CpuSet::new() };
                for grant in &decision.grants {
                    holding.cpus.extend_from(&grant.cpus);
                    holding.blocked.extend_from(&grant.blocked);
                }
                free.subtract(&holding.cpus);
                free.subtract(&holding.blocked);
                held.push((count, holding));
            }
            Err(error) if error.is_refusal() => {
                return Some(format!(
                    "{device} offers {capacity} CPUs in steps of {step}, claims hold {used}, CPUs {free} are free on the \
                     machine, and a claim of {count} is refused: {}",
                    error.fault
                ));
            }
            Err(_) => return None, // a fault, which questions find
        }
    }
    None
}

/// A busy machine makes any strategy miss a deadline. It is the strategy's fault when it does so again and again.
fn patiently<T>(mut ask: impl FnMut() -> Result<T, StrategyError>) -> Result<T, StrategyError> {
    let missed = |answer: &Result<T, StrategyError>| {
        answer.as_ref().is_err_and(|error| matches!(*error.fault, Fault::DeadlineExceeded(_)))
    };
    let mut answer = ask();
    for _ in 0..2 {
        if missed(&answer) {
            answer = ask();
        }
    }
    answer
}

/// Questions to a strategy that was opened for them.
struct Batch<'a> {
    questions: &'a [Question],
    asked: Vec<Asked>,
    opened: Opened,
    node_options: Map<String, Value>,
    found: Vec<Violation>,
}

impl Batch<'_> {
    /// Asks a question of a fresh instance: whether it was granted, and what was said.
    fn ask_fresh(&mut self, at: usize) -> Result<(bool, Told), Failure> {
        let answer = patiently(|| {
            self.opened.start_afresh();
            self.ask(at)
        });
        let told = told(&answer);
        if let (Err(error), true) = (&answer, told.broken) {
            self.found.push(broken(self.question(at, &[]), error)?);
        }
        Ok((answer.is_ok(), told))
    }

    /// Asks the questions in this order of one instance, which must answer as a fresh one did.
    fn ask_used(&mut self, order: &[usize], fresh: &[Told]) -> Result<(), Failure> {
        self.opened.start_afresh();
        // What the instance has been asked so far.
        let mut history: Vec<usize> = Vec::new();
        for &at in order {
            let answer = self.ask(at);
            let (used, Some(fresh)) = (told(&answer), fresh.get(at)) else { continue };
            if used == *fresh && !used.broken {
                history.push(at);
                continue;
            }
            // What a busy machine did does not happen again.
            if used != *fresh && self.after(&history, at) == used {
                let history = self.shortest(&history, at, &used);
                let question = self.question(at, &history);
                self.found.push(match &answer {
                    Err(error) if used.broken => broken(question, error)?,
                    _ => differs(question, &used, fresh),
                });
            }
            self.opened.start_afresh();
            history.clear();
        }
        Ok(())
    }

    /// Those of the history that it takes for the question to be answered so: the end of it that is long enough,
    /// without what can be left out of that.
    fn shortest(&mut self, history: &[usize], at: usize, wrong: &Told) -> Vec<usize> {
        let lengths = (0..usize::BITS).map(|power| 1 << power).take_while(|length| *length < history.len());
        let ends = lengths.map(|length| history.get(history.len() - length..).unwrap_or_default());
        let mut end = ends.into_iter().find(|end| self.after(end, at) == *wrong).unwrap_or(history).to_vec();
        for position in (0..end.len()).rev() {
            let mut without = end.clone();
            without.remove(position);
            if self.after(&without, at) == *wrong {
                end = without;
            }
        }
        end
    }

    /// What a fresh instance says to a question after others.
    fn after(&mut self, earlier: &[usize], at: usize) -> Told {
        self.opened.start_afresh();
        for &earlier in earlier {
            let _again = self.ask(earlier);
        }
        told(&self.ask(at))
    }

    fn ask(&mut self, at: usize) -> Result<Decision, StrategyError> {
        let asked = self.asked.get(at).expect("each question has its terms");
        self.opened.decide_once(&asked.requests, &asked.state)
    }

    /// The question at a position, to be asked after others.
    fn question(&self, at: usize, before: &[usize]) -> Question {
        let question = |at: &usize| self.questions.get(*at).cloned().unwrap_or_default();
        let earlier = |at| Question { topology: None, group_by: None, ..question(at) };
        Question {
            node_options: Some(self.node_options.clone()).filter(|options| !options.is_empty()),
            before: Some(before.iter().map(earlier).collect()),
            ..question(&at)
        }
    }
}

/// What was said to a question.
fn told(answer: &Result<Decision, StrategyError>) -> Told {
    match answer {
        Ok(decision) => Told { sentence: granted(decision), broken: false },
        Err(error) if error.is_refusal() => {
            let request = error.denial().and_then(|denial| denial.request);
            let of = request.map(|at| format!(" of request {}", at + 1)).unwrap_or_default();
            Told { sentence: format!("a refusal{of}: {}", error.fault), broken: false }
        }
        // Where a guest crashes is not the same each time that it does.
        Err(error) => Told { sentence: error.kind().to_owned(), broken: true },
    }
}

fn granted(decision: &Decision) -> String {
    let grants = decision.grants.iter().map(|grant| {
        let mut text = format!("CPUs {}", grant.cpus);
        if !grant.blocked.is_empty() {
            text += &format!(" (blocked {})", grant.blocked);
        }
        if !grant.mems.is_empty() {
            text += &format!(" (memory of {:?})", grant.mems);
        }
        text
    });
    let shared = if decision.join_shared_pool { " and the shared pool" } else { "" };
    format!("{}{shared}, because: {}", grants.collect::<Vec<_>>().join(", "), decision.why)
}

/// An answer that breaks a rule.
fn broken(question: Question, error: &StrategyError) -> Result<Violation, Failure> {
    if error.is_of_host() {
        return Err(Failure::Failed(anyhow::anyhow!("{error}")));
    }
    Ok(Violation { question, kind: error.kind(), message: error.to_string() })
}

/// An answer other than that of a fresh instance.
fn differs(question: Question, used: &Told, fresh: &Told) -> Violation {
    let earlier = question.before.as_ref().map_or(0, Vec::len);
    let message = format!(
        "the answer depends on what was asked before: after {}, {}; asked first, {}",
        counted(earlier, "other question"),
        used.sentence,
        fresh.sentence
    );
    Violation { question, kind: "not-deterministic", message }
}
