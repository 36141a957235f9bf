//! The runner with a mock clock and mock work.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use anyhow::bail;

use super::*;
use crate::{
    machine::clock::mock::MockClock,
    measure::{Unit, Way},
};

const FIVE: Repeats = Repeats {
    rounds: 5,
    at_least: 3,
    of_long: 2,
    of_short: 20,
    within: Duration::from_secs(1000),
};

/// The names of the ways, in the order of their samples.
type Log = Rc<RefCell<Vec<String>>>;

/// A way whose parts take 10 ms, `milliseconds` and 10 ms.
fn way(name: &'static str, milliseconds: u64, clock: &Arc<MockClock>, log: &Log) -> Way {
    let (clocks, logs) = ([clock.clone(), clock.clone(), clock.clone()], log.clone());
    let [set_up_clock, work_clock, check_clock] = clocks;
    Way::new(
        name,
        move || {
            set_up_clock.pass(10);
            Ok(())
        },
        move |(), recorder| {
            recorder.time("time", || work_clock.pass(milliseconds));
            Ok(())
        },
        move |(), recorder| {
            logs.borrow_mut().push(name.to_owned());
            check_clock.pass(10);
            recorder.record("things", Unit::Count, 7.0);
            Ok(())
        },
    )
}

fn experiment(ways: Vec<Way>) -> Experiment {
    Experiment {
        title: String::new(),
        notes: Vec::new(),
        compared: "time",
        cases: vec![Case::new("case", ways)],
    }
}

fn tenure(measured: &[record::Case]) -> &Series {
    let way = measured[0].tenure().unwrap();
    way.times_as_good.as_ref().unwrap()
}

fn old_and_new(clock: &Arc<MockClock>, log: &Log) -> Experiment {
    experiment(vec![
        way("old", 300, clock, log).baseline(),
        way("new", 100, clock, log).tenure(),
    ])
}

#[test]
fn ways_take_turns_after_one_round_that_is_not_counted() {
    let (clock, log) = (Arc::new(MockClock::default()), Log::default());
    let mut samples = 0;
    let mut experiment = old_and_new(&clock, &log);
    let measured = measure(&mut experiment, FIVE, &*clock, &mut || samples += 1).unwrap();
    assert_eq!(measured[0].rounds, 5);
    assert_eq!(samples, sample_count(&experiment, FIVE));
    assert_eq!(log.borrow().len(), 12);
    assert!(log.borrow().chunks(2).all(|turn| turn == ["old", "new"]));
    assert_eq!(measured[0].ways[0].figures[0].series.samples.len(), 5);
}

#[test]
fn only_the_work_is_timed() {
    let (clock, log) = (Arc::new(MockClock::default()), Log::default());
    let mut experiment = old_and_new(&clock, &log);
    let measured = measure(&mut experiment, FIVE, &*clock, &mut || ()).unwrap();
    let case = &measured[0];
    let time = |name| {
        case.way(name)
            .unwrap()
            .figure("time")
            .unwrap()
            .series
            .median
    };
    assert_eq!((time("old"), time("new")), (0.3, 0.1));
    let things = case.way("new").unwrap().figure("things").unwrap();
    assert_eq!((things.unit, things.series.maximum), (Unit::Count, 7.0));
}

