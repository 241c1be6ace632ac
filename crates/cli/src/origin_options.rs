//! What an operator says about origins, and what each process is told of it.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use origin::{OriginUrl, Trust};
use server::{Pattern, Pull, RelativePath};

use crate::args::ServeArgs;
use crate::cache_option::Size;
use crate::config::Nic;
use crate::error::Failure;
use crate::serve::option;

/// The cache directory below ROOT, unless another one is given.
const CACHE_DIRECTORY: &str = ".splitway-cache";

/// Length of a segment, in bytes.
const SEGMENT_BYTES: u64 = 1 << 20;

/// Segments that a cache has room for, at least: those that are read are not to make room for each other.
const SEGMENTS_MIN: u64 = 16;

/// The options of `splitway serve`.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Origins")]
pub(crate) struct OriginOptions {
    /// Fetch what is not there from this origin, http:// or https://, keep it in the cache directory, and serve it from
    /// there. With a pattern, such as '/vod/*=https://origin.example', only paths that it is about. May be given several
    /// times; the first that is about a path counts. What lies below ROOT comes first
    #[arg(long, value_name = "[PATTERN=]URL")]
    origin: Vec<OriginPlace>,

    /// Where what comes from origins is kept: ROOT, or below it, since it is read from there. Without ROOT, it is ROOT
    /// [default: .splitway-cache below ROOT]
    #[arg(long, value_name = "DIR", requires = "origin")]
    cache_dir: Option<PathBuf>,

    /// Most that is kept there, such as 500M or 20G
    #[arg(long, value_name = "SIZE", default_value = "10G", requires = "origin")]
    origin_cache_bytes: Size,

    /// File with the certificates, in PEM, of the authorities that origins are believed through [default: those that this
    /// machine believes]
    #[arg(long, value_name = "FILE", requires = "origin")]
    origin_ca: Option<PathBuf>,
}

/// Where some paths come from.
#[derive(Clone, Debug, PartialEq, Eq)]
struct OriginPlace {
    /// As it was written; `None`: all.
    pattern: Option<String>,
    url: OriginUrl,
}

impl FromStr for OriginPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, url) = match text.split_once('=') {
            Some((pattern, url)) if pattern.starts_with('/') => (Some(pattern), url),
            _ => (None, text),
        };
        if let Some(pattern) = pattern {
            let parsed = pattern.parse::<Pattern>();
            parsed.map_err(|error| error.to_string())?;
        }
        let url: OriginUrl = url
            .parse()
            .map_err(|error: origin::OriginUrlError| error.to_string())?;
        Ok(Self {
            pattern: pattern.map(str::to_owned),
            url,
        })
    }
}

impl fmt::Display for OriginPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pattern {
            Some(pattern) => write!(f, "{pattern}={}", self.url),
            None => write!(f, "{}", self.url),
        }
    }
}

/// Origins, and where what comes from them is kept.
#[derive(Clone, Debug)]
pub(crate) struct OriginPlan {
    options: OriginOptions,
    pub(crate) cache_dir: PathBuf,
    paths: OriginPaths,
}

fn no_place() -> Failure {
    Failure::input("--origin", "--cache-dir is missing")
        .remedy("Give the directory in which what comes from the origin is to be kept.")
}

impl OriginPlan {
    /// The options of a server that has the cache directory as its root if there is no other.
    pub(crate) fn with_root(args: &ServeArgs) -> Result<ServeArgs, Failure> {
        let mut args = args.clone();
        let is_alone = args.root.is_none() && args.nic.is_empty() && args.config.is_none();
        if is_alone && !args.origins.origin.is_empty() {
            let directory = args.origins.cache_dir.clone().ok_or_else(no_place)?;
            // Who asks for the configuration changes nothing.
            if !args.print_config {
                fs::create_dir_all(&directory).map_err(|error| {
                    Failure::input(format!("cache directory {}", directory.display()), error)
                        .remedy("This user needs permission to make it, and to write to it.")
                })?;
            }
            args.root = Some(directory);
        }
        Ok(args)
    }

