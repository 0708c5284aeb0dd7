//! `tanit completions` and `tanit man`.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{
    Cli, Context,
    exit::{Doing as _, Exit, Failure},
};

/// Print the completion script of a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit completions bash > /etc/bash_completion.d/tanit
  source <(tanit completions zsh)")]
pub(super) struct Completions {
    /// Shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual page (roff), or write the pages of all commands into a directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tanit man | man -l -
  tanit man --out /usr/local/share/man/man1")]
pub(super) struct Man {
    /// Directory for tanit.1, tanit-serve.1 and so on.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Completions {
    pub(super) fn run(self, context: &mut Context) -> Exit {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "tanit", &mut script);
        context.output.raw(&script);
        Exit::Done
    }
}

impl Man {
    pub(super) fn run(self, context: &mut Context) -> Result<Exit, Failure> {
        let command = Cli::command();
        if let Some(directory) = self.out {
            std::fs::create_dir_all(&directory)
                .doing(format_args!("make {}", directory.display()))?;
            clap_mangen::generate_to(command, &directory)
                .doing(format_args!("write into {}", directory.display()))?;
        } else {
            let mut page = Vec::new();
            clap_mangen::Man::new(command)
                .render(&mut page)
                .doing("write the page")?;
            context.output.raw(&page);
        }
        Ok(Exit::Done)
    }
}
