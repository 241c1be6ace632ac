//! `splitway demo`: everything at work, in a user and network namespace of its own.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

use clap::{Args, value_parser};
use failure::Failure;
use netsetup::namespace;
use rustix::process::{Pid, Signal};
use sandbox::kernel;
use sha2::{Digest, Sha256};

use crate::terminal::grouped;
use crate::terminal::say;
use crate::url;
use config::log_level::LogLevel;
use config::root::check_root;
use config::temporary::TemporaryDirectory;

/// The demonstration.
#[derive(Clone, Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory to serve [default: examples/site, or a small generated site]
    #[arg(value_name = "SITE")]
    pub(crate) site: Option<PathBuf>,

    /// NIC workers
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        value_parser = value_parser!(u16).range(1..=64),
    )]
    pub(crate) workers: u16,
}

pub(crate) const DEMO_HELP: &str = "The demonstration creates its own user and network \
namespace, runs `splitway serve` there, downloads every file of the site with curl over IPv4 and \
IPv6, with HTTP and with HTTPS, compares SHA-256 sums with those of the files, and prints a \
summary of each process. Its exit code is 0 only if every byte was right.

Examples:
  splitway demo
  splitway demo ~/Videos";

/// Path of the site in the source tree.
const SITE: &str = "examples/site";

/// Shows a download of everything below a site, and fails unless every byte was right.
pub(crate) fn run(args: &DemoArgs, log: LogLevel) -> Result<(), Failure> {
    check_curl()?;
    let site = Site::choose(args.site.as_deref())?;
    kernel::require()?;
    let kind = namespace::enter()?;
    say(&format!(
        "All of this happens in {kind} of its own.\n\n$ splitway serve {} --listen 80 --tls-listen \
         443 --tls-self-signed\n",
        site.path.display()
    ));

    let files = site.files()?;
    let mut serve = Serve::start(&site.path, args.workers, log)?;
    let proof = serve.host_holds_no_file_of(&site.path)?;
    say("\n");
    let wrong = download_all(&serve.urls, serve.trusted.as_deref(), &site.path, &files)?;
    say(&format!("\n{proof}\n"));
    serve.end()?;
    if wrong == 0 {
        say("\nEvery byte was right.\n");
        Ok(())
    } else {
        Err(Failure::broken(
            "demo",
            format!("{wrong} downloads were wrong"),
        ))
    }
}

fn check_curl() -> Result<(), Failure> {
    match Command::new("curl")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
    {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Failure::input("curl --version", status)),
        Err(error) => Err(Failure::input("curl", error).remedy(
            "The demonstration downloads with curl. Install it with `sudo apt-get install curl`.",
        )),
    }
}

/// The served directory. A generated site is removed with this value.
struct Site {
    path: PathBuf,
    _made: Option<TemporaryDirectory>,
}

impl Site {
    fn choose(given: Option<&Path>) -> Result<Self, Failure> {
        let path = match given {
            Some(path) => path.to_owned(),
            None if Path::new(SITE).is_dir() => PathBuf::from(SITE),
            None => return Self::make(),
        };
        check_root(&path)?;
        Ok(Self { path, _made: None })
    }

    /// Generates a page, an empty file, a file with a space in its name, and one of a few
    /// megabytes.
    fn make() -> Result<Self, Failure> {
        let make = || -> io::Result<Self> {
            let made = TemporaryDirectory::new()?;
            let path = made.path().to_owned();
            fs::create_dir(path.join("a directory"))?;
            fs::write(
                path.join("index.html"),
                "<!doctype html><title>Splitway</title><p>It works.\n",
            )?;
            fs::write(path.join("a directory/empty"), "")?;
            fs::write(path.join("numbers.txt"), numbers())?;
            let _made = Some(made);
            Ok(Self { path, _made })
        };
        let site = make().map_err(|error| Failure::broken("making a site", error))?;
        say(&format!(
            "There is no {SITE} here; made a small site instead.\n"
        ));
        Ok(site)
    }

