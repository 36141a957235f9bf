//! A record: what `tenure bench --json` has printed, read again.

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::bench::{Better, Series, Unit};

/// All that one file has to say.
#[derive(Debug)]
pub struct Record {
    /// What the record is called on the page.
    pub label: String,
    /// The machine and the build, under the names that the record uses.
    pub environment: Map<String, Value>,
    /// The command line that it was made by.
    pub command: Option<String>,
    /// How the figures came about.
    pub method: Option<String>,
    /// What random contents and offsets were made from.
    pub seed: Option<u64>,
    /// The experiments, in the order in which they ran.
    pub experiments: Vec<Experiment>,
}

/// One experiment, measured or failed.
#[derive(Debug, Deserialize)]
pub struct Experiment {
    /// Which one.
    pub name: String,
    /// Which sizes were used.
    #[serde(default)]
    pub sizes: String,
    /// What was measured.
    #[serde(default)]
    pub title: String,
    /// What a reader must know to judge the figures.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The figure that is compared where the case names no other.
    #[serde(default)]
    pub compared: String,
    /// The cases.
    #[serde(default)]
    pub cases: Vec<Case>,
    /// What the experiment itself says about its data.
    #[serde(default)]
    pub conclusion: String,
    /// Why it was not measured.
    pub error: Option<String>,
}

/// The same work, done in several ways.
#[derive(Debug, Deserialize)]
pub struct Case {
    /// The table that the case stands in.
    #[serde(default)]
    pub table: String,
    /// What was worked on.
    pub name: String,
    /// How many rounds were measured.
    pub rounds: u32,
    /// The figure that is compared, where it is not the experiment's.
    pub compared: Option<String>,
    /// The ways, in the order in which they took turns.
    pub ways: Vec<Way>,
    /// What tenure could have chosen, where it had a choice.
    pub choice: Option<Choice>,
}

/// The best of the ways that tenure's way chooses from.
#[derive(Debug, Deserialize)]
pub struct Choice {
    /// The way that was best.
    pub best: String,
    /// How much worse than that tenure's way is, as a part of it.
    pub tenure_worse_by: f64,
}

/// One way of doing the work.
#[derive(Debug, Deserialize)]
pub struct Way {
    /// What it is called.
    pub name: String,
    /// Whether it is tenure's.
    pub is_tenure: bool,
    /// Whether the others are compared with it.
    pub is_baseline: bool,
    /// What was measured.
    pub figures: Vec<Figure>,
    /// How many times as good as the baseline it is, pair by pair.
    pub times_as_good: Option<Series>,
}

/// One figure of one way.
#[derive(Debug, Deserialize)]
pub struct Figure {
    /// What it is called.
    pub name: String,
    /// In which unit.
    pub unit: Unit,
    /// The samples and their summary.
    #[serde(flatten)]
    pub series: Series,
}

impl Record {
    /// Reads `text`, which came from `label`.
    ///
    /// # Errors
    ///
    /// Fails, and says what to do, when that is no JSON, not a report, or one that
    /// another version has made and this one cannot read.
    pub fn read(label: &str, text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            bail!("{label} is empty; what `tenure bench --json` prints is wanted");
        }
        let value: Value = serde_json::from_str(text).with_context(|| {
            format!("{label} is not JSON; what `tenure bench --json` prints is wanted")
        })?;
        let field = |name: &str| value.get(name).cloned().unwrap_or(Value::Null);
        let (Value::Object(environment), Value::Array(experiments)) =
            (field("environment"), field("experiments"))
        else {
            bail!("{label} is JSON, but not what `tenure bench --json` prints");
        };
        if experiments.is_empty() {
            bail!("{label} has no experiments in it");
        }
        let other = other_version(&environment);
        let experiments = experiments.into_iter().map(|experiment| {
            let name = experiment["name"].as_str().unwrap_or("?").to_owned();
            serde_json::from_value(experiment).with_context(|| match &other {
                Some(version) => format!(
                    "{label} was made by tenure {version} and cannot be read by tenure {OWN}: use \
                     that version for it, or measure again (experiment {name})"
                ),
                None => format!("{label} cannot be read (experiment {name})"),
            })
        });
        Ok(Self {
            label: label.to_owned(),
            command: value["command"].as_str().map(str::to_owned),
            method: value["method"].as_str().map(str::to_owned),
            seed: value["seed"].as_u64(),
            experiments: experiments.collect::<Result<_>>()?,
            environment,
        })
    }

    /// Returns the experiment called `name`.
    pub fn experiment(&self, name: &str) -> Option<&Experiment> {
        self.experiments
            .iter()
            .find(|experiment| experiment.name == name)
    }
}