    /// What was asked for, if anything was. Makes the cache directory.
    pub(crate) fn check(args: &ServeArgs, nic: &Nic) -> Result<Option<Self>, Failure> {
        let options = args.origins.clone();
        if options.origin.is_empty() {
            return Ok(None);
        }
        if !nic.attach.is_empty() {
            return Err(Failure::input("--origin with --nic", "the NIC stack has its files elsewhere")
                .remedy(
                    "What comes from an origin is written by this server, and must be read by its own NIC process:\n\
                     give ROOT or --cache-dir instead of --nic. With the NIC stack on another machine, an origin can\n\
                     not be used yet.",
                ));
        }
        let root = nic.root.clone().ok_or_else(no_place)?;
        let wanted = options.cache_dir.clone();
        let wanted = wanted.unwrap_or_else(|| root.join(CACHE_DIRECTORY));
        let what = format!("cache directory {}", wanted.display());
        let failed = |error: std::io::Error| {
            Failure::input(&what, error)
                .remedy("This user needs permission to make it, and to write to it.")
        };
        fs::create_dir_all(&wanted).map_err(failed)?;
        let cache_dir = wanted.canonicalize().map_err(failed)?;
        let below = root
            .canonicalize()
            .map_err(|error| Failure::input(format!("root {}", root.display()), error))?;
        let inner = cache_dir.strip_prefix(&below).map_err(|_| {
            Failure::input(&what, format!("it is not below ROOT, {}", root.display())).remedy(
                "The NIC process reads below ROOT and nowhere else. Leave --cache-dir away (.splitway-cache below ROOT\n\
                 is made), or mount what is to hold the cache below ROOT.",
            )
        })?;
        let inner = inner.to_str().and_then(|inner| {
            let inner: RelativePath = inner.parse().ok()?;
            Some(inner)
        });
        let inner = inner.ok_or_else(|| Failure::input(&what, "its name is no text"))?;
        let least = SEGMENTS_MIN * SEGMENT_BYTES;
        if options.origin_cache_bytes.0 < least {
            return Err(Failure::input(
                format!("--origin-cache-bytes {}", options.origin_cache_bytes),
                "too little: objects are kept in segments of 1M, and several are read at once",
            )
            .remedy(format!("Give at least {}.", Size(least))));
        }
        let paths = OriginPaths {
            pull: options
                .origin
                .iter()
                .map(|it| it.pattern.clone().unwrap_or_else(|| "/*".to_owned()))
                .collect(),
            cache_path: Some(inner.to_string()),
            // Nothing but the cache is there.
            pull_after_files: cache_dir != below,
        };
        let plan = Self {
            options,
            cache_dir,
            paths,
        };
        plan.trust()?;
        Ok(Some(plan))
    }

    fn trust(&self) -> Result<Trust, Failure> {
        trust(
            self.options.origin.iter().map(|place| &place.url),
            self.options.origin_ca.as_deref(),
        )
    }

    /// For the host process.
    pub(crate) fn host_arguments(&self) -> Vec<OsString> {
        let patterns = self.paths.pull.iter();
        let mut arguments: Vec<OsString> =
            patterns.map(|it| option("--pull", it.as_ref())).collect();
        let cache = self.paths.cache_path.as_deref().unwrap_or_default();
        arguments.push(option("--cache-path", cache.as_ref()));
        if self.paths.pull_after_files {
            arguments.push("--pull-after-files".into());
        }
        arguments
    }

    /// For the fetcher.
    pub(crate) fn fetch_arguments(&self, log: &str) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["fetch", "--log", log].map(OsString::from).into();
        arguments.push(option("--cache-dir", self.cache_dir.as_os_str()));
        let bytes = self.options.origin_cache_bytes.0.to_string();
        arguments.push(option("--bytes", bytes.as_ref()));
        let places = self.options.origin.iter();
        arguments.extend(places.map(|it| option("--origin", it.url.to_string().as_ref())));
        if let Some(file) = &self.options.origin_ca {
            arguments.push(option("--origin-ca", file.as_os_str()));
        }
        arguments
    }

    /// What people are told.
    pub(crate) fn describe(&self) -> String {
        let places: Vec<String> = self
            .options
            .origin
            .iter()
            .map(ToString::to_string)
            .collect();
        format!(
            "fetches from {} into {}, up to {}",
            places.join(", "),
            self.cache_dir.display(),
            self.options.origin_cache_bytes,
        )
    }
}