#[test]
fn slow_round_spreads_the_times_and_not_the_ratios() {
    let clock = Arc::new(MockClock::default());
    // The warm-up, and five rounds on a machine that is slower in the third.
    let slowness: [u64; 6] = [1, 1, 1, 4, 1, 2];
    let slowing = |name, milliseconds| {
        let (clock, mut round) = (clock.clone(), 0);
        Way::new(
            name,
            move || {
                round += 1;
                Ok(slowness[round - 1])
            },
            move |slowness, recorder| {
                recorder.time("time", || clock.pass(milliseconds * slowness));
                Ok(())
            },
            |(), _| Ok(()),
        )
    };
    let ways = vec![slowing("old", 300).baseline(), slowing("new", 100).tenure()];
    let measured = measure(&mut experiment(ways), FIVE, &*clock, &mut || ()).unwrap();
    let old = &measured[0]
        .way("old")
        .unwrap()
        .figure("time")
        .unwrap()
        .series;
    let expected = [0.3, 0.3, 1.2, 0.3, 0.6];
    assert_eq!(old.samples, expected, "in the order of the rounds");
    assert_eq!((old.minimum, old.median, old.maximum), (0.3, 0.3, 1.2));
    let ratio = tenure(&measured);
    assert_eq!(ratio.samples.len(), 5, "a pair for each round");
    assert!(ratio.samples.iter().all(|ratio| (ratio - 3.0).abs() < 1e-9));
}

#[test]
fn ratio_is_to_the_baseline() {
    let (clock, log) = (Arc::new(MockClock::default()), Log::default());
    let mut experiment = old_and_new(&clock, &log);
    let measured = measure(&mut experiment, FIVE, &*clock, &mut || ()).unwrap();
    let ratio = tenure(&measured);
    assert!((ratio.median - 3.0).abs() < 1e-9);
    assert!(measured[0].ways[0].times_as_good.is_none());
}

#[test]
fn case_may_compare_another_figure() {
    let (clock, log) = (Arc::new(MockClock::default()), Log::default());
    let mut experiment = old_and_new(&clock, &log);
    let case = experiment.cases.pop().unwrap();
    experiment.cases.push(case.comparing("things"));
    let measured = measure(&mut experiment, FIVE, &*clock, &mut || ()).unwrap();
    assert_eq!(measured[0].compared.as_deref(), Some("things"));
    assert_eq!(tenure(&measured).median, 1.0);
}

#[test]
fn rounds_stop_when_the_time_is_used_up_but_not_too_early() {
    let (clock, log) = (Arc::new(MockClock::default()), Log::default());
    // A round takes 440 ms: the warm-up and four rounds take 2.2 s.
    for (within_ms, rounds) in [(1, 3), (2_200, 4), (2_640, 5), (60_000, 5)] {
        let within = Duration::from_millis(within_ms);
        let repeats = Repeats { within, ..FIVE };
        let mut experiment = old_and_new(&clock, &log);
        let measured = measure(&mut experiment, repeats, &*clock, &mut || ()).unwrap();
        assert_eq!(measured[0].rounds, rounds, "within {within_ms} ms");
    }
}

#[test]
fn each_case_gets_its_share_of_the_time() {
    let (clock, log) = (Arc::new(MockClock::default()), Log::default());
    let mut experiment = experiment(vec![way("long", 980, &clock, &log)]);
    let short = Case::new("short", vec![way("short", 80, &clock, &log)]);
    experiment.cases.push(short);
    // The warm-up takes 1.1 s, which leaves 4 s and 0.4 s: four rounds of each.
    let within = Duration::from_millis(5_500);
    let repeats = Repeats { within, ..FIVE };
    let measured = measure(&mut experiment, repeats, &*clock, &mut || ()).unwrap();
    assert_eq!([measured[0].rounds, measured[1].rounds], [4, 4]);
    let long = ["long"; 4].iter();
    let expected: Vec<_> = ["long", "short"]
        .iter()
        .chain(long)
        .chain(&["short"; 4])
        .collect();
    assert_eq!(log.borrow().iter().collect::<Vec<_>>(), expected);
}

#[test]
fn wrong_answer_ends_the_experiment_and_is_named() {
    let clock = MockClock::default();
    let wrong = Way::new(
        "wrong",
        || Ok(()),
        |(), recorder| {
            recorder.time("time", || ());
            Ok(())
        },
        |(), _| bail!("the sum is 5, not 4"),
    );
    let error = measure(&mut experiment(vec![wrong]), FIVE, &clock, &mut || ()).unwrap_err();
    assert_eq!(
        format!("{error:#}"),
        "case, wrong: checking the answer: the sum is 5, not 4"
    );
}

