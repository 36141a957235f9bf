//! Sentences about the figures of an experiment; data/findings.json names the figures
//! that are compared.

use std::sync::OnceLock;

use serde::Deserialize;

use crate::record::{Better, Case, Experiment, Figure, Series, Way};
use crate::text::{median_text, significant};

/// A figure of one way that is compared with the same figure of another way.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selector {
    pub experiment: String,
    /// The beginning of the sentence, with `{case}` and `{table}` in it.
    pub what: String,
    /// A part of the title of the table.
    #[serde(default)]
    pub table: String,
    /// The beginning of the case's name.
    #[serde(default)]
    pub case: String,
    /// Parts that neither the table's title nor the case's name has.
    #[serde(default)]
    pub without: Vec<String>,
    pub figure: String,
    /// A way's name, or "tenure", "baseline", or "best other": the best of those
    /// that are not tenure's.
    #[serde(default = "tenure")]
    pub way: String,
    #[serde(default = "baseline")]
    pub baseline: String,
    #[serde(default)]
    pub which: Which,
    /// Stands for `what` in the headline, if the headline of the experiment is this one.
    #[serde(default)]
    pub headline: Option<String>,
}

fn tenure() -> String {
    "tenure".to_owned()
}

fn baseline() -> String {
    "baseline".to_owned()
}

/// Which of the cases that fit are meant.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    First,
    #[default]
    Last,
    Each,
    /// The one with the largest figure of the baseline.
    Largest,
    /// The one with the least ratio.
    Worst,
}

/// Two figures of a case that a selector compares.
pub struct Finding<'a> {
    pub selector: &'a Selector,
    pub case: &'a Case,
    pub way: &'a Way,
    pub own: &'a Figure,
    pub baseline: &'a Way,
    pub older: &'a Figure,
    /// How many times as good `own` is as `older`, pair by pair; `None` where there
    /// is one round, which says nothing of the spread, or are no pairs.
    pub ratio: Option<Series>,
}

/// Finds the way that a selector names; `own` is the figure that its figure is
/// compared with.
fn pick<'a>(name: &str, case: &'a Case, own: Option<&Figure>) -> Option<&'a Way> {
    let ratio = |way: &Way| own?.times_as_good(way.figure(&own?.name)?);
    match name {
        "tenure" => case.tenure(),
        "baseline" => case.baseline(),
        "best other" => {
            let others = case.ways.iter().filter(|way| !way.is_tenure);
            others.min_by(|a, b| median(&ratio(a)).total_cmp(&median(&ratio(b))))
        }
        name => case.way(name),
    }
}

/// Returns the median of a ratio; more than any where there is none.
fn median(ratio: &Option<Series>) -> f64 {
    ratio.as_ref().map_or(f64::INFINITY, |ratio| ratio.median)
}

pub fn selectors() -> &'static [Selector] {
    static ALL: OnceLock<Vec<Selector>> = OnceLock::new();
    ALL.get_or_init(|| {
        let text = include_str!("../../data/findings.json");
        serde_json::from_str(text).expect("the selectors are valid")
    })
}

/// Finds what `selector` selects in `experiment`; nothing where the record lacks it.
pub fn find<'a>(selector: &'a Selector, experiment: &'a Experiment) -> Vec<Finding<'a>> {
    let cases = experiment.cases.iter();
    let mut found: Vec<_> = cases.filter_map(|case| selector.find(case)).collect();
    match selector.which {
        Which::Each | Which::First => {}
        Which::Last => found.reverse(),
        Which::Largest => {
            found.sort_by(|a, b| b.older.series.median.total_cmp(&a.older.series.median));
        }
        Which::Worst => found.sort_by(|a, b| median(&a.ratio).total_cmp(&median(&b.ratio))),
    }
    if selector.which != Which::Each {
        found.truncate(1);
    }
    found
}

impl Selector {
    fn find<'a>(&'a self, case: &'a Case) -> Option<Finding<'a>> {
        let has_not = |part: &String| !case.table.contains(part) && !case.name.contains(part);
        let is_meant = case.table.contains(&self.table)
            && case.name.starts_with(&self.case)
            && self.without.iter().all(has_not);
        let way = pick(&self.way, case, None).filter(|_| is_meant)?;
        let own = way.figure(&self.figure)?;
        let baseline = pick(&self.baseline, case, Some(own))?;
        let older = baseline.figure(&self.figure)?;
        let ratio = own.times_as_good(older).filter(|_| case.rounds > 1);
        (way.name != baseline.name).then_some(Finding {
            selector: self,
            case,
            way,
            own,
            baseline,
            older,
            ratio,
        })
    }
}

