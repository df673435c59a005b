//! `dracpu`: the daemon and its command line, see [`dracpu::cli`].

fn main() -> std::process::ExitCode {
    dracpu::cli::main(std::env::args_os())
}