#[test]
fn figure_missing_in_one_round_is_an_error() {
    let clock = MockClock::default();
    let mut calls = 0;
    let fickle = Way::new(
        "fickle",
        move || {
            calls += 1;
            Ok(calls)
        },
        |call, recorder| {
            if call != 3 {
                recorder.record("time", Unit::Seconds, 1.0);
            }
            Ok(())
        },
        |(), _| Ok(()),
    );
    let error = measure(&mut experiment(vec![fickle]), FIVE, &clock, &mut || ()).unwrap_err();
    assert!(format!("{error:#}").contains("the same figures"));
}

#[test]
fn long_case_gets_few_rounds_and_takes_no_time_from_others() {
    let (clock, log) = (Arc::new(MockClock::default()), Log::default());
    let mut experiment = experiment(vec![way("long", 9_980, &clock, &log)]);
    let cases = std::mem::take(&mut experiment.cases);
    experiment.cases.extend(cases.into_iter().map(Case::long));
    let short = Case::new("short", vec![way("short", 80, &clock, &log)]);
    experiment.cases.push(short);
    // The warm-up takes 0.1 s, which leaves 0.4 s for the short case.
    let within = Duration::from_millis(500);
    let repeats = Repeats { within, ..FIVE };
    let mut samples = 0;
    let measured = measure(&mut experiment, repeats, &*clock, &mut || samples += 1).unwrap();
    assert_eq!([measured[0].rounds, measured[1].rounds], [2, 4]);
    assert_eq!(samples, 7, "only the short case is warmed up");
    assert_eq!(sample_count(&experiment, repeats), 8, "at most");
}

#[test]
fn short_case_gets_many_rounds_and_the_time_for_them() {
    let (clock, log) = (Arc::new(MockClock::default()), Log::default());
    let mut experiment = experiment(vec![way("usual", 80, &clock, &log)]);
    let cases = std::mem::take(&mut experiment.cases);
    let short = Case::new("short", vec![way("short", 80, &clock, &log)]).short();
    experiment.cases.extend([short].into_iter().chain(cases));
    // The warm-up takes 0.2 s, 25 rounds take 2.5 s; with half of that the short
    // case gets 20 parts of 25.
    for (within_ms, rounds) in [(60_000, [20, 5]), (1_450, [10, 3])] {
        let within = Duration::from_millis(within_ms);
        let repeats = Repeats { within, ..FIVE };
        let measured = measure(&mut experiment, repeats, &*clock, &mut || ()).unwrap();
        assert_eq!([measured[0].rounds, measured[1].rounds], rounds);
    }
    assert_eq!(sample_count(&experiment, FIVE), 27);
}

#[test]
fn tenure_is_compared_with_every_way_and_with_its_best_choice() {
    let (clock, log) = (Arc::new(MockClock::default()), Log::default());
    let mut experiment = experiment(vec![
        way("old", 300, &clock, &log).baseline(),
        way("slow choice", 200, &clock, &log).choice(),
        way("fast choice", 80, &clock, &log).choice(),
        way("new", 100, &clock, &log).tenure(),
    ]);
    let measured = measure(&mut experiment, FIVE, &*clock, &mut || ()).unwrap();
    let ratio = |name| {
        let way = measured[0].way(name).unwrap();
        way.tenure_times_as_good.as_ref().map(|ratio| ratio.median)
    };
    assert!((ratio("old").unwrap() - 3.0).abs() < 1e-9);
    assert!((ratio("slow choice").unwrap() - 2.0).abs() < 1e-9);
    assert_eq!(ratio("new"), None);
    let choice = measured[0].choice.as_ref().unwrap();
    assert_eq!(choice.best, "fast choice");
    assert!((choice.tenure_worse_by - 0.25).abs() < 1e-9);
}
