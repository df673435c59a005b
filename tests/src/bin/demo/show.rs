//! What the person in front of the terminal sees.
#![expect(clippy::print_stdout, reason = "the demo is a show on the terminal")]

use dracpu_cpuset::CpuSet;
use dracpu_topology::{Drawing, Mark, Topology};
use std::io::IsTerminal;
use std::process::ExitCode;

pub(crate) struct Show {
    colour: bool,
    steps: u32,
    passed: u32,
    failed: u32,
}

impl Show {
    pub(crate) fn new() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { colour, steps: 0, passed: 0, failed: 0 }
    }

    /// Begins a chapter.
    pub(crate) fn step(&mut self, title: &str) {
        self.steps += 1;
        println!("\n{}", self.paint("1;36", &format!("━━ {}  {title}", self.steps)));
    }

    pub(crate) fn says(&self, text: &str) {
        println!("   {text}");
    }

    /// Somebody else's words.
    pub(crate) fn quote(&self, text: &str) {
        println!("   {}", self.paint("33", &format!("“{text}”")));
    }

    /// A statement that must be true.
    pub(crate) fn check(&mut self, statement: &str, holds: bool) {
        if holds {
            self.passed += 1;
            println!("   {} {statement}", self.paint("32", "✓"));
        } else {
            self.failed += 1;
            println!(
                "   {} {}",
                self.paint("1;31", "✗"),
                self.paint("1;31", &format!("not so: {statement}"))
            );
        }
    }

    /// The machine with who has which CPU.
    pub(crate) fn draw(
        &self,
        topology: &Topology,
        reserved: &CpuSet,
        shared: &CpuSet,
        claims: &[(char, &str, CpuSet)],
    ) {
        let mut drawing = Drawing::new(topology)
            .colour(self.colour)
            .mark(shared, Mark::Shared)
            .mark(reserved, Mark::Reserved);
        for (letter, name, cpus) in claims {
            drawing = drawing.mark(cpus, Mark::Claim(*letter)).name(*letter, *name);
        }
        for line in drawing.to_string().lines() {
            println!("   {line}");
        }
    }

    /// The closing line, and the exit code that goes with it.
    pub(crate) fn close(&self) -> ExitCode {
        println!("\n{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 && self.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn paint(&self, colours: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{colours}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
