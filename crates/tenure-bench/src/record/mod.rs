//! A record: what `tenure bench --json` prints and `tenure report` reads.

mod series;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use self::series::{Better, Series, Unit};

/// The version of this program.
pub const OWN: &str = env!("CARGO_PKG_VERSION");

/// All that one file has to say.
#[derive(Debug, Serialize)]
pub struct Record {
    /// The record's name on a page.
    #[serde(skip)]
    pub label: String,
    /// The machine and the build, under the names that the record uses.
    pub environment: Map<String, Value>,
    /// The command line, by which it can be repeated.
    pub command: Option<String>,
    /// How the figures come about.
    pub method: Option<String>,
    /// The seed of random contents and offsets.
    pub seed: Option<u64>,
    /// The experiments, in the order in which they ran.
    pub experiments: Vec<Experiment>,
}

/// One experiment: measured, or failed, and then it has a name and an error only.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Experiment {
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sizes: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Facts without which the figures mislead.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The figure whose ratio to the baseline is `times_as_good`, where the case
    /// names no other.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub compared: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cases: Vec<Case>,
    /// Sentences about the figures.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub conclusion: String,
    /// Why it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The same work, done in several ways.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Case {
    /// The table that the case stands in; empty where the experiment has one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub table: String,
    pub name: String,
    pub rounds: u32,
    /// The figure that is compared, where it is not the experiment's.
    pub compared: Option<String>,
    /// The ways, in the order in which they took turns.
    pub ways: Vec<Way>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
}

/// One way of doing the work.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Way {
    pub name: String,
    pub is_tenure: bool,
    /// Whether the others are compared with this way.
    pub is_baseline: bool,
    /// Whether tenure's way chooses between this way and others like it.
    #[serde(default)]
    pub is_choice: bool,
    /// The figures, in the order in which they were recorded.
    pub figures: Vec<Figure>,
    /// How many times as good as the baseline the compared figure is, round by
    /// round. Absent for the baseline itself.
    pub times_as_good: Option<Series>,
    /// How many times as good as this way tenure's way is, round by round. Absent
    /// for tenure's way itself.
    pub tenure_times_as_good: Option<Series>,
}

/// One figure of one way.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Figure {
    pub name: String,
    pub unit: Unit,
    #[serde(flatten)]
    pub series: Series,
}

/// The best of the ways that tenure's way chooses from, and how near it came.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Choice {
    /// The way that was best.
    pub best: String,
    /// How much worse than that tenure's way is, as a part of it: 0.12 is 12 %
    /// worse, and less than 0 is better. The median of the rounds.
    pub tenure_worse_by: f64,
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
        let value: Result<Value, _> = serde_json::from_str(text);
        let value = value.with_context(|| {
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

    pub fn experiment(&self, name: &str) -> Option<&Experiment> {
        self.experiments.iter().find(|one| one.name == name)
    }
}

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
    /// Returns where in its experiment the case stands.
    pub fn place(&self) -> String {
        match (self.table.as_str(), self.name.as_str()) {
            ("", name) | (name, "") => name.to_owned(),
            (table, name) => format!("{table}: {name}"),
        }
    }

    pub fn way(&self, name: &str) -> Option<&Way> {
        self.ways.iter().find(|way| way.name == name)
    }

    pub fn tenure(&self) -> Option<&Way> {
        self.ways.iter().find(|way| way.is_tenure)
    }

    pub fn baseline(&self) -> Option<&Way> {
        self.ways.iter().find(|way| way.is_baseline)
    }
}

impl Way {
    pub fn figure(&self, name: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

impl Figure {
    /// Computes how many times as good this is as `other`, pair by pair of the same
    /// round. `None` where there are no pairs.
    pub fn times_as_good(&self, other: &Self) -> Option<Series> {
        self.series
            .times_as_good(&other.series, self.unit.better())
            .filter(|ratio| ratio.minimum > 0.0)
    }
}

impl Choice {
    /// Looks for the best choice: the way compared with which tenure's is worst.
    /// `None` where tenure has nothing to choose from.
    pub fn of(ways: &[Way]) -> Option<Self> {
        let choices = ways.iter().filter(|way| way.is_choice);
        let (best, ratio) = choices
            .filter_map(|way| Some((&way.name, way.tenure_times_as_good.as_ref()?.median)))
            .min_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(Self {
            best: best.clone(),
            tenure_worse_by: 1.0 / ratio - 1.0,
        })
    }
}

#[cfg(test)]
#[path = "../../tests/unit/record.rs"]
mod tests;
