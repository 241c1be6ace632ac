//! Checks before serving that memory for content is available: pages are allocated on use, so a
//! mapping proves nothing.

use failure::Failure;
use nic::RunError;
use rustix::process::{Resource, getrlimit};
use sandbox::memory_limit;

use config::size::{Size, cache_bytes};

/// Fails unless the part of `--cache` without huge pages, `ordinary_bytes`, is available.
/// `is_first`: no predecessor holds that memory.
pub fn check(cache: Size, ordinary_bytes: u64, is_first: bool) -> Result<(), Failure> {
    Limits::here(is_first).check(cache, ordinary_bytes)
}

/// Returns the share of a cache in ordinary pages if `ordinary` of its workers use them.
pub fn ordinary_bytes(cache: Size, ordinary: u64, workers: u64) -> u64 {
    let bytes = u128::from(cache.0) * u128::from(ordinary) / u128::from(workers.max(1));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Returns the share of a cache that huge pages of `huge_bytes` in total do not cover. Each worker
/// uses one kind of pages.
pub fn ordinary_bytes_beside(cache: Size, huge_bytes: u64, workers: u64) -> u64 {
    let workers = workers.max(1);
    let huge = huge_bytes / (cache.0 / workers).max(1);
    ordinary_bytes(cache, workers.saturating_sub(huge), workers)
}

/// Returns the memory for content of each of `stacks` NIC stacks if no size is given: the default,
/// or less if little memory is free, which is logged.
///
/// # Errors
///
/// The memory does not suffice for `workers` workers.
pub fn default_cache(workers: u16, stacks: usize) -> Result<Size, Failure> {
    let wanted = cache_bytes(None, 1, memory_limit::limit_bytes()) as u64;
    if memory_limit::huge_bytes_set_aside() >= wanted {
        return Ok(Size(wanted));
    }
    Limits::here(true).default_cache(Size(wanted), workers, stacks)
}

/// Returns the failure when the kernel refuses memory: the limit that was reached, or the kernel's
/// error.
pub fn refused(cache: Option<Size>, is_first: bool, error: &RunError) -> Failure {
    if let Some(Err(failure)) = cache.map(|cache| check(cache, cache.0, is_first)) {
        return failure;
    }
    let what = cache.map_or_else(|| "cache".to_owned(), |cache| format!("--cache {cache}"));
    Failure::input(what, error)
}

/// Limits in bytes, with their names.
struct Limits(Vec<(u64, &'static str)>);

impl Limits {
    fn here(is_first: bool) -> Self {
        let address_space = getrlimit(Resource::As).current;
        let machine = memory_limit::machine();
        let mut limits = vec![
            (
                machine.map(|machine| machine.total_bytes),
                "the machine has only",
            ),
            (
                memory_limit::limit_bytes(),
                "the memory limit of the control group is",
            ),
            (
                address_space,
                "the limit on the address space (ulimit -v) is",
            ),
        ];
        if is_first {
            limits.push((
                machine.map(|machine| machine.available_bytes),
                "the machine has only free or reclaimable",
            ));
            limits.push((
                memory_limit::left_bytes(),
                "the control group has only left of its memory limit",
            ));
        }
        let known = limits.into_iter();
        Self(
            known
                .filter_map(|(bytes, what)| Some((bytes?, what)))
                .collect(),
        )
    }

    fn check(&self, cache: Size, ordinary_bytes: u64) -> Result<(), Failure> {
        let least = self.0.iter().min_by_key(|(bytes, _)| *bytes);
        let Some((bytes, what)) = least.filter(|(bytes, _)| *bytes < ordinary_bytes) else {
            return Ok(());
        };
        // Whole megabytes are precise enough for the message.
        let bytes = Size(bytes >> 20 << 20);
        let why = format!("there is not so much memory: {what} {bytes}");
        Err(Failure::input(format!("--cache {cache}"), why).remedy(
            "Give less with --cache, or cache in [nic]; or raise the limit, free memory, or set \
             huge pages aside\n(vm.nr_hugepages).",
        ))
    }

    /// Leaves half of the free memory to the other processes and the page cache.
    fn default_cache(&self, wanted: Size, workers: u16, stacks: usize) -> Result<Size, Failure> {
        let least = nic::Config::CACHE_BYTES_MIN as u64 * u64::from(workers);
        let wanted = Size(wanted.0.max(least));
        let Some((free, what)) = self.0.iter().min_by_key(|(bytes, _)| *bytes) else {
            return Ok(wanted);
        };
        let each = free / stacks.max(1) as u64;
        let megabytes = |bytes: u64| Size(bytes >> 20 << 20);
        if each < least {
            let why = format!(
                "there is not so much memory: {what} {}, and {workers} workers need {}",
                megabytes(*free),
                Size(least),
            );
            return Err(Failure::input("the cache", why)
                .remedy("Raise the limit or free memory, or give fewer workers."));
        }
        if each / 2 >= wanted.0 {
            return Ok(wanted);
        }
        let cache = Size(megabytes(each / 2).0.max(least));
        tracing::warn!(
            "the cache has {cache} instead of {}: {what} {}; --cache, or cache in [nic], sets its \
             size",
            megabytes(wanted.0),
            megabytes(*free),
        );
        Ok(cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_decides_and_is_named() {
        let limits = Limits(vec![
            (8 << 30, "the machine has only"),
            ((2 << 30) + 77, "the control group has only"),
        ]);
        limits.check(Size(2 << 30), 2 << 30).unwrap();
        limits.check(Size(4 << 30), 2 << 30).unwrap();
        let failure = limits.check(Size(4 << 30), 4 << 30).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        let text = failure.to_string();
        assert!(
            text.starts_with(
                "--cache 4G: there is not so much memory: the control group has only 2G"
            ),
            "{text}"
        );
        Limits(Vec::new()).check(Size(1 << 40), 1 << 40).unwrap();
    }

    #[test]
    fn the_default_is_at_most_half_of_what_is_free() {
        const MIB: u64 = 1 << 20;
        let cache = |free: u64, workers, stacks| {
            let limits = Limits(vec![
                (8 << 30, "the machine has only"),
                (free, "the control group has only"),
            ]);
            let cache = limits.default_cache(Size(1024 * MIB), workers, stacks);
            cache.map(|Size(bytes)| bytes)
        };
        assert_eq!(cache(2048 * MIB, 1, 1).unwrap(), 1024 * MIB);
        assert_eq!(cache(2047 * MIB, 1, 1).unwrap(), 1023 * MIB);
        assert_eq!(cache(2048 * MIB, 1, 2).unwrap(), 512 * MIB);
        // Less than half of the rest is too little for the workers.
        let least = nic::Config::CACHE_BYTES_MIN as u64;
        assert_eq!(cache(4 * least, 3, 1).unwrap(), 3 * least);
        let failure = cache(4 * least - 1, 4, 1).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        let text = failure.to_string();
        let expected =
            "the cache: there is not so much memory: the control group has only 16M, and 4 workers";
        assert!(text.starts_with(expected), "{text}");
        let unknown = Limits(Vec::new()).default_cache(Size(1024 * MIB), 1, 1);
        assert_eq!(unknown.unwrap(), Size(1024 * MIB));
    }

    #[test]
    fn no_machine_has_a_hundred_terabytes() {
        for is_first in [false, true] {
            check(Size(100 << 40), 100 << 40, is_first).unwrap_err();
            check(Size(1 << 20), 1 << 20, is_first).unwrap();
        }
    }

    #[test]
    fn only_workers_without_huge_pages_need_ordinary_memory() {
        let cache = Size(8 << 30);
        for (ordinary, bytes) in [(0, 0), (1, 2 << 30), (4, 8 << 30)] {
            assert_eq!(ordinary_bytes(cache, ordinary, 4), bytes);
        }
        for (huge_bytes, bytes) in [
            (0, 8 << 30),
            ((2 << 30) - 1, 8 << 30),
            (2 << 30, 6 << 30),
            (7 << 30, 2 << 30),
            (8 << 30, 0),
            (u64::MAX, 0),
        ] {
            assert_eq!(ordinary_bytes_beside(cache, huge_bytes, 4), bytes);
        }
        assert_eq!(ordinary_bytes_beside(Size(0), 0, 0), 0);
        assert_eq!(ordinary_bytes(Size(u64::MAX), 3, 3), u64::MAX);
    }
}
