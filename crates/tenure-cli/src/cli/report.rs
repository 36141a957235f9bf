//! `tenure report`: its arguments.

use std::path::PathBuf;

use clap::Args;

use super::EXIT_STATUS;

/// Make one page of what `tenure bench --json` has printed
///
/// The page has, for each experiment, a sentence that says what came out, plots,
/// all figures as tables, and the ratios of the published reference figures beside
/// those measured here. It is one HTML file that needs no network and no script;
/// it can be printed, and read on a phone. Experiments that this version does not
/// know are shown as tables and plots as well.
///
/// Several records of the same experiment stand side by side: of two machines, or
/// of before and after a change. Records of different experiments become one page.
///
///   tenure bench --quick --json | tenure report -o page.html
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS, verbatim_doc_comment)]
pub struct ReportArguments {
    /// Files with what `tenure bench --json` has printed, or - for standard input
    /// [default: -]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Make Markdown instead of HTML: the sentences and the tables, without plots
    #[arg(long)]
    pub markdown: bool,

    /// Write to PAGE and print that path, instead of writing to standard output
    #[arg(short, long, value_name = "PAGE")]
    pub output: Option<PathBuf>,
}
