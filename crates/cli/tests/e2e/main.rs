//! The program against the kernel's TCP.
//!
//! Each test runs in network, mount and process namespaces of its own, as root or through a user
//! namespace: `splitway serve` makes its link there, and the kernel's end of it is the client.
//! Every byte of every response is compared with what the file holds.
#![forbid(unsafe_code)]

mod arm;
mod attacks;
mod browser;
mod capture;
mod clients;
mod cluster;
mod concurrency;
mod config;
mod dashboard_long;
mod deaths;
mod division;
mod dpu;
mod drain;
mod emulated;
mod fast_open;
mod file_systems;
mod foreign;
mod foreign_long;
mod forked_sets;
mod http;
mod http3;
mod http3_long;
mod https;
mod idle;
mod inherited;
mod isolation;
mod lifetime;
mod lighttpd_long;
mod links;
mod listing;
mod logs;
mod metrics;
mod notice;
mod origin;
mod own_client;
mod peers;
mod player_long;
mod players_long;
mod programs;
mod proxy;
mod proxy_ends;
mod redbot_long;
mod restart;
mod routed;
mod run;
mod run_calls;
mod run_compared;
mod run_compat;
mod run_compat_long;
mod run_flat_long;
mod run_programs;
mod run_programs_long;
mod run_stats;
mod setup;
mod several_nics;
mod sizes;
mod sockets;
mod sockets_stat;
mod sockets_table;
mod spliced;
mod spliced_bad;
mod spliced_haproxy;
mod spliced_paths;
mod spliced_sockets;
mod stat;
mod support;
mod teardown;
mod tls;
mod tls_bad;
mod tls_long;
mod versions;