/// Whose certificates are believed, if any are needed.
fn trust<'a>(
    urls: impl Iterator<Item = &'a OriginUrl>,
    file: Option<&Path>,
) -> Result<Trust, Failure> {
    let mut urls = urls;
    let trust = match file {
        Some(file) => Trust::of_file(file),
        None if urls.any(|url| url.to_string().starts_with("https:")) => Trust::of_machine(),
        None => Ok(Trust::nobody()),
    };
    trust.map_err(|error| {
        Failure::input("--origin", error).remedy(
            "Install the package ca-certificates, or give the certificate of the authority with --origin-ca FILE.",
        )
    })
}

/// What the host process knows of origins: which paths come from each, and where what has come lies.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct OriginPaths {
    /// Which paths come from each origin, in their order
    #[arg(long)]
    pub(crate) pull: Vec<String>,
    /// The cache directory, below the root
    #[arg(long)]
    pub(crate) cache_path: Option<String>,
    /// Files come first
    #[arg(long)]
    pub(crate) pull_after_files: bool,
}

impl OriginPaths {
    /// What a server of all sites is to do.
    pub(crate) fn apply(&self, config: &mut server::Config) -> Result<(), Failure> {
        let what = "paths that come from an origin";
        let mut pulls = Vec::new();
        for (pattern, origin) in self.pull.iter().zip(0..) {
            pulls.push(Pull {
                pattern: pattern
                    .parse()
                    .map_err(|error: server::PatternError| Failure::input(what, error))?,
                origin,
                after_files: self.pull_after_files,
            });
        }
        if pulls.is_empty() {
            return Ok(());
        }
        for site in &mut config.sites {
            site.pulls.clone_from(&pulls);
        }
        config.hidden = Some(self.directory(origin::OBJECTS)?);
        Ok(())
    }

    /// A directory in the cache directory, below the root.
    pub(crate) fn directory(&self, name: &str) -> Result<RelativePath, Failure> {
        let cache = self.cache_path.as_deref().unwrap_or_default();
        let path = match cache {
            "" => name.to_owned(),
            cache => format!("{cache}/{name}"),
        };
        path.parse()
            .map_err(|error| Failure::input("cache directory", error))
    }
}

/// What the fetcher is told.
#[derive(Clone, Debug, Args)]
pub(crate) struct FetchArgs {
    /// Where to write
    #[arg(long)]
    pub(crate) cache_dir: PathBuf,
    /// Most that is kept there, in bytes
    #[arg(long)]
    bytes: u64,
    /// Origins, by their numbers
    #[arg(long)]
    origin: Vec<OriginUrl>,
    /// Whose certificates are believed
    #[arg(long)]
    origin_ca: Option<PathBuf>,
}

impl FetchArgs {
    /// Reads certificates.
    pub(crate) fn config(&self) -> Result<origin::Config, Failure> {
        Ok(origin::Config {
            cache_dir: self.cache_dir.clone(),
            bytes_max: self.bytes,
            segment_bytes: SEGMENT_BYTES,
            origins: self.origin.clone(),
            trust: trust(self.origin.iter(), self.origin_ca.as_deref())?,
            timeouts: origin::Timeouts::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_may_be_about_some_paths() {
        for (text, pattern) in [
            ("http://a.example", None),
            ("/vod/*=http://a.example/base", Some("/vod/*")),
            ("/x=https://a.example", Some("/x")),
        ] {
            let place: OriginPlace = text.parse().unwrap();
            assert_eq!(place.pattern.as_deref(), pattern);
            assert_eq!(place.to_string(), text);
        }
        for text in [
            "a.example",
            "vod=http://a.example",
            "/*/*=http://a.example",
            "/x=",
        ] {
            assert!(text.parse::<OriginPlace>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_cache_lies_below_the_root_or_is_it() {
        let paths = |cache: &str| OriginPaths {
            pull: vec!["/*".to_owned()],
            cache_path: Some(cache.to_owned()),
            pull_after_files: true,
        };
        for (cache, hidden) in [("", "objects"), ("a/b", "a/b/objects")] {
            let mut config = server::Config::default();
            paths(cache).apply(&mut config).unwrap();
            assert_eq!(config.hidden.unwrap().to_string(), hidden);
            assert_eq!(config.sites[0].pulls.len(), 1);
        }
        let mut config = server::Config::default();
        OriginPaths::default().apply(&mut config).unwrap();
        assert!(config.hidden.is_none());
    }
}
