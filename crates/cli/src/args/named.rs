//! Values that have names: help and completions list the names, and the type reports other values
//! as errors.

use std::error::Error;
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::str::FromStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command};

/// Returns a parser of values with these names.
pub(crate) fn named<T>(names: impl IntoIterator<Item = &'static str>) -> Named<T> {
    Named {
        names: names.into_iter().collect(),
        value: PhantomData,
    }
}

/// See [`named`].
#[derive(Clone)]
pub(crate) struct Named<T> {
    names: Vec<&'static str>,
    value: PhantomData<T>,
}

impl<T> TypedValueParser for Named<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Into<Box<dyn Error + Send + Sync + 'static>>,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let parser = StringValueParser::new().try_map(|name| name.parse::<T>());
        parser.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}
