//! Reading a configuration file, and reporting its errors: path and line, cause, and the likely
//! correction.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

use super::Config;
use super::place::{Place, Problem};
use failure::Failure;

/// Longest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Most unreadable values reported at once.
const FAILURES_MAX: usize = 64;

/// Least similarity of two names for one to be a likely misspelling of the other.
const ALIKE_MIN: f64 = 0.7;

/// A file with the text that was read.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

impl ConfigFile {
    /// Reads a whole file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not UTF-8.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let what = format!("configuration {}", path.display());
        let mut text = String::new();
        File::open(path)
            .and_then(|file| {
                if !file.metadata()?.is_file() {
                    return Err(std::io::Error::other("not a regular file"));
                }
                file.take(FILE_BYTES_MAX).read_to_string(&mut text)
            })
            .map_err(|error| {
                Failure::input(&what, error)
                    .remedy("It is text in TOML; docs/config.md lists its keys.")
            })?;
        Ok(Self {
            path: path.to_owned(),
            text,
        })
    }

    /// The configuration in the file. Its paths are relative to the directory of the file.
    ///
    /// # Errors
    ///
    /// Invalid values and unknown keys.
    pub fn parse(&self) -> Result<Config, Failure> {
        let Partial {
            config, failures, ..
        } = self.examine()?;
        together(failures.into_iter()).map_or(Ok(config), Err)
    }

    /// The readable part of the file, and all errors.
    ///
    /// # Errors
    ///
    /// The text is not TOML.
    pub fn examine(&self) -> Result<Partial, Failure> {
        let (mut table, errors) = DeTable::parse_recoverable(&self.text);
        let errors = errors.iter().take(FAILURES_MAX).map(|error| {
            let (why, remedy) = explain(error.message());
            self.failure_at(error.span(), &why, remedy.as_deref())
        });
        together(errors).map_or(Ok(()), Err)?;
        let (mut failures, mut sections) = (Vec::new(), BTreeSet::new());
        let mut taken: Vec<Cut> = Vec::new();
        let mut config = loop {
            let error = match Config::deserialize(Deserializer::from(table.clone())) {
                Ok(config) => break config,
                Err(error) => error,
            };
            if !self.is_of_cut(&error, &taken) {
                let (why, remedy) = explain(error.message());
                failures.push(self.failure_at(error.span(), &why, remedy.as_deref()));
            }
            // The rest may have errors as well.
            let span = error.span().unwrap_or_default();
            let keys = cut(table.get_mut(), &span).filter(|_| failures.len() < FAILURES_MAX);
            match keys.as_deref() {
                Some([section, .., key]) => {
                    sections.insert(section.clone());
                    let (key, at) = (key.clone(), span.start);
                    taken.push(Cut { key, at });
                }
                Some([section]) => {
                    sections.insert(section.clone());
                }
                _ => {
                    // The rest cannot be examined.
                    sections.insert(String::new());
                    break Config::default();
                }
            }
        };
        let directory = self.path.parent().unwrap_or(Path::new(""));
        config.resolve_paths(directory);
        Ok(Partial {
            config,
            failures,
            sections,
        })
    }

    /// Whether a key is missing only because its value was removed from the same table.
    fn is_of_cut(&self, error: &toml::de::Error, taken: &[Cut]) -> bool {
        let missing = error.message().strip_prefix("missing field `");
        let (Some(missing), Some(span)) = (missing, error.span()) else {
            return false;
        };
        let missing = missing.trim_end().trim_end_matches('`');
        taken.iter().any(|cut| {
            let between = self.text.get(span.start..cut.at);
            // The table ends at the next header.
            cut.key == missing && between.is_some_and(|text| !text.contains("\n["))
        })
    }

    /// Combines all problems; places within `overridden` were set by options, not by the file.
    pub fn failure(&self, problems: &[Problem], overridden: &[Place]) -> Option<Failure> {
        let table = DeTable::parse(&self.text);
        let failures = problems.iter().map(|problem| {
            let is_own = !overridden
                .iter()
                .any(|place| problem.place.is_within(place));
            let span = table.as_ref().ok().filter(|_| is_own);
            let span = span.and_then(|table| problem.place.span(table.get_ref()));
            match span {
                Some(span) => self.failure_at(Some(span), &problem.why, problem.remedy.as_deref()),
                None if is_own => {
                    let what = format!("{}: {}", self.path.display(), problem.place);
                    with_remedy(Failure::input(what, &problem.why), problem)
                }
                None => plain(problem),
            }
        });
        together(failures)
    }

    /// An error with the line, and a mark below the invalid part.
    fn failure_at(&self, span: Option<Range<usize>>, why: &str, remedy: Option<&str>) -> Failure {
        let file = self.path.display();
        let Some(span) = span else {
            let failure = Failure::input(file, why);
            return remedy
                .into_iter()
                .fold(failure, |failure, remedy| failure.remedy(remedy));
        };
        let start = self.text.floor_char_boundary(span.start);
        let before = &self.text[..start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        let line_number = before.matches('\n').count() + 1;
        let line = self.text[line_start..].lines().next().unwrap_or_default();
        let column = before[line_start..].chars().count() + 1;
        let end = self.text.floor_char_boundary(span.end);
        let marked = self.text.get(start..end).unwrap_or_default();
        let marked = marked.lines().next().unwrap_or_default().chars().count();
        // Tabs are kept, so that the mark is aligned.
        let indent: String = before[line_start..]
            .chars()
            .map(|c| if c == '\t' { c } else { ' ' })
            .collect();
        let gutter = " ".repeat(line_number.to_string().len());
        let mark = "^".repeat(marked.max(1));
        let mut lines = format!("{line_number} | {line}\n{gutter} | {indent}{mark}");
        if let Some(remedy) = remedy {
            lines.push('\n');
            lines.push_str(remedy);
        }
        Failure::input(format!("{file}:{line_number}:{column}"), why).remedy(lines)
    }
}

