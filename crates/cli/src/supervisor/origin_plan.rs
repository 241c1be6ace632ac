//! The plan that the supervisor makes from a configuration: origins to fetch from, and the cache
//! directory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use failure::Failure;
use origin::OriginUrl;
use server::RelativePath;

use config::origin_place::CachePlace;
use config::size::Size;
use config::{Config, Origin, Text};
use processes::fetcher::{FetcherSettings, trust};

/// Default cache directory, below ROOT.
const CACHE_DIRECTORY: &str = ".splitway-cache";

/// Limits of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheLimits {
    /// All content, in bytes.
    pub(crate) bytes: Size,
    /// Variants of a target.
    pub(crate) variants: u16,
    /// Header fields of a response, in bytes.
    pub(crate) head_bytes: Size,
    /// Number of header fields of a response.
    pub(crate) fields: u16,
}

/// Origins, and the cache for their responses.
#[derive(Clone, Debug)]
pub(crate) struct OriginPlan {
    pub(crate) origins: BTreeSet<OriginUrl>,
    pub(crate) cache_dir: PathBuf,
    pub(crate) limits: CacheLimits,
    ca: Option<PathBuf>,
    pub(crate) place: CachePlace,
}

impl CacheLimits {
    pub(crate) fn of(origin: &Origin) -> Self {
        CacheLimits {
            bytes: origin.cache_max.0,
            variants: origin.variants_max,
            head_bytes: origin.head_max.0,
            fields: origin.fields_max,
        }
    }

    /// Returns the larger of each pair of limits.
    pub(crate) fn max(self, other: Self) -> Self {
        CacheLimits {
            bytes: self.bytes.max(other.bytes),
            variants: self.variants.max(other.variants),
            head_bytes: self.head_bytes.max(other.head_bytes),
            fields: self.fields.max(other.fields),
        }
    }
}

impl OriginPlan {
    /// Returns the plan for a configuration, if it names origins. Creates the cache directory.
    pub(crate) fn check(config: &Config) -> Result<Option<Self>, Failure> {
        let Some(root) = config.nic.root.as_deref() else {
            return Ok(None);
        };
        let origins: BTreeSet<OriginUrl> = config.origins().into_iter().cloned().collect();
        if origins.is_empty() {
            return Ok(None);
        }
        let wanted = cache_dir(config, root);
        let failed = |error: std::io::Error| {
            Failure::input(what(&wanted), error)
                .remedy("This user needs permission to make it, and to write to it.")
        };
        fs::create_dir_all(&wanted).map_err(failed)?;
        let cache_dir = wanted.canonicalize().map_err(failed)?;
        let plan = Self {
            origins,
            limits: CacheLimits::of(&config.origin),
            ca: config.origin.ca.clone(),
            place: place(&wanted, &cache_dir, root)?,
            cache_dir,
        };
        trust(&plan.origins, plan.ca.as_deref())?;
        Ok(Some(plan))
    }

    /// Checks the plan as far as possible without changing anything.
    pub(crate) fn look(config: &Config) -> Result<(), Failure> {
        let (Some(root), false) = (config.nic.root.as_deref(), config.origins().is_empty()) else {
            return Ok(());
        };
        let wanted = cache_dir(config, root);
        if let Ok(cache_dir) = wanted.canonicalize() {
            place(&wanted, &cache_dir, root)?;
        }
        trust(config.origins(), config.origin.ca.as_deref()).map(|_| ())
    }

    /// Returns whether the root is the cache directory, which is created on demand.
    pub(crate) fn makes_root(config: &Config) -> bool {
        config.nic.root.is_some()
            && config.nic.root == config.origin.cache_dir
            && !config.origins().is_empty()
    }

    /// Returns the fetcher's settings.
    pub(crate) fn settings(&self) -> FetcherSettings {
        FetcherSettings {
            cache_dir: self.cache_dir.clone(),
            bytes_max: self.limits.bytes.0,
            variants_max: self.limits.variants,
            head_bytes_max: self.limits.head_bytes.0,
            fields_max: self.limits.fields,
            origins: self.origins.iter().cloned().map(Text).collect(),
            ca: self.ca.clone(),
        }
    }

    /// Describes the plan for the user.
    pub(crate) fn describe(&self) -> String {
        let origins: Vec<String> = self.origins.iter().map(ToString::to_string).collect();
        format!(
            "fetches from {} into {}, up to {}",
            origins.join(", "),
            self.cache_dir.display(),
            self.limits.bytes,
        )
    }
}

fn cache_dir(config: &Config, root: &Path) -> PathBuf {
    let wanted = config.origin.cache_dir.clone();
    wanted.unwrap_or_else(|| root.join(CACHE_DIRECTORY))
}

fn what(wanted: &Path) -> String {
    format!("cache directory {}", wanted.display())
}

/// Returns the place of a cache directory below the root.
fn place(wanted: &Path, cache_dir: &Path, root: &Path) -> Result<CachePlace, Failure> {
    let below = root
        .canonicalize()
        .map_err(|error| Failure::input(format!("root {}", root.display()), error))?;
    let inner = cache_dir.strip_prefix(&below).map_err(|_| {
        Failure::input(
            what(wanted),
            format!("it is not below ROOT, {}", root.display()),
        )
        .remedy(
            "The NIC process reads below ROOT and nowhere else. Leave --cache-dir away \
             (.splitway-cache below ROOT\nis made), or mount what is to hold the cache below ROOT.",
        )
    })?;
    let inner = inner.to_str();
    let inner = inner.and_then(|inner| Some(inner.parse::<RelativePath>().ok()?.to_string()));
    Ok(CachePlace {
        path: inner.ok_or_else(|| Failure::input(what(wanted), "its name is not UTF-8"))?,
        is_among_files: cache_dir != below,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_lies_below_the_root_or_is_it() {
        let root = tempfile::tempdir().unwrap();
        for (said, hidden, is_among_files) in [
            ("", ".splitway-cache/objects", true),
            ("cache_dir = \"ROOT/a/b\"", "a/b/objects", true),
            ("cache_dir = \"ROOT\"", "objects", false),
        ] {
            let said = said.replace("ROOT", root.path().to_str().unwrap());
            let root = root.path().display();
            let text = format!(
                "nic.root = \"{root}\"\n[origin]\n{said}\nurls = [\"http://a.example\", \
                 \"/x=HTTP://A.example:80/\"]"
            );
            let config: Config = toml::from_str(&text).unwrap();
            let plan = OriginPlan::check(&config).unwrap().unwrap();
            let directory = plan.place.directory(origin::OBJECTS).unwrap();
            assert_eq!(directory.to_string(), hidden);
            assert_eq!(plan.place.is_among_files, is_among_files);
            assert_eq!(plan.origins.len(), 1, "that is one");
            OriginPlan::look(&config).unwrap();
        }
        let elsewhere =
            "nic.root = \"/usr\"\norigin = { urls = [\"http://a.example\"], cache_dir = \"/tmp\" }";
        let config: Config = toml::from_str(elsewhere).unwrap();
        let failure = OriginPlan::look(&config).unwrap_err().to_string();
        assert!(failure.contains("not below ROOT"), "{failure}");
        let config: Config = toml::from_str("nic.root = \"/nowhere\"").unwrap();
        assert!(OriginPlan::check(&config).unwrap().is_none());
    }
}
