//! The command line: one file per subcommand. Bare `dracpu [flags]` is the daemon.
