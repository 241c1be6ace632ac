//! Where in a file something stands, and what is wrong there.

use std::fmt;
use std::ops::Range;

use toml::de::{DeTable, DeValue};

/// The way to a value: `site[1].rule[0].path`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    /// Of an array.
    Index(usize),
}

impl Place {
    /// A key of the whole file.
    pub fn of(key: &str) -> Self {
        Self::default().key(key)
    }

    /// A key of the table here.
    pub fn key(&self, key: &str) -> Self {
        self.step(Step::Key(key.to_owned()))
    }

    /// An element of the array here.
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

    /// It is `other`, or within that.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// Where it stands in a text, or at least the last of the tables around it; `None` if not even
    /// the first is there.
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

/// What is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where the value stands.
    pub place: Place,
    /// What it is about, if the value does not come from a file.
    pub option: Option<String>,
    /// What is wrong.
    pub why: String,
    /// What to do about it.
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

    /// How the same is said on the command line.
    pub fn option(mut self, option: impl fmt::Display) -> Self {
        self.option = Some(option.to_string());
        self
    }

    /// What to do about it.
    pub fn remedy(mut self, remedy: impl fmt::Display) -> Self {
        self.remedy = Some(remedy.to_string());
        self
    }
}
