//! Places of values in a file, and problems at them.

use std::fmt;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// The path of a value: `site[1].rule[0].path`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    /// Index in an array.
    Index(usize),
}

impl Place {
    /// A key at the top level.
    pub fn of(key: &str) -> Self {
        Self::default().key(key)
    }

    /// A key of the table at this place.
    pub fn key(&self, key: &str) -> Self {
        self.step(Step::Key(key.to_owned()))
    }

    /// An element of the array at this place.
    pub fn index(&self, index: usize) -> Self {
        self.step(Step::Index(index))
    }

    fn step(&self, step: Step) -> Self {
        let mut place = self.clone();
        place.0.push(step);
        place
    }

    /// The first key.
    pub fn section(&self) -> &str {
        match self.0.first() {
            Some(Step::Key(key)) => key,
            Some(Step::Index(_)) | None => "",
        }
    }

    /// Whether the place is `other`, or within it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Position in a text, or at least that of the innermost table present; `None` if not even the
    /// first key is there.
    pub fn span(&self, table: &DeTable<'_>) -> Option<Range<usize>> {
        let mut steps = self.0.iter();
        let Some(Step::Key(first)) = steps.next() else {
            return None;
        };
        let mut value = table.get(first.as_str())?;
        for step in steps {
            let next = match (step, value.get_ref()) {
                (Step::Key(key), DeValue::Table(table)) => table.get(key.as_str()),
                (Step::Index(index), DeValue::Array(array)) => array.get(*index),
                _ => None,
            };
            let Some(next) = next else { break };
            value = next;
        }
        Some(value.span())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if at == 0 => f.write_str(key)?,
                Step::Key(key) => write!(f, ".{key}")?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A problem with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Place of the value.
    pub place: Place,
    /// Name of the option, if the value does not come from a file.
    pub option: Option<String>,
    /// Description of the problem.
    pub why: String,
    /// Suggestion to the operator.
    pub remedy: Option<String>,
}

impl Problem {
    /// A problem without a remedy.
    pub fn new(place: Place, why: impl fmt::Display) -> Self {
        Self {
            place,
            option: None,
            why: why.to_string(),
            remedy: None,
        }
    }

    /// Sets the name of the command-line option for this value.
    pub fn option(mut self, option: impl fmt::Display) -> Self {
        self.option = Some(option.to_string());
        self
    }

    /// Sets the suggestion to the operator.
    pub fn remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = Some(remedy.to_string());
        self
    }
}
