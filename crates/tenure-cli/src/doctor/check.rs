//! One line of the report.

use serde::Serialize;

/// How far a check is satisfied.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Everything that tenure uses is there.
    Ok,
    /// tenure works, but slower, with less memory, or in another way.
    Limited,
    /// Calls that need it fail.
    Missing,
}

impl Status {
    /// Returns the word in the report.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
        }
    }
}

/// Something that changes what tenure does.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Check {
    /// The verb, or the other part of tenure, that it concerns most.
    pub verb: &'static str,
    /// The feature or limit.
    pub name: &'static str,
    pub status: Status,
    /// Its state here.
    pub found: String,
    /// The behaviour of tenure that follows.
    pub effect: String,
    /// How the user can get more.
    pub remedy: Option<String>,
}

impl Check {
    /// Makes a check that is ok.
    pub fn ok(
        verb: &'static str,
        name: &'static str,
        found: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        Self {
            verb,
            name,
            status: Status::Ok,
            found: found.into(),
            effect: effect.into(),
            remedy: None,
        }
    }

    /// Makes it limited, with a remedy.
    pub fn limited(self, remedy: impl Into<String>) -> Self {
        Self {
            status: Status::Limited,
            ..self.with_remedy(remedy)
        }
    }

    /// Makes it missing, with a remedy.
    pub fn missing(self, remedy: impl Into<String>) -> Self {
        Self {
            status: Status::Missing,
            ..self.with_remedy(remedy)
        }
    }

    /// Adds a remedy that is a matter of choice.
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}
