//! Compiling in a process of its own: a component can take more memory than the daemon may have, and more time than
//! anybody waits, and must not take the daemon with it.

use super::Patience;
use crate::strategy::component::{ComponentFault, clause};
use crate::strategy::engine;
use crate::words::counted;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, kill_process, set_parent_process_death_signal, setrlimit,
};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use wasmparser::{Parser, Payload};

/// What the compiler takes for a byte of WebAssembly code, as measured on components of interpreted languages, and to
/// begin with. Code alone counts: such a component is also its interpreter's memory, which is only copied.
const MEMORY_PER_BYTE_OF_CODE: u64 = 44;
const MEMORY_TO_BEGIN_WITH: u64 = 16 << 20;

/// The longest message that a child may leave.
const MOST_BYTES_OF_A_MESSAGE: u64 = 4096;

/// Between two looks at whether somebody still waits.
const LOOK: Duration = Duration::from_millis(20);

/// A process of this program that compiles one component: what it does, in the child.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Most bytes of memory to take
    #[arg(long)]
    memory_bytes: Option<u64>,
}

/// Compiles the component on standard input to standard output. For this program's own use. Why it fails goes to
/// standard error, as one clause.
pub(crate) fn run(args: &Args) -> ExitCode {
    let unwritten = |error: io::Error| {
        let _unwritable = writeln!(io::stderr(), "{error}");
        ExitCode::from(NOT_WRITTEN)
    };
    match compile_here(args) {
        Ok(code) => {
            let mut out = io::stdout().lock();
            out.write_all(&code).and_then(|()| out.flush()).map_or_else(unwritten, |()| ExitCode::SUCCESS)
        }
        Err(error) if is_out_of_memory(&error) => ExitCode::from(OUT_OF_MEMORY),
        Err(error) => {
            // Nobody is left to tell when that fails.
            let _unwritable = writeln!(io::stderr(), "{}", clause(&error));
            ExitCode::FAILURE
        }
    }
}

fn is_out_of_memory(error: &wasmtime::Error) -> bool {
    // A thread that gets no stack says that it is to be tried again.
    let of_io =
        |error: &io::Error| matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock);
    error.is::<wasmtime::error::OutOfMemory>() || error.downcast_ref::<io::Error>().is_some_and(of_io)
}

fn compile_here(args: &Args) -> wasmtime::Result<Vec<u8>> {
    // Nobody waits once the process that has started this one is gone.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Should memory run out all the same, this process is the one to go.
    let _as_it_was = std::fs::write("/proc/self/oom_score_adj", "1000");
    if let Some(bytes) = args.memory_bytes {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        setrlimit(Resource::Data, limit)?;
    }
    let mut component = Vec::new();
    io::stdin().read_to_end(&mut component)?;
    engine::start()?.precompile_component(&component)
}

/// What a child may take to compile a component.
#[derive(Debug)]
pub(super) struct Child<'a> {
    /// Most bytes of memory; none where there is no limit.
    pub(super) memory: Option<u64>,
    /// How long somebody waits.
    pub(super) patience: &'a Patience,
    /// Most time, however long somebody waits.
    pub(super) longest: Duration,
}

/// Why a child was ended before it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// Nobody waits any more.
    LeftAlone,
    /// It took the most time that any may take.
    TooLong,
}

