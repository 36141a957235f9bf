//! The arguments of `tenure run`, from the table that the preloaded library also reads.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use tenure_options::{Kind, OptionRow, TABLE};

const ABOUT: &str = "Run a program with tenure under it";

const LONG_ABOUT: &str = "\
Run a program with tenure under it, unmodified

The program and its children get libtenure_preload.so through LD_PRELOAD, ahead of the \
libraries that LD_PRELOAD names already, and the options through environment variables, \
which can also be set directly. The library intercepts calls of the C library as the \
options say; without options it changes nothing. Where tenure cannot serve a call, or the \
kernel refuses, the library calls the next function of that name: the C library's, or that \
of another preloaded library. So it does for a range of more than 1024 mappings, of which \
tenure would need too much memory for a list.

The loader cannot preload into statically linked programs, programs for another processor \
or C library, and programs that gain rights when they are run (set-user-ID, set-group-ID, \
file capabilities); run refuses these with a message. When the program itself runs such a \
program, or one with an environment without these variables, that one runs without tenure.

tenure may start threads in the program; they block all signals. As in any program with \
threads, a signal handler that may have interrupted malloc must not call fork. tenure or \
others may use addresses that the program has unmapped: the program must not unmap them \
again, or map over them. Blocks of tenure's heap are valid for the standard malloc \
functions, but not for those of one allocator (mallocx, sdallocx). AddressSanitizer must be \
loaded first, and refuses to run.";

const EXIT_STATUS: &str = "\
Exit status:
  125  tenure itself failed, or the command line was wrong
  126  COMMAND was found but cannot be run, or not with the library preloaded
  127  COMMAND was not found
  else that of COMMAND, which replaces the tenure process";

const COMMAND: &str = "command";

/// Run a program with tenure under it
#[derive(Debug)]
pub struct RunArguments {
    /// The given options, each with the value of its environment variable.
    pub settings: Vec<(&'static OptionRow, OsString)>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
}

impl Args for RunArguments {
    fn augment_args(command: Command) -> Command {
        command
            .about(ABOUT)
            .long_about(LONG_ABOUT)
            .after_help(EXIT_STATUS)
            .args(TABLE.iter().map(argument))
            .arg(
                Arg::new(COMMAND)
                    .value_name("COMMAND")
                    .help("Program to run, and its arguments")
                    .required(true)
                    .num_args(1..)
                    .trailing_var_arg(true)
                    .value_parser(value_parser!(OsString)),
            )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn argument(row: &'static OptionRow) -> Arg {
    let (value, environment) = match row.kind {
        Kind::Switch => (None, format!("{}=1", row.variable)),
        Kind::Word(word) => (Some(word), format!("{}={word}", row.variable)),
        Kind::Size { .. } => (Some("SIZE"), format!("{}=SIZE", row.variable)),
    };
    let unit = match row.unit {
        Some(unit) => format!("SIZE is in {unit}, or ends in K, M, G or T (of 1024), as in 1.5G. "),
        None => String::new(),
    };
    let argument = Arg::new(row.flag).long(row.flag).help(row.help);
    let argument = argument.long_help(format!(
        "{}\n\n{}\n\n{unit}In the environment: {environment}. Default: {}.",
        row.help, row.when, row.default
    ));
    match value {
        None => argument.action(ArgAction::SetTrue),
        Some(value) => argument
            .value_name(value)
            .require_equals(true)
            .value_parser(move |text: &str| row.check(text).map(|()| text.to_owned())),
    }
}

impl FromArgMatches for RunArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let setting = |row: &'static OptionRow| {
            let value = match row.kind {
                Kind::Switch => matches.get_flag(row.flag).then(|| "1".to_owned()),
                _ => matches.get_one::<String>(row.flag).cloned(),
            };
            value.map(|value| (row, value.into()))
        };
        let command = matches.get_many::<OsString>(COMMAND).into_iter().flatten();
        Ok(Self {
            settings: TABLE.iter().filter_map(setting).collect(),
            command: command.cloned().collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};
    use super::*;

    fn run(line: &[&str]) -> Option<RunArguments> {
        let line = ["tenure", "run"].iter().chain(line);
        match Cli::try_parse_from(line).ok()?.command {
            Command::Run(arguments) => Some(arguments),
            _ => None,
        }
    }

    fn settings(line: &[&str]) -> Vec<(&'static str, OsString)> {
        let settings = run(line).unwrap().settings.into_iter();
        settings.map(|(row, value)| (row.variable, value)).collect()
    }

    #[test]
    fn options_set_their_environment_variables() {
        let all = [
            "--heap",
            "--heap-threshold=64K",
            "--munmap=background",
            "--discard=background",
            "--lock=onfault",
            "--populate=1.5G",
            "--exit=background",
            "--stats",
            "--verbose",
        ];
        assert_eq!(all.len(), TABLE.len());
        let line: Vec<_> = all.into_iter().chain(["--", "true"]).collect();
        let wanted = [
            ("TENURE_HEAP", "1".into()),
            ("TENURE_HEAP_THRESHOLD", "64K".into()),
            ("TENURE_MUNMAP", "background".into()),
            ("TENURE_DISCARD", "background".into()),
            ("TENURE_LOCK", "onfault".into()),
            ("TENURE_POPULATE", "1.5G".into()),
            ("TENURE_EXIT", "background".into()),
            ("TENURE_STATS", "1".into()),
            ("TENURE_VERBOSE", "1".into()),
        ];
        assert_eq!(settings(&line), wanted);
        assert_eq!(settings(&["true"]), []);
    }

    #[test]
    fn arguments_after_the_command_are_its_own() {
        let arguments = run(&["--heap", "ls", "--heap", "--", "-l"]).unwrap();
        assert_eq!(arguments.settings.len(), 1);
        assert_eq!(arguments.command, ["ls", "--heap", "--", "-l"]);
        assert_eq!(run(&["--", "-x"]).unwrap().command, ["-x"]);
    }

    #[test]
    fn values_that_no_option_accepts_are_refused() {
        for line in [
            &["--munmap=later", "true"][..],
            &["--munmap", "background", "true"],
            &["--heap=1", "true"],
            &["--heap-threshold=1K", "true"],
            &["--populate=0", "true"],
            &["--populate=1.5", "true"],
            &["--populate=99999999T", "true"],
            &["--heap"],
            &[],
        ] {
            assert!(run(line).is_none(), "{line:?}");
        }
    }
}
