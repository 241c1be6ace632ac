//! Cores of the servers.

use crate::CLIENT_CORE;

/// Returns `count` cores for servers, for `taskset`: all but the client's, unless all are needed.
pub(crate) fn server_cores(count: usize) -> String {
    server_cores_of(
        count,
        std::thread::available_parallelism().map_or(1, usize::from),
    )
}

fn server_cores_of(count: usize, there: usize) -> String {
    let others = (0..there).filter(|core| *core != CLIENT_CORE);
    let cores = others.chain([CLIENT_CORE]).take(count);
    let cores: Vec<String> = cores.map(|core| core.to_string()).collect();
    cores.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_have_the_clients_core_only_if_they_have_all() {
        assert_eq!(server_cores_of(1, 2), "0");
        assert_eq!(server_cores_of(3, 8), "0,2,3");
        assert_eq!(server_cores_of(2, 2), "0,1");
    }
}
