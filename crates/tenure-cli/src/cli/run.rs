//! The arguments of `tenure run`, from the table that the preloaded library also reads.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches, ValueEnum, value_parser};
use tenure_options::{Kind, OFF, OptionRow, TABLE};

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
functions, but not for those of one allocator (by dlsym sdallocx, __libc_free), nor in a \
library that is loaded with RTLD_DEEPBIND, which calls the C library's. AddressSanitizer must \
be loaded first, and refuses to run.";

const EXIT_STATUS: &str = "\
Exit status:
  125  tenure itself failed, or the command line was wrong
  126  COMMAND was found but cannot be run, or not with the library preloaded
  127  COMMAND was not found
  else that of COMMAND, which replaces the tenure process";

const CONFIG_HELP: &str = "Take options from FILE; those of the command line win";

const CONFIG_LONG_HELP: &str = "\
Take options from FILE; those of the command line win

A line has an option without its dashes and, after \"=\", its value: \"munmap = background\". \
A switch may stand alone: \"heap\". Empty lines are skipped, and lines that begin with \"#\". \
An unknown option, a wrong value, and an option that is set twice are errors.";

const PRINT_HELP: &str = "Print the environment that COMMAND would get, and run nothing";

const PRINT_LONG_HELP: &str = "\
Print the environment that COMMAND would get, and run nothing

As a shell takes it (export), a unit of systemd (Environment=, below [Service]), or a \
container of a pod (a list for env:). The library must be at the same path there. What \
LD_PRELOAD and TENURE_ variables say here is left out.";

const COMMAND: &str = "command";
const CONFIG: &str = "config";
const PRINT: &str = "print-environment";

/// The forms in which an environment can be printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Commands of a POSIX shell
    Shell,
    /// Lines of a unit, below its section Service
    Systemd,
    /// A container's env in YAML
    Pod,
}

/// Run a program with tenure under it
#[derive(Debug)]
pub struct RunArguments {
    /// The given options, each with the value of its environment variable.
    pub settings: Vec<(&'static OptionRow, OsString)>,
    /// The file with more options.
    pub config: Option<PathBuf>,
    /// The form in which to print the environment instead of running the command.
    pub print_environment: Option<Form>,
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
                Arg::new(CONFIG)
                    .long(CONFIG)
                    .value_name("FILE")
                    .help(CONFIG_HELP)
                    .long_help(CONFIG_LONG_HELP)
                    .value_parser(value_parser!(PathBuf)),
            )
            .arg(
                Arg::new(PRINT)
                    .long(PRINT)
                    .value_name("FORM")
                    .help(PRINT_HELP)
                    .long_help(PRINT_LONG_HELP)
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("shell")
                    .conflicts_with(COMMAND)
                    .value_parser(value_parser!(Form)),
            )
            .arg(
                Arg::new(COMMAND)
                    .value_name("COMMAND")
                    .help("Program to run, and its arguments")
                    .required_unless_present(PRINT)
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
    let (value, unit) = match row.kind {
        Kind::Switch => ("1", String::new()),
        Kind::Word(word) => (word, String::new()),
        Kind::Size { .. } => (
            "SIZE",
            "SIZE is in bytes, or ends in K, M, G or T (of 1024), as in 1.5G. ".to_owned(),
        ),
        Kind::Duration => (
            "TIME",
            "TIME is 0, or a whole number of ms, s, min or h, as in 500ms. ".to_owned(),
        ),
    };
    let argument = Arg::new(row.flag).long(row.flag).help(row.help);
    let argument = argument
        .long_help(format!(
            "{}\n\n{}\n\n{unit}In the environment: {}={value}. Default: {}.",
            row.help, row.when, row.variable, row.default
        ))
        .value_name(value)
        .require_equals(true)
        .value_parser(move |text: &str| row.check(text).map(|()| text.to_owned()));
    match row.kind {
        Kind::Switch => argument
            .value_name(OFF)
            .num_args(0..=1)
            .default_missing_value("1"),
        _ => argument,
    }
}

impl FromArgMatches for RunArguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let setting = |row: &'static OptionRow| {
            let value = matches.get_one::<String>(row.flag)?;
            Some((row, value.into()))
        };
        let command = matches.get_many::<OsString>(COMMAND).into_iter().flatten();
        Ok(Self {
            settings: TABLE.iter().filter_map(setting).collect(),
            config: matches.get_one(CONFIG).cloned(),
            print_environment: matches.get_one(PRINT).copied(),
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
            "--heap-dirty-decay=100ms",
            "--heap-muzzy-decay=0",
            "--munmap=background",
            "--discard=background",
            "--lock=onfault",
            "--populate=1.5G",
            "--pool=1G",
            "--pool-released",
            "--exit=background",
            "--sqlite-cache",
            "--stats",
            "--verbose",
        ];
        assert_eq!(all.len(), TABLE.len());
        let line: Vec<_> = all.into_iter().chain(["--", "true"]).collect();
        let wanted = [
            ("TENURE_HEAP", "1".into()),
            ("TENURE_HEAP_THRESHOLD", "64K".into()),
            ("TENURE_HEAP_DIRTY_DECAY", "100ms".into()),
            ("TENURE_HEAP_MUZZY_DECAY", "0".into()),
            ("TENURE_MUNMAP", "background".into()),
            ("TENURE_DISCARD", "background".into()),
            ("TENURE_LOCK", "onfault".into()),
            ("TENURE_POPULATE", "1.5G".into()),
            ("TENURE_POOL", "1G".into()),
            ("TENURE_POOL_RELEASED", "1".into()),
            ("TENURE_EXIT", "background".into()),
            ("TENURE_SQLITE_CACHE", "1".into()),
            ("TENURE_STATS", "1".into()),
            ("TENURE_VERBOSE", "1".into()),
        ];
        assert_eq!(settings(&line), wanted);
        assert_eq!(settings(&["true"]), []);
    }

    #[test]
    fn off_is_a_value_of_every_option() {
        for row in &TABLE {
            let line = [&format!("--{}=off", row.flag), "true"];
            assert_eq!(settings(&line), [(row.variable, "off".into())]);
        }
        assert_eq!(
            settings(&["--heap=1", "true"]),
            [("TENURE_HEAP", "1".into())]
        );
    }

    #[test]
    fn environment_is_printed_without_a_command() {
        let form = |line: &[&str]| run(line).and_then(|arguments| arguments.print_environment);
        assert_eq!(form(&["--print-environment"]), Some(Form::Shell));
        assert_eq!(form(&["--print-environment=systemd"]), Some(Form::Systemd));
        assert_eq!(form(&["true"]), None);
        assert!(run(&["--print-environment", "true"]).is_none());
        assert!(run(&["--print-environment=unit"]).is_none());
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
            &["--heap=2", "true"],
            &["--heap-muzzy-decay=5", "true"],
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
