//! The host process never touches content: it could not.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Pid;
use testbed::http::download;
use testbed::namespace::isolated;
use testbed::process::run;
use testbed::site::Site;
use testbed::splitway::Splitway;

use crate::support::{FAMILIES, serve, started};

const EACCES: i32 = 13;

/// Has a running process call `open(path, O_RDONLY)`; `Err` is its `errno`.
///
/// By the name that the C library gives it for large files: functions of the program itself are named `open`.
fn open_within(pid: Pid, path: &Path) -> Result<i32, i32> {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    gdb.args(["-p", &pid.as_raw_nonzero().to_string()]);
    for line in [
        "set language c",
        &format!(
            "set $fd = ((int (*)(const char *, int)) open64)(\"{}\", 0)",
            path.display()
        ),
        "printf \"opened %d %d\\n\", $fd, *((int *(*)(void)) __errno_location)()",
    ] {
        gdb.args(["-ex", line]);
    }
    let printed = run(&mut gdb).unwrap();
    let numbers: Vec<i32> = printed
        .lines()
        .find_map(|line| line.strip_prefix("opened "))
        .unwrap_or_else(|| panic!("gdb could not make process {pid:?} call open:\n{printed}"))
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    if numbers[0] < 0 {
        Err(numbers[1])
    } else {
        Ok(numbers[0])
    }
}

#[test]
fn the_host_process_cannot_open_what_the_nic_process_is_sending() {
    isolated(|site| {
        let file = site.file("file", 50_000_000).unwrap();
        let path = site.root().join(file.name());
        let splitway = serve(&site);
        let mut downloads = FAMILIES.map(|server| started(server, &file));
        for connection in &mut downloads {
            connection.read_file_part(&file, 0..1_000_000).unwrap();
        }
        assert_eq!(open_within(splitway.host(), &path), Err(EACCES));
        assert_eq!(open_within(splitway.host(), site.root()), Err(EACCES));
        assert!(open_within(splitway.nic(), &path).is_ok());
        for connection in &mut downloads {
            connection
                .read_file_part(&file, 1_000_000..file.size())
                .unwrap();
        }
    });
}

#[test]
fn the_nic_process_cannot_open_what_is_not_served() {
    isolated(|site| {
        let secret = site.outside().join("secret");
        std::fs::write(&secret, "not for you").unwrap();
        let splitway = serve(&site);
        assert_eq!(open_within(splitway.nic(), &secret), Err(EACCES));
    });
}

/// The memory of a process that is its own to read and write, piece by piece.
fn each_piece_of_memory(pid: Pid, mut look: impl FnMut(&[u8])) {
    let process = format!("/proc/{}", pid.as_raw_nonzero());
    let maps = std::fs::read_to_string(format!("{process}/maps")).unwrap();
    let memory = File::open(format!("{process}/mem")).unwrap();
    let mut buffer = vec![0; 1 << 20];
    for line in maps.lines().filter(|line| line.contains(" r")) {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [mut start, end] =
            [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        while start < end {
            let len = (end - start).min(buffer.len() as u64) as usize;
            // Some mappings belong to devices or to the kernel and cannot be read.
            let Ok(read) = memory.read_at(&mut buffer[..len], start) else {
                break;
            };
            look(&buffer[..read]);
            if read == 0 {
                break;
            }
            start += read as u64;
        }
    }
}

/// How many pieces of the file's content are found anywhere in the memory of a process.
fn content_found_in(pid: Pid, site: &Site, name: &str) -> usize {
    let content = std::fs::read(site.root().join(name)).unwrap();
    // Content lies at addresses divisible by eight or not: every sixteen bytes of it are looked for everywhere.
    let probes: BTreeMap<[u8; 8], [u8; 8]> = content
        .chunks_exact(16)
        .map(|bytes| {
            (
                bytes[..8].try_into().unwrap(),
                bytes[8..].try_into().unwrap(),
            )
        })
        .collect();
    let mut first_bytes = vec![false; 1 << 16];
    for probe in probes.keys() {
        first_bytes[usize::from(u16::from_le_bytes([probe[0], probe[1]]))] = true;
    }
    let mut found = 0;
    each_piece_of_memory(pid, |memory| {
        for bytes in memory.windows(16) {
            if first_bytes[usize::from(u16::from_le_bytes([bytes[0], bytes[1]]))] {
                let (first, second) = bytes.split_at(8);
                found += usize::from(probes.get(first).is_some_and(|expected| expected == second));
            }
        }
    });
    found
}

fn no_content_in_the_host(site: &Site, splitway: &Splitway, names: &[&str]) {
    for name in names {
        assert_eq!(
            content_found_in(splitway.host(), site, name),
            0,
            "of {name} in the host process"
        );
    }
}

#[test]
fn no_byte_of_content_is_ever_found_in_the_memory_of_the_host_process() {
    isolated(|site| {
        let files = [
            site.file("small", 400).unwrap(),
            site.file("large", 30_000).unwrap(),
        ];
        let splitway = serve(&site);
        for server in FAMILIES {
            for file in &files {
                for _ in 0..20 {
                    download(server, file).unwrap();
                }
            }
        }
        no_content_in_the_host(&site, &splitway, &["small", "large"]);
        // The same search does find it where it is.
        assert!(
            content_found_in(splitway.nic(), &site, "large") > 0,
            "in the NIC process"
        );
    });
}