impl Finding<'_> {
    /// Returns the selector's words for what is compared, with the names of the case.
    pub fn what(&self, words: &str) -> String {
        let words = words.replace("{case}", &self.case.name);
        words.replace("{table}", &self.case.table)
    }

    fn ratio_of_medians(&self) -> f64 {
        let ratio = self.own.series.median / self.older.series.median;
        match self.own.unit.better() {
            Better::Less => 1.0 / ratio,
            Better::More => ratio,
        }
    }

    pub fn sentence(&self) -> String {
        // A name with a comma in it would tear the sentence.
        let name = |way: &Way| match way.name.contains(',') {
            true => format!("\"{}\"", way.name),
            false => way.name.clone(),
        };
        let (own, older) = (median_text(self.own), median_text(self.older));
        let (way, baseline) = (name(self.way), name(self.baseline));
        let ratio = match &self.ratio {
            None => String::new(),
            Some(ratio) => {
                let subject = if self.way.is_tenure { "tenure" } else { &way };
                // The figures are medians of all rounds, the ratio is taken within each.
                let contradicts = (ratio.median - 1.0) * (self.ratio_of_medians() - 1.0) < 0.0;
                let ratio = match ratio.median {
                    ratio if self.own.unit.good() == "fast" => {
                        format!("{subject} is {} times as fast", significant(ratio))
                    }
                    ratio @ 1.0.. => format!("{subject} has 1/{} of it", significant(ratio)),
                    ratio => format!("{subject} has {} times as much", significant(1.0 / ratio)),
                };
                match contradicts {
                    true => format!(", within what the rounds spread (round by round {ratio})"),
                    false => format!(": {ratio}"),
                }
            }
        };
        format!(
            "{} {own} with {way} and {older} with {baseline}{ratio}.",
            self.what(&self.selector.what)
        )
    }
}

/// Says in sentences what the figures of `experiment` say: what the selectors find,
/// then how often tenure's way is the better one.
pub fn sentences(experiment: &Experiment) -> Vec<String> {
    if let Some(error) = &experiment.error {
        return vec![format!("It was not measured: {error}.")];
    }
    let own = selectors()
        .iter()
        .filter(|one| one.experiment == experiment.name);
    let found = own.flat_map(|selector| find(selector, experiment));
    let sentences = found.map(|finding| finding.sentence());
    sentences.chain([overview(experiment)]).collect()
}

/// Says how often tenure's way is the better one, beyond what the pairs spread,
/// and between which ratios.
pub fn overview(experiment: &Experiment) -> String {
    let ratio = |case| Some((case, Case::tenure(case)?.times_as_good.as_ref()?));
    let cases = experiment.cases.iter().filter(|case| case.rounds > 1);
    let mut ratios: Vec<(&Case, &Series)> = cases.filter_map(ratio).collect();
    ratios.sort_by(|a, b| a.1.median.total_cmp(&b.1.median));
    let times = |(case, ratio): &(&Case, &Series)| {
        let figure = experiment.compared(case);
        let figure = case.ways.iter().find_map(|way| way.figure(figure));
        let good = figure.map_or("good", |figure| figure.unit.good());
        let baseline = case.baseline().map_or("the older way", |way| &way.name);
        format!(
            "{} times as {good} as {baseline}",
            significant(ratio.median)
        )
    };
    let (least, most) = match &ratios[..] {
        [] => return "No case of several rounds compares tenure with an older way.".to_owned(),
        [one] => return format!("tenure is {}.", times(one)),
        [least, .., most] => (least, most),
    };
    let named = |one: &(&Case, &Series)| format!("{} ({})", times(one), one.0.place());
    let count = |is: fn(&Series) -> bool| ratios.iter().filter(|(_, ratio)| is(ratio)).count();
    let better = count(|ratio| ratio.minimum > 1.0);
    let worse = count(|ratio| ratio.maximum < 1.0);
    format!(
        "tenure is better than the older way in {better} of {} comparisons, worse in {worse}, and \
         within what the rounds spread in {}; the extremes are {} and {}.",
        ratios.len(),
        ratios.len() - better - worse,
        named(least),
        named(most)
    )
}

#[cfg(test)]
#[path = "../../tests/unit/present/finding.rs"]
mod tests;
