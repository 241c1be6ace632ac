//! What can be asked for by name, but for the figures of the paper.
//!
//! | Module | What it measures |
//! |---|---|
//! | `plain`, `disk`, `tls` | files in memory; files that are not; files over TLS, and handshakes |
//! | `workers` | one NIC worker against several |
//! | `targets` | the targets of the project, all in one run |
//! | `ceiling` | how much one host core controls |
//! | `model` | simulated: hardware that is not here, and 100 to 800 Gbit/s |
//! | `latency` | one client of an idle server |
//! | `load_mix` | everything at once: sizes, ranges, slow readers, clients that go away, reloads |
//! | `soak` | whether anything is left behind: millions of connections, reloads, deaths |
//! | `sockets` | programs on split sockets, against the kernel's and the server in the host process |
//! | `programs` | unmodified programs on split sockets, against the same on the kernel's |
//! | `proxy` | `splitway proxy`, against HAProxy and nginx, and what a splice is good for |
//! | `offload` | short connections with setup and teardown offloaded, against the kernel's sockets |
//! | `quic` | files over HTTP/3, against plain quinn, ngtcp2, Caddy, quic-go and aioquic |
//! | `quic_engines` | how datagrams leave, and what sealing costs beside it |
//! | `goodput` | goodput and fairness over emulated links |
//! | `all` | several of these |

pub(crate) mod all;
pub(crate) mod ceiling;
pub(crate) mod disk;
pub(crate) mod goodput;
pub(crate) mod latency;
pub(crate) mod load_mix;
pub(crate) mod model;
pub(crate) mod offload;
pub(crate) mod plain;
pub(crate) mod programs;
pub(crate) mod proxy;
pub(crate) mod quic;
pub(crate) mod quic_engines;
pub(crate) mod soak;
pub(crate) mod sockets;
pub(crate) mod targets;
pub(crate) mod tls;
pub(crate) mod workers;

#[cfg(test)]
pub(crate) mod tests {
    use clap::{Args, Parser};

    #[derive(Parser)]
    struct Line<S: Args> {
        #[command(flatten)]
        settings: S,
    }

    /// The settings of a benchmark with these options.
    pub(crate) fn settings<S: Args>(options: &[&str]) -> S {
        let words = ["benchmark"].iter().chain(options);
        Line::parse_from(words).settings
    }

    /// What this program reads of arguments that it is run with: a command, and its options.
    pub(crate) fn read<S: Args>(arguments: &[String]) -> S {
        let options: Vec<&str> = arguments[1..].iter().map(String::as_str).collect();
        settings(&options)
    }
}
