use super::*;

fn arguments(experiments: &[Name]) -> BenchArguments {
    BenchArguments {
        experiments: experiments.to_vec(),
        quick: false,
        full: false,
        rounds: None,
        only: Vec::new(),
        json: false,
        record: None,
        seed: 1,
    }
}

#[test]
fn rounds_option_is_exact() {
    let arguments = BenchArguments {
        rounds: Some(7),
        ..arguments(&[])
    };
    let repeats = repeats(Name::Release, Sizes::Quick, &arguments);
    assert_eq!((repeats.rounds, repeats.at_least), (7, 7));
    assert_eq!((repeats.of_long, repeats.of_short), (7, 7));
}

#[test]
fn sizes_depend_on_options_and_named_experiments() {
    let all = [Name::Populate, Name::Lock, Name::Volatile, Name::Release];
    let of = |named: &[Name], quick, full| {
        let arguments = BenchArguments {
            quick,
            full,
            ..arguments(named)
        };
        all.map(|name| sizes(name, &arguments))
    };
    let (quick, medium, full) = (Sizes::Quick, Sizes::Medium, Sizes::Full);
    assert_eq!(of(&[], false, false), [medium, medium, quick, quick]);
    assert_eq!(of(&all, false, false), [full, medium, medium, medium]);
    for named in [&[], &all[..]] {
        assert_eq!(of(named, true, false), [quick; 4]);
        assert_eq!(of(named, false, true), [full; 4]);
    }
}

#[test]
fn time_of_all_is_less_than_a_minute_or_ten() {
    let seconds = |quick| {
        let arguments = BenchArguments {
            quick,
            ..arguments(&[])
        };
        let within = |&name: &Name| repeats(name, sizes(name, &arguments), &arguments).within;
        let all = arguments.chosen();
        all.iter().map(|name| within(name).as_secs()).sum::<u64>()
    };
    // Preparing them, and the long cases, take the rest.
    assert!(seconds(true) <= 40);
    assert!(seconds(false) <= 450);
}