/// The readable part of a file, and all errors.
#[derive(Debug)]
pub struct Partial {
    /// The configuration without the unreadable values.
    pub config: Config,
    /// One failure for each unreadable value.
    failures: Vec<Failure>,
    /// Sections of the unreadable values.
    sections: BTreeSet<String>,
}

impl Partial {
    /// All errors, without those of `problems` that omitted values may have caused.
    pub fn failure(self, file: &ConfigFile, problems: &[Problem]) -> Option<Failure> {
        let is_sound = |problem: &&Problem| {
            let section = problem.place.section();
            !self.sections.iter().any(|cut| are_related(cut, section))
        };
        let sound: Vec<Problem> = problems.iter().filter(is_sound).cloned().collect();
        together(self.failures.into_iter().chain(file.failure(&sound, &[])))
    }
}

/// Groups of sections that are checked against each other.
const RELATED: [&[&str]; 4] = [
    &["network", "listen", "tls", "quic", "proxy"],
    &["nic", "network", "origin", "proxy"],
    &["http", "site", "signing_keys", "origin"],
    &["sockets", "nic"],
];

/// Whether an error in one section may result from a value missing in another. A misspelt section
/// may stand for any.
fn are_related(cut: &str, section: &str) -> bool {
    let is_known = RELATED.iter().any(|group| group.contains(&cut))
        || ["firewall", "tcp", "logs", "operation"].contains(&cut);
    let both = |group: &&[&str]| group.contains(&cut) && group.contains(&section);
    !is_known || cut == section || RELATED.iter().any(both)
}

/// Removes the key, value or table at this span; a table stands for a key missing in it. Returns
/// the keys on the way.
fn cut(table: &mut DeTable<'_>, span: &Range<usize>) -> Option<Vec<String>> {
    let mut found = None;
    for (key, value) in table.iter_mut() {
        let inner = match key.span() == *span {
            true => None,
            false => cut_within(value.get_mut(), span),
        };
        let is_here = inner.is_none() && (key.span() == *span || value.span() == *span);
        if is_here || inner.is_some() {
            found = Some((key.get_ref().to_string(), inner));
            break;
        }
    }
    let (key, inner) = found?;
    if inner.is_none() {
        table.remove(key.as_str());
    }
    let mut keys = vec![key];
    keys.extend(inner.into_iter().flatten());
    Some(keys)
}

fn cut_within(value: &mut DeValue<'_>, span: &Range<usize>) -> Option<Vec<String>> {
    match value {
        DeValue::Table(table) => cut(table, span),
        DeValue::Array(array) => {
            let mut keys = None;
            let mut kept = DeArray::new();
            for mut item in std::mem::replace(array, DeArray::new()) {
                let was_cut = keys.is_some();
                if !was_cut {
                    keys = cut_within(item.get_mut(), span);
                }
                if was_cut || keys.is_some() || item.span() != *span {
                    kept.push(item);
                } else {
                    keys = Some(Vec::new());
                }
            }
            *array = kept;
            keys
        }
        _ => None,
    }
}

