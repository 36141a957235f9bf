//! One line of the answer.

use serde::Serialize;

/// How much of it is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All that tenure wants.
    Ok,
    /// It works, but slower, with less memory, or in another way.
    Limited,
    /// Calls that need it answer with an error.
    Missing,
}

impl Status {
    /// Returns the word for it.
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
    /// What it concerns first of all.
    pub verb: &'static str,
    /// What was looked at.
    pub name: &'static str,
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What tenure therefore does.
    pub effect: String,
    /// What to change for more.
    pub remedy: Option<String>,
}

impl Check {
    /// Makes a line for something that is there.
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

    /// Makes it something that is there in part.
    pub fn limited(self, remedy: impl Into<String>) -> Self {
        Self {
            status: Status::Limited,
            ..self.with_remedy(remedy)
        }
    }

    /// Makes it something that is not there.
    pub fn missing(self, remedy: impl Into<String>) -> Self {
        Self {
            status: Status::Missing,
            ..self.with_remedy(remedy)
        }
    }

    /// Says what to change, where that is a matter of choice.
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self {
            remedy: Some(remedy.into()),
            ..self
        }
    }
}
