//! The benchmarks, by name, except the figures of the paper.
//!
//! | Module | Measurement |
//! |---|---|
//! | `plain`, `disk`, `tls` | files in memory; files that are not; files over TLS, and handshakes |
//! | `http2` | files over HTTP/2, against nginx and HTTP/1.1 |
//! | `workers` | one NIC worker against several |
//! | `targets` | the targets of the project, all in one run |
//! | `ceiling` | how much one host core controls |
//! | `model` | simulated: hardware that is not here, and 100 to 800 Gbit/s |
//! | `latency` | one client of an idle server |
//! | `load_mix` | everything at once: sizes, ranges, slow readers, clients that go away, reloads |
//! | `share` | an address that is shared with the kernel |
//! | `soak` | resources after millions of connections, reloads, deaths |
//! | `sockets` | programs on split sockets, against the kernel's and the host process's server |
//! | `programs` | unmodified programs on split sockets, against the same on the kernel's |
//! | `proxy` | `splitway proxy`, against HAProxy and nginx, and the benefit of splicing |
//! | `offload` | short connections with setup and teardown offloaded, against kernel sockets |
//! | `quic` | files over HTTP/3, against plain quinn, ngtcp2, Caddy, quic-go and aioquic |
//! | `quic_engines` | how datagrams leave, and what sealing costs beside it |
//! | `goodput` | goodput and fairness over emulated links |
//! | `all` | several benchmarks in one run |

pub(crate) mod all;
pub(crate) mod ceiling;
pub(crate) mod disk;
pub(crate) mod goodput;
pub(crate) mod http2;
pub(crate) mod latency;
pub(crate) mod load_mix;
pub(crate) mod model;
pub(crate) mod offload;
pub(crate) mod plain;
pub(crate) mod programs;
pub(crate) mod proxy;
pub(crate) mod quic;
pub(crate) mod quic_engines;
pub(crate) mod share;
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

    /// Parses the arguments of a subprocess of this program: a command, and its options.
    pub(crate) fn read<S: Args>(arguments: &[String]) -> S {
        let options: Vec<&str> = arguments[1..].iter().map(String::as_str).collect();
        settings(&options)
    }
}