/// A removed value.
struct Cut {
    key: String,
    at: usize,
}

/// Combines all problems of values that are not from a file.
pub fn failure(problems: &[Problem]) -> Option<Failure> {
    together(problems.iter().map(plain))
}

fn plain(problem: &Problem) -> Failure {
    let place = problem.place.to_string();
    let failure = Failure::input(problem.option.as_ref().unwrap_or(&place), &problem.why);
    with_remedy(failure, problem)
}

fn with_remedy(failure: Failure, problem: &Problem) -> Failure {
    let remedy = problem.remedy.iter();
    remedy.fold(failure, |failure, remedy| failure.remedy(remedy))
}

/// Combines failures, the first at the top.
fn together(mut failures: impl Iterator<Item = Failure>) -> Option<Failure> {
    let first = failures.next()?;
    Some(failures.fold(first, Failure::and))
}

/// Translates errors of `serde` and `toml`, and suggests the likely correction.
fn explain(message: &str) -> (String, Option<String>) {
    if let Some((key, known)) = message
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once('`'))
    {
        // "`a`, `b`": the names between the marks.
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let remedy = match nearest(key, &known) {
            Some(meant) => format!("Did you mean `{meant}`?"),
            None => format!("Known keys: {}.", known.join(", ")),
        };
        return (format!("unknown key `{key}`"), Some(remedy));
    }
    if let Some(key) = message.strip_prefix("missing field ") {
        return (format!("the key {key} is missing"), None);
    }
    let message = message.trim().replace('\n', "; ");
    let Some((before, expected)) = message.rsplit_once(", expected ") else {
        return (message, None);
    };
    let range = NUMBERS.iter().find(|(name, _)| *name == expected);
    match range {
        Some((_, range)) => (format!("{before}, expected {range}"), None),
        None => (message, None),
    }
}

/// Names of number types in `serde`, with their meaning.
const NUMBERS: [(&str, &str); 9] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number, 0 or more"),
    ("usize", "a whole number, 0 or more"),
    ("a nonzero u8", "a whole number from 1 to 255"),
    ("a nonzero u16", "a whole number from 1 to 65535"),
    ("a nonzero u32", "a whole number from 1 to 4294967295"),
    ("a nonzero u64", "a whole number, 1 or more"),
];