    /// Returns the paths of all regular files, relative to the site, sorted. Symbolic links are
    /// left out.
    fn files(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut files = Vec::new();
        let mut directories = vec![PathBuf::new()];
        while let Some(directory) = directories.pop() {
            let mut list = || -> io::Result<()> {
                for entry in fs::read_dir(self.path.join(&directory))? {
                    let entry = entry?;
                    let path = directory.join(entry.file_name());
                    match entry.file_type()? {
                        kind if kind.is_dir() => directories.push(path),
                        kind if kind.is_file() => files.push(path),
                        _ => {}
                    }
                }
                Ok(())
            };
            list().map_err(|error| {
                Failure::input(
                    format!("listing {}", self.path.join(&directory).display()),
                    error,
                )
            })?;
        }
        if files.is_empty() {
            return Err(Failure::input(
                format!("site {}", self.path.display()),
                "there is no file in it",
            ));
        }
        files.sort();
        Ok(files)
    }
}

/// Returns lines of numbers, so that no two parts of the file are alike.
fn numbers() -> String {
    (0..400_000).map(|number| format!("{number}\n")).collect()
}

/// A running `splitway serve`, which ends with this value.
struct Serve {
    process: std::process::Child,
    output: BufReader<ChildStdout>,
    urls: Vec<String>,
    /// The certificate that clients trust.
    trusted: Option<PathBuf>,
    host: Option<u32>,
    ended: bool,
}

impl Serve {
    /// Starts the server, and forwards its output until it serves.
    fn start(site: &Path, workers: u16, log: LogLevel) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::broken("starting splitway serve", error);
        let mut process = Command::new("/proc/self/exe")
            .arg0("splitway")
            .args([
                "serve",
                "--end-with-parent",
                "--log",
                log.name(),
                "--workers",
                &workers.to_string(),
                "--listen",
                "80",
                "--tls-listen",
                "443",
                "--tls-self-signed",
                "--",
            ])
            .arg(site)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process; the server ends when its parent does.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let output = process
            .stdout
            .take()
            .ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        let mut serve = Self {
            process,
            output: BufReader::new(output),
            urls: Vec::new(),
            trusted: None,
            host: None,
            ended: false,
        };
        loop {
            let mut line = String::new();
            if serve.output.read_line(&mut line).map_err(failed)? == 0 {
                return Err(serve.failure());
            }
            let text = line.trim_end();
            if text.starts_with("http://") || text.starts_with("https://") {
                serve.urls.push(text.to_owned());
            }
            if let Some((_, path)) = text.split_once("certificate for trying out") {
                serve.trusted = path.split_once(": ").map(|(_, path)| path.into());
            }
            if let Some(rest) = text.strip_prefix("host process ") {
                serve.host = rest.split(':').next().and_then(|pid| pid.parse().ok());
            }
            if text.starts_with("End with") {
                return Ok(serve);
            }
            if !text.starts_with("Try:") {
                say(&line);
            }
        }
    }

    /// Looks from outside: neither an open file nor a mapping of the host process belongs to
    /// the site.
    fn host_holds_no_file_of(&self, site: &Path) -> Result<String, Failure> {
        let what = "looking at the host process from initial_netns";
        let Some(host) = self.host else {
            return Err(Failure::broken(what, "it did not give its number"));
        };
        let look = || -> io::Result<(usize, Vec<PathBuf>)> {
            let site = fs::canonicalize(site)?;
            let mut held = Vec::new();
            let mut descriptors = 0;
            for entry in fs::read_dir(format!("/proc/{host}/fd"))? {
                descriptors += 1;
                held.push(fs::read_link(entry?.path())?);
            }
            let maps = fs::read_to_string(format!("/proc/{host}/maps"))?;
            held.extend(
                maps.lines()
                    .filter_map(|line| Some(PathBuf::from(&line[line.find('/')?..]))),
            );
            held.retain(|path| path.starts_with(&site));
            Ok((descriptors, held))
        };
        match look() {
            Ok((descriptors, held)) if held.is_empty() => Ok(format!(
                "Of the {descriptors} descriptors and all mappings of the host process, none is a \
                 file of the site."
            )),
            Ok((_, held)) => Err(Failure::broken(what, format!("it holds {held:?}"))),
            Err(error) => Err(Failure::broken(what, error)),
        }
    }

    /// Ends the server in order, and forwards the rest of its output.
    fn end(&mut self) -> Result<(), Failure> {
        let failed = |error: io::Error| Failure::broken("ending splitway serve", error);
        let _ = rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM);
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).map_err(failed)?;
        say(&rest);
        let status = self.process.wait().map_err(failed)?;
        self.ended = true;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::broken("splitway serve", status))
        }
    }

    fn failure(&mut self) -> Failure {
        self.ended = true;
        match self.process.wait() {
            // The server has printed the reason on standard error.
            Ok(status) => Failure::broken("splitway serve", status),
            Err(error) => Failure::broken("splitway serve", error),
        }
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        if !self.ended {
            let _ = rustix::process::kill_process(Pid::from_child(&self.process), Signal::TERM);
            let _ = self.process.wait();
        }
    }
}

