//! Which clients may connect.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use client_address::Networks;
use failure::Failure;
use host::Stack;
use serde::{Deserialize, Serialize};

use super::socket_values::AddressRange;
use super::text::Text;

/// Clients that may connect. Of a client that is both allowed and denied, the denial counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Firewall {
    /// Addresses from which clients may connect, such as `["10.0.0.0/8"]`: none but these, and
    /// those of `allow_file`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Text<AddressRange>>,
    /// File with further networks, one a line; `#` begins a comment. No client may connect if the
    /// file has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_file: Option<PathBuf>,
    /// Addresses from which clients may not connect. Their connections end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Text<AddressRange>>,
    /// File with further networks, in the form of `allow_file`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deny_file: Option<PathBuf>,
}

/// Longest file of networks, in bytes.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Most networks of a file.
const NETWORKS_MAX: usize = 1_000_000;

/// Most wrong lines named at once.
const FAILURES_MAX: usize = 10;

/// The networks of section `firewall` and its files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessNetworks {
    /// If set, no others may connect.
    allowed: Option<Vec<Text<AddressRange>>>,
    denied: Vec<Text<AddressRange>>,
}

impl AccessNetworks {
    /// The networks that may connect, if not all may.
    fn allowed(&self) -> Option<Networks<()>> {
        self.allowed.as_deref().map(table)
    }

    /// The networks that may not.
    fn denied(&self) -> Networks<()> {
        table(&self.denied)
    }

    /// Makes a stack use them; returns the number of connections that it has ended.
    pub fn apply(&self, stack: &mut Stack, now_us: u64) -> usize {
        stack.set_access(now_us, self.allowed(), self.denied())
    }

    /// True if some addresses of this network may not connect.
    pub fn denies(&self, network: AddressRange) -> bool {
        let is_allowed = self
            .allowed
            .as_ref()
            .is_none_or(|allowed| allowed.iter().any(|range| range.0.holds(network)));
        !is_allowed || self.denied.iter().any(|range| range.0.overlaps(network))
    }
}

impl Firewall {
    /// Reads the files.
    ///
    /// # Errors
    ///
    /// A file cannot be read, is too long, or has a line that is no network.
    pub fn read(&self) -> Result<AccessNetworks, Failure> {
        let restricts = !self.allow.is_empty() || self.allow_file.is_some();
        let allowed = with_file(
            "firewall.allow_file",
            &self.allow,
            self.allow_file.as_deref(),
        );
        let denied = with_file("firewall.deny_file", &self.deny, self.deny_file.as_deref());
        match (allowed, denied) {
            (Ok(allowed), Ok(denied)) => Ok(AccessNetworks {
                allowed: restricts.then_some(allowed),
                denied,
            }),
            (Err(failure), Ok(_)) | (Ok(_), Err(failure)) => Err(failure),
            (Err(failure), Err(other)) => Err(failure.and(other)),
        }
    }
}

fn table(ranges: &[Text<AddressRange>]) -> Networks<()> {
    let networks = ranges.iter().map(|range| range.0.network());
    networks.collect()
}

fn with_file(
    key: &str,
    ranges: &[Text<AddressRange>],
    path: Option<&Path>,
) -> Result<Vec<Text<AddressRange>>, Failure> {
    let mut ranges = ranges.to_vec();
    if let Some(path) = path {
        let what = format!("{key} {}", path.display());
        let text = text_of(path).map_err(|error| {
            Failure::input(&what, error)
                .remedy("It is a text with a network a line, such as 192.0.2.0/24.")
        })?;
        ranges.extend(parse(&what, &text)?);
    }
    Ok(ranges)
}

fn text_of(path: &Path) -> std::io::Result<String> {
    let file = File::open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    if found.len() > FILE_BYTES_MAX {
        let why = format!("longer than {} MiB", FILE_BYTES_MAX >> 20);
        return Err(std::io::Error::other(why));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn parse(what: &str, text: &str) -> Result<Vec<Text<AddressRange>>, Failure> {
    let (mut ranges, mut failures) = (Vec::new(), Vec::new());
    for (line, number) in text.lines().zip(1..) {
        let network = line.split_once('#').map_or(line, |(network, _)| network);
        let network = network.trim();
        if network.is_empty() {
            continue;
        }
        match network.parse::<AddressRange>() {
            Ok(range) => ranges.push(Text(range)),
            Err(why) => failures.push(format!("line {number}: {why}")),
        }
        if ranges.len() > NETWORKS_MAX {
            let why = format!("more than {NETWORKS_MAX} networks");
            return Err(Failure::input(what, why).remedy("Join networks into larger ones."));
        }
    }
    if failures.is_empty() {
        return Ok(ranges);
    }
    let more = failures.len().saturating_sub(FAILURES_MAX);
    failures.truncate(FAILURES_MAX);
    if more > 0 {
        failures.push(format!("and {more} more lines"));
    }
    Err(Failure::input(what, failures.join("; ")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn firewall(text: &str) -> Firewall {
        toml::from_str(text).unwrap()
    }

    fn shown(networks: &Networks<()>) -> Vec<String> {
        let mut shown: Vec<String> = networks.iter().map(|(it, ())| it.to_string()).collect();
        shown.sort();
        shown
    }

    #[test]
    fn networks_of_the_section_and_of_its_files_are_one_list() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("deny");
        let text = "# scanners\n192.0.2.7\n\n  2001:db8::/32 # a network\r\n192.0.2.7/32\n";
        fs::write(&file, text).unwrap();
        let mut section = firewall("deny = ['198.51.100.9/24']");
        section.deny_file = Some(file);
        let networks = section.read().unwrap();
        assert_eq!(networks.allowed().map(|all| shown(&all)), None);
        assert_eq!(
            shown(&networks.denied()),
            ["192.0.2.7", "198.51.100.0/24", "2001:db8::/32"]
        );
        assert_eq!(firewall("").read().unwrap(), AccessNetworks::default());
    }

    #[test]
    fn an_empty_file_of_allowed_networks_allows_none() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("allow");
        fs::write(&file, "# nobody\n").unwrap();
        let mut section = firewall("");
        section.allow_file = Some(file);
        let allowed = section.read().unwrap().allowed();
        assert_eq!(allowed.map(|all| all.len()), Some(0));
    }

    #[test]
    fn each_wrong_line_is_named_and_so_is_each_unreadable_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("deny");
        let wrong = "192.0.2.0/33\n10.0.0.0/8\nhost\n".to_owned() + &"x\n".repeat(20);
        fs::write(&file, wrong).unwrap();
        let mut section = firewall("");
        section.deny_file = Some(file);
        section.allow_file = Some(directory.path().join("none"));
        let failure = section.read().unwrap_err().to_string();
        for part in [
            "firewall.deny_file ",
            "line 1: \"192.0.2.0/33\"",
            "line 3: \"host\"",
            "and 12 more lines",
            "firewall.allow_file ",
            "No such file",
        ] {
            assert!(failure.contains(part), "{part}: {failure}");
        }
        section.allow_file = Some(directory.path().to_owned());
        let failure = section.read().unwrap_err().to_string();
        assert!(failure.contains("not a regular file"), "{failure}");
    }
}
