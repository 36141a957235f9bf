use clap::Parser as _;

use super::*;

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    arguments: BenchArguments,
}

fn bench(line: &[&str]) -> BenchArguments {
    let line = ["bench"].iter().chain(line);
    Cli::try_parse_from(line).unwrap().arguments
}

#[test]
fn no_name_means_all_six_in_order() {
    let names: Vec<_> = bench(&[])
        .chosen()
        .iter()
        .map(|name| name.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "populate",
            "lock",
            "lazy_free",
            "volatile",
            "release",
            "heap"
        ]
    );
}

#[test]
fn names_keep_their_order_and_run_once() {
    assert_eq!(
        bench(&["release", "lazy_free", "release"]).chosen(),
        [Name::Release, Name::LazyFree]
    );
}

#[test]
fn only_option_keeps_the_sizes_of_all() {
    let arguments = bench(&["--only", "release,lazy_free", "--only=release"]);
    let chosen = [Name::Release, Name::LazyFree];
    assert_eq!(arguments.chosen(), chosen);
    assert!(arguments.experiments.is_empty());
    let both = ["bench", "lock", "--only", "lazy_free"];
    assert!(Cli::try_parse_from(both).is_err());
}

#[test]
fn names_on_the_command_line_are_the_names_in_the_report() {
    for name in Name::value_variants() {
        assert_eq!(name.to_possible_value().unwrap().get_name(), name.as_str());
    }
}

#[test]
fn quick_and_full_exclude_each_other() {
    let both = ["bench", "lock", "--quick", "--full"];
    assert!(Cli::try_parse_from(both).is_err());
}