/// The most similar name, if one is similar enough.
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let alike = known
        .iter()
        .map(|known| (strsim::jaro_winkler(name, known), *known));
    let alike = alike.filter(|(alike, _)| *alike >= ALIKE_MIN);
    alike
        .max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> ConfigFile {
        ConfigFile {
            path: "dir/splitway.toml".into(),
            text: text.to_owned(),
        }
    }

    fn refused(text: &str) -> String {
        file(text).parse().unwrap_err().to_string()
    }

    #[test]
    fn a_key_that_there_is_not_is_shown_with_the_one_that_was_meant() {
        let message =
            refused("# a server\n[network]\ninterface = \"eth0\"\nadresses = [\"192.0.2.1/24\"]\n");
        assert_eq!(
            message,
            "dir/splitway.toml:4:1: unknown key `adresses`\n  \
             4 | adresses = [\"192.0.2.1/24\"]\n  \
             \u{20} | ^^^^^^^^\n  \
             Did you mean `addresses`?"
        );
        let message =
            refused("[[site]]\n[[site.rule]]\npath = \"*\"\n  cash_control = \"no-store\"");
        assert!(
            message.contains(":4:3: ") && message.contains("`cache_control`"),
            "{message}"
        );
        let message = refused("[nonsense]");
        assert!(
            message.contains(":1:2: ") && message.contains("Known keys: network, listen"),
            "{message}"
        );
    }

    #[test]
    fn what_is_no_value_is_shown_where_it_stands() {
        for (text, place, complaint) in [
            (
                "[network]\naddresses = [\"192.0.2.1/24\", \"192.0.2.2\"]",
                ":2:30:",
                "/24",
            ),
            (
                "[[listen]]\nport = 0",
                ":2:8:",
                "expected a whole number from 1 to 65535",
            ),
            (
                "[nic]\nworkers = \"two\"",
                ":2:11:",
                "expected a whole number from 0 to 65535",
            ),
            (
                "[http]\nranges_max = -1",
                ":2:14:",
                "expected a whole number from ",
            ),
            ("[[listen]]\ntls = true", ":1:1:", "`port` is missing"),
            ("[tcp]\nkeepalive = 90", ":2:13:", "a text"),
            (
                "[quic]\npreferred_addresses = [\"192.0.2.7:443\"]",
                ":2:24:",
                "clients stay with that of [[listen]]; leave it out",
            ),
            (
                "[quic]\npreferred_addresses = [\"host\"]",
                ":2:24:",
                "no IP address, such as 192.0.2.7",
            ),
            ("[tcp]\ncongestion = \"vegas\"", ":2:14:", "cubic"),
            ("[http]\nidle_timeout = \"soon\"", ":2:16:", "15s"),
            ("[nic]\nworkers = 1\nworkers = 2", ":3:1:", "duplicate"),
            ("[nic]\nroot = \"a", ":2:10:", "invalid"),
            ("[[site]]\nnames = [\"a b\"]", ":2:10:", "no name of a host"),
        ] {
            let message = refused(text);
            assert!(
                message.contains(place) && message.contains(complaint),
                "{text}: {message}"
            );
        }
    }

    #[test]
    fn all_that_cannot_be_read_is_named_at_once() {
        let message = refused(
            "[network]\nadresses = 1\nmtu = \"big\"\n[nonsense]\nx = 1\n[[listen]]\nport = 0\n\
             [[listen]]\ntls = true\n[tls]\nversions = [\"1.1\", \"1.3\", \"1.0\"]\n[[site]]\n\
             [[site.rule]]\npath = 1\n[[site.rule]]\npath = \"*\"\nexpires = \"soon\"\n",
        );
        for place in [
            ":2:1: unknown key `adresses`",
            ":3:7: ",
            ":4:2: unknown key `nonsense`",
            ":7:8: ",
            ":8:1: the key `port` is missing",
            ":11:13: ",
            ":11:27: ",
            ":14:8: ",
            ":17:11: ",
        ] {
            assert_eq!(message.matches(place).count(), 1, "{place}: {message}");
        }
        assert_eq!(message.matches("splitway.toml:").count(), 9, "{message}");
        let message = refused("[nic]\nroot = \"a\nworkers = = 1\n");
        assert!(
            message.contains(":2:") && message.contains(":3:"),
            "{message}"
        );
    }

    #[test]
    fn what_makes_no_sense_is_named_beside_what_cannot_be_read() {
        let text = "[http]\nidle_timeout = 1\nranges_max = 0\n[tcp]\necn = \"maybe\"\n\
                    [network]\nmtu = 7\n[nic]\nroot = \"/srv\"\nworkers = 99\n";
        let file = file(text);
        let partial = file.examine().unwrap();
        assert_eq!(partial.config.nic.workers, 99);
        let problems = partial.config.problems();
        let message = partial.failure(&file, &problems).unwrap().to_string();
        for place in [":2:16: ", ":5:7: ", ":7:7: 7 is not", ":10:11: 99 is not"] {
            assert!(message.contains(place), "{place}: {message}");
        }
        // The error may result from the omitted value.
        assert!(!message.contains(":3:"), "{message}");
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let config =
            file("[nic]\nroot = \"www\"\nkey_file = \"/etc/key\"\nattach = [\"nic.sock\"]")
                .parse()
                .unwrap();
        assert_eq!(config.nic.root, Some("dir/www".into()));
        assert_eq!(config.nic.key_file, Some("/etc/key".into()));
        assert_eq!(config.nic.attach[0].0.to_string(), "dir/nic.sock");
    }

    #[test]
    fn what_is_wrong_is_found_by_its_place() {
        let file = file("[[listen]]\nport = 80\n[[listen]]\nport = 80\n\t[nic]\n");
        let listen = Place::of("listen").index(1).key("port");
        let problems = [
            Problem::new(listen.clone(), "given twice").option("--listen 80"),
            Problem::new(Place::of("nic").key("root"), "missing"),
            Problem::new(Place::of("tcp"), "odd").option("--tcp"),
        ];
        let message = file.failure(&problems, &[]).unwrap().to_string();
        for part in [
            "splitway.toml:4:8: given twice",
            "4 | port = 80",
            "splitway.toml:5:2: missing",
            "splitway.toml: tcp: odd",
        ] {
            assert!(message.contains(part), "{part}: {message}");
        }
        let message = file
            .failure(&problems[..1], &[Place::of("listen")])
            .unwrap();
        assert_eq!(message.to_string(), "--listen 80: given twice");
        assert_eq!(listen.to_string(), "listen[1].port");
        assert_eq!(failure(&[]), None);
    }
}
