//! The option about the memory of the NIC stack.

use clap::Args;
use failure::Failure;

use config::size::Size;
use processes::nic::memory;
use sandbox::memory_limit;

/// The option, of `splitway serve` and of `splitway nic` alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub(crate) struct CacheOption {
    /// Memory of the NIC stack for content, shared by all workers, such as 512M or 2G: cached
    /// blocks, reads under way, and data not yet acknowledged [default: a quarter of the memory of
    /// the machine, or of the control group if its limit is lower, at most 1G and half of what is
    /// free]
    #[arg(long, value_name = "SIZE", requires = "content")]
    pub(crate) cache: Option<Size>,
}

impl CacheOption {
    /// Returns the default size if no size is given. Fails if the size is too small for `workers`
    /// workers, or more than the available memory.
    pub(crate) fn check(self, workers: u16) -> Result<Option<Size>, Failure> {
        let Some(cache) = self.cache else {
            return memory::default_cache(workers, 1).map(Some);
        };
        cache
            .check_for(workers)
            .map_err(|(what, why, remedy)| Failure::input(what, why).remedy(remedy))?;
        let huge_bytes = memory_limit::huge_bytes_set_aside();
        let ordinary_bytes = memory::ordinary_bytes_beside(cache, huge_bytes, workers.into());
        memory::check(cache, ordinary_bytes, true).map(|()| None)
    }
}