/// The version of this program.
pub const OWN: &str = env!("CARGO_PKG_VERSION");

/// Returns the version that a record was made by, if that is not this one.
pub fn other_version(environment: &Map<String, Value>) -> Option<String> {
    let version = environment.get("tenure_version")?.as_str()?;
    (version != OWN).then(|| version.to_owned())
}

impl Experiment {
    /// Returns the name of the figure that `case` compares.
    pub fn compared<'a>(&'a self, case: &'a Case) -> &'a str {
        case.compared.as_deref().unwrap_or(&self.compared)
    }
}

impl Case {
    /// Returns the way called `name`.
    pub fn way(&self, name: &str) -> Option<&Way> {
        self.ways.iter().find(|way| way.name == name)
    }

    /// Returns tenure's way.
    pub fn tenure(&self) -> Option<&Way> {
        self.ways.iter().find(|way| way.is_tenure)
    }

    /// Returns the way that the others are compared with.
    pub fn baseline(&self) -> Option<&Way> {
        self.ways.iter().find(|way| way.is_baseline)
    }
}

impl Way {
    /// Returns the figure called `name`.
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

impl Figure {
    /// Computes how many times as good this is as `other`, pair by pair where both
    /// come from the same rounds.
    pub fn times_as_good(&self, other: &Self) -> Option<Series> {
        self.series
            .times_as_good(&other.series, better(self.unit))
            .filter(|ratio| ratio.minimum > 0.0)
    }
}

/// Returns which direction of a figure is better.
pub fn better(unit: Unit) -> Better {
    match unit {
        Unit::PerSecond | Unit::BytesPerSecond => Better::More,
        Unit::Seconds | Unit::Bytes | Unit::Count | Unit::Ratio => Better::Less,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        format!("{:#}", Record::read("a.json", text).unwrap_err())
    }

    #[test]
    fn what_is_no_record_is_named() {
        assert!(error(" \n").starts_with("a.json is empty;"));
        assert!(error("tenure 0.1.0").starts_with("a.json is not JSON;"));
        assert!(error("[1]").contains("but not what `tenure bench --json` prints"));
        assert!(error(r#"{"environment": {}}"#).contains("but not what"));
        let none = error(r#"{"environment": {}, "experiments": []}"#);
        assert_eq!(none, "a.json has no experiments in it");
    }

    #[test]
    fn what_another_version_made_is_read_if_it_can_be() {
        let of = |version: &str, experiment: &str| {
            format!(
                r#"{{"environment": {{"tenure_version": "{version}"}}, "experiments": [{experiment}]}}"#
            )
        };
        let readable = r#"{"name": "swap", "error": "no swap", "new": 1}"#;
        let record = Record::read("a.json", &of("9.9.9", readable)).unwrap();
        assert_eq!(
            record.experiment("swap").unwrap().error.as_deref(),
            Some("no swap")
        );
        let strange = r#"{"name": "swap", "cases": 7}"#;
        let message = error(&of("9.9.9", strange));
        assert!(message.contains("made by tenure 9.9.9"), "{message}");
        assert!(message.contains("measure again"), "{message}");
        let message = error(&of(OWN, strange));
        assert!(message.starts_with("a.json cannot be read"), "{message}");
    }
}