/// Downloads every file from every URL, prints a line for each, and returns the number of failures.
fn download_all(
    urls: &[String],
    trusted: Option<&Path>,
    site: &Path,
    files: &[PathBuf],
) -> Result<usize, Failure> {
    let mut wrong = 0;
    for url in urls {
        let trusted = trusted.filter(|_| url.starts_with("https:"));
        let trust =
            trusted.map_or_else(String::new, |file| format!("--cacert {} ", file.display()));
        say(&format!("$ curl {trust}{url}...\n"));
        for file in files {
            let path = site.join(file);
            let expected = File::open(&path)
                .and_then(digest)
                .map_err(|error| Failure::broken(format!("reading {}", path.display()), error))?;
            let outcome = match download(&format!("{url}{}", url::encode_path(file)), trusted)? {
                Ok(received) if received == expected => "same SHA-256".to_owned(),
                Ok((bytes, _)) => format!("WRONG: {} bytes of other content", grouped(bytes)),
                Err(reason) => format!("WRONG: {reason}"),
            };
            wrong += usize::from(outcome.starts_with("WRONG"));
            say(&format!(
                "  {:<40} {:>15} bytes  {outcome}\n",
                file.display(),
                grouped(expected.0)
            ));
        }
    }
    Ok(wrong)
}

/// Length and SHA-256 sum of a body.
type Body = (u64, [u8; 32]);

/// Returns the body that curl received, or curl's message on failure.
fn download(url: &str, trusted: Option<&Path>) -> Result<Result<Body, String>, Failure> {
    let failed = |error: io::Error| Failure::broken("running curl", error);
    let trusted = trusted
        .into_iter()
        .flat_map(|file| [OsStr::new("--cacert"), file.as_os_str()]);
    let mut curl = Command::new("curl")
        // No proxy, no configuration file; give up on a transfer that stands still.
        .args([
            "-q",
            "--noproxy",
            "*",
            "--silent",
            "--show-error",
            "--fail",
            "--globoff",
            "--connect-timeout",
            "10",
        ])
        .args(["--speed-limit", "1", "--speed-time", "30"])
        .args(trusted)
        .args(["--", url])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let body = match curl.stdout.take() {
        Some(stdout) => digest(stdout).map_err(failed)?,
        None => return Err(failed(io::ErrorKind::BrokenPipe.into())),
    };
    let mut reason = String::new();
    if let Some(mut stderr) = curl.stderr.take() {
        stderr.read_to_string(&mut reason).map_err(failed)?;
    }
    let status = curl.wait().map_err(failed)?;
    Ok(if status.success() {
        Ok(body)
    } else {
        Err(format!("{} ({status})", reason.trim()))
    })
}

fn digest(mut source: impl Read) -> io::Result<Body> {
    struct Counted(Sha256, u64);
    impl Write for Counted {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.update(bytes);
            self.1 += bytes.len() as u64;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counted = Counted(Sha256::new(), 0);
    io::copy(&mut source, &mut counted)?;
    Ok((counted.1, counted.0.finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_made_for_the_occasion_goes_with_it() {
        let site = Site::make().unwrap();
        let path = site.path.clone();
        let files = site.files().unwrap();
        assert_eq!(
            files,
            ["a directory/empty", "index.html", "numbers.txt"].map(PathBuf::from)
        );
        drop(site);
        assert!(!path.exists());
    }

    #[test]
    fn a_digest_is_of_every_byte() {
        let (bytes, sum) = digest(&b"abc"[..]).unwrap();
        assert_eq!(bytes, 3);
        assert_eq!(sum[..4], [0xba, 0x78, 0x16, 0xbf], "FIPS 180-4's example");
    }
}