impl Child<'_> {
    /// Has a component compiled into a file. Blocking; half a minute for the largest. The inner error: the file cannot
    /// take the code.
    pub(super) fn compile(&self, component: &[u8], into: &File) -> Result<io::Result<()>, ComponentFault> {
        let failed = |what: &str, error: io::Error| ComponentFault::NotCompiled(format!("{what}: {error}"));
        let mut command = Command::new("/proc/self/exe");
        command.arg0("dracpu").args(["strategy", "compile"]);
        if let Some(bytes) = self.memory {
            command.arg(format!("--memory-bytes={bytes}"));
        }
        let into = into
            .try_clone()
            .map_err(|error| failed("the file for the compiled code cannot be used", error))?;
        command.stdin(Stdio::piped()).stdout(into).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed("the compiler cannot be started", error))?;
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let mut message = Vec::new();
        let pid = Pid::from_child(&child);
        let cut = thread::scope(|scope| {
            let (at_work, ended) = channel::<()>();
            let watch = scope.spawn(move || self.watch(pid, &ended));
            // A child that ends early says why itself.
            let _ended = stdin.map(|mut stdin| stdin.write_all(component));
            if let Some(stderr) = stderr {
                let _unreadable = stderr.take(MOST_BYTES_OF_A_MESSAGE).read_to_end(&mut message);
            }
            drop(at_work);
            watch.join().unwrap_or_default()
        });
        // Only now: until then its number is nobody else's.
        let status = child.wait().map_err(|error| failed("the compiler cannot be waited for", error))?;
        if status.success() {
            return Ok(Ok(()));
        }
        match cut {
            Some(Cut::LeftAlone) => return Err(ComponentFault::Compiling),
            Some(Cut::TooLong) => {
                let minutes = usize::try_from(self.longest.as_secs() / 60).unwrap_or(usize::MAX);
                let minutes = counted(minutes, "minute");
                return Err(ComponentFault::NotCompiled(format!(
                    "the compiler was stopped after {minutes}; report it to the strategy's author"
                )));
            }
            None => {}
        }
        // Rust aborts when memory is refused; the kernel kills when there is none.
        let out_of_memory = matches!(status.signal(), Some(SIGABRT | SIGKILL))
            || status.code().is_some_and(|code| code == i32::from(OUT_OF_MEMORY));
        if let (true, Some(left)) = (out_of_memory, self.memory) {
            // An estimate that turned out too low says nothing.
            let needed = Some(needed(component)).filter(|needed| *needed > left);
            return Err(ComponentFault::NoMemory { needed, left });
        }
        let message = String::from_utf8_lossy(&message);
        if status.code() == Some(i32::from(NOT_WRITTEN)) {
            return Ok(Err(io::Error::other(message.trim().to_owned())));
        }
        match (status.code(), message.trim()) {
            (Some(1), message) if !message.is_empty() => Err(ComponentFault::Invalid(message.to_owned())),
            (_, message) => {
                Err(ComponentFault::NotCompiled(format!("the compiler ended with {status}: {message}")))
            }
        }
    }

    /// Ends the child when nobody waits for it any more, or it takes too long. Returns when it has ended.
    fn watch(&self, pid: Pid, ended: &Receiver<()>) -> Option<Cut> {
        let started = Instant::now();
        let cut = loop {
            if ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Disconnected) {
                return None;
            }
            let is_left = match self.patience {
                Patience::Until(end) => Instant::now() >= *end,
                Patience::Unless(called_off) => called_off.is_cancelled(),
            };
            if is_left {
                break Cut::LeftAlone;
            }
            if started.elapsed() >= self.longest {
                break Cut::TooLong;
            }
        };
        let _has_ended = kill_process(pid, Signal::KILL);
        Some(cut)
    }
}

/// The exit code of a child whose memory did not suffice.
const OUT_OF_MEMORY: u8 = 12;
/// The exit code of a child that could not write what it had compiled.
const NOT_WRITTEN: u8 = 13;
const SIGABRT: i32 = 6;
const SIGKILL: i32 = 9;

/// About how many bytes of memory it takes to compile a component.
fn needed(component: &[u8]) -> u64 {
    let code_bytes = |payload| match payload {
        Payload::CodeSectionStart { size, .. } => u64::from(size),
        _ => 0,
    };
    let payloads = Parser::new(0).parse_all(component).map_while(Result::ok);
    let code: u64 = payloads.map(code_bytes).sum();
    let itself = u64::try_from(component.len()).unwrap_or(u64::MAX);
    code.saturating_mul(MEMORY_PER_BYTE_OF_CODE).saturating_add(itself).saturating_add(MEMORY_TO_BEGIN_WITH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_util::sync::CancellationToken;

    #[test]
    fn code_in_modules_takes_memory_and_data_hardly_any() {
        let of = |field: &str| {
            let component = wat::parse_str(format!("(component (core module (memory 1) {field}))")).unwrap();
            (component.len() as u64, needed(&component))
        };
        let data = of(&format!("(data (i32.const 0) \"{}\")", "x".repeat(10_000)));
        let code = of(&format!("(func {})", "nop ".repeat(10_000)));
        assert_eq!(data.1, MEMORY_TO_BEGIN_WITH + data.0);
        let for_code = code.1 - MEMORY_TO_BEGIN_WITH - code.0;
        assert!((10_000..10_020).contains(&(for_code / MEMORY_PER_BYTE_OF_CODE)), "{for_code}");
        assert_eq!(needed(b"no component"), MEMORY_TO_BEGIN_WITH + 12);
    }

    #[test]
    fn a_compiler_that_nobody_waits_for_is_ended() {
        let hour = Duration::from_hours(1);
        let called_off = CancellationToken::new();
        called_off.cancel();
        for (patience, longest, expected) in [
            (Patience::Until(Instant::now()), hour, Some(Cut::LeftAlone)),
            (Patience::Unless(called_off), hour, Some(Cut::LeftAlone)),
            (Patience::Unless(CancellationToken::new()), Duration::ZERO, Some(Cut::TooLong)),
        ] {
            let mut sleeper = Command::new("sleep").arg("3600").spawn().unwrap();
            let (_at_work, ended) = channel();
            let child = Child { memory: None, patience: &patience, longest };
            assert_eq!(child.watch(Pid::from_child(&sleeper), &ended), expected);
            assert_eq!(sleeper.wait().unwrap().signal(), Some(SIGKILL));
        }
        let (at_work, ended) = channel();
        drop(at_work);
        let child = Child { memory: None, patience: &Patience::Until(Instant::now()), longest: hour };
        assert_eq!(child.watch(rustix::process::getpid(), &ended), None);
    }
}
