//! Parses the command line, runs the verb, returns its exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    tanit::cli::run(std::env::args_os())
}
