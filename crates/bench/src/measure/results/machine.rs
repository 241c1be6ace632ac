//! The machine of a measurement, its kernel, the versions of all programs, and the links between
//! them.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::fs;
use std::process::Command;

use serde::Serialize;
use testbed::{Context, Result};

use crate::servers::link::Sizes;

/// A machine.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// Release and version.
    kernel: String,
    cpu: String,
    /// Flags or features in `/proc/cpuinfo`.
    cpu_flags: Vec<String>,
    cores: usize,
    memory_bytes: u64,
    is_virtual: bool,
    /// Without privileges over the machine, the kernel's receive work is not steered.
    is_privileged: bool,
    /// Versions as the programs report them.
    versions: BTreeMap<&'static str, String>,
    /// Congestion control, for benchmarks that use a network.
    congestion_control: Option<String>,
    /// Sizes of the links' ends, the same for all servers.
    link: Option<Sizes>,
}

/// Participating programs, and the option that prints their version.
const PROGRAMS: [(&str, &str); 5] = [
    ("nginx", "-v"),
    ("lighttpd", "-v"),
    ("openssl", "version"),
    ("wrk", "-v"),
    ("perf", "--version"),
];

impl Machine {
    /// Reads this machine's data.
    pub(crate) fn read() -> Result<Machine> {
        let read = |path: &str| fs::read_to_string(path).context(|| format!("reading {path}"));
        let cpuinfo = read("/proc/cpuinfo")?;
        // Arm has "Features" and no name.
        let flags = field(&cpuinfo, "flags").or_else(|| field(&cpuinfo, "Features"));
        let cpu_flags: Vec<String> = flags
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let meminfo = read("/proc/meminfo")?;
        let kib = field(&meminfo, "MemTotal").and_then(|value| {
            let number = value.strip_suffix(" kB")?;
            number.parse::<u64>().ok()
        });
        let programs = PROGRAMS.into_iter();
        let versions = programs.filter_map(|(program, option)| {
            let version = version_of(program, option)?;
            Some((program, version))
        });
        Ok(Machine {
            kernel: format!(
                "{} {}",
                read("/proc/sys/kernel/osrelease")?.trim(),
                read("/proc/sys/kernel/version")?.trim()
            ),
            cpu: field(&cpuinfo, "model name")
                .unwrap_or(std::env::consts::ARCH)
                .to_owned(),
            is_virtual: cpu_flags.iter().any(|flag| flag == "hypervisor"),
            is_privileged: crate::is_privileged(),
            cpu_flags,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.unwrap_or(0) << 10,
            versions: versions.collect(),
            congestion_control: Some(on_both("cubic")),
            link: None,
        })
    }

    /// Sets the sizes of the links.
    pub(crate) fn set_link(&mut self, sizes: Sizes) {
        self.link = Some(sizes);
    }

    /// Removes the network's settings, for benchmarks without a network.
    pub(crate) fn has_no_network(&mut self) {
        self.congestion_control = None;
    }

    /// Sets the congestion control of the servers.
    pub(crate) fn set_congestion_control(&mut self, name: &str) {
        self.congestion_control = Some(on_both(name));
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}, {} {}cores, {} GB, Linux {}; ",
            self.cpu,
            self.cores,
            if self.is_virtual { "virtual " } else { "" },
            self.memory_bytes / 1_000_000_000,
            self.kernel,
        )?;
        let versions: Vec<&str> = self.versions.values().map(String::as_str).collect();
        f.write_str(&versions.join("; "))?;
        if let Some(name) = &self.congestion_control {
            write!(f, "; congestion control {name}")?;
        }
        if let Some(sizes) = &self.link {
            write!(f, "; links: {sizes}")?;
        }
        if self.is_privileged {
            Ok(())
        } else {
            write!(
                f,
                "; without privileges, so that receive work was not steered"
            )
        }
    }
}

fn on_both(congestion_control: &str) -> String {
    format!("{congestion_control}, on both sides")
}

/// Returns a value of a file with a line for each: `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Returns the first line that a program prints, on either stream; `None` if it is not installed.
fn version_of(program: &str, option: &str) -> Option<String> {
    let output = Command::new(program).arg(option).output().ok()?;
    let printed = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&printed);
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    // "nginx version: nginx/1.22.1", "wrk 4.1.0 [epoll] Copyright …"
    let line = line.strip_prefix("nginx version: ").unwrap_or(line);
    let line = line.split(" [").next().unwrap_or(line);
    let line = line.split(" - ").next().unwrap_or(line);
    Some(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let machine = Machine::read().unwrap();
        let text = machine.to_string();
        assert!(text.contains("Linux") && text.contains("cubic"), "{text}");
        assert!(machine.cores > 0 && machine.memory_bytes > 0);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "model\t\t: 1\nmodel name\t: AMD EPYC\nflags : a b\n";
        assert_eq!(field(text, "model name"), Some("AMD EPYC"));
        assert_eq!(field(text, "mode"), None);
    }

    #[test]
    fn a_program_that_is_not_there_has_no_version() {
        assert_eq!(version_of("splitway-no-such-program", "-v"), None);
    }
}
