//! The machine's own address for a long time, by many.

use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use testbed::Context;
use testbed::backend::{Backend, Speech};
use testbed::http::{Connection, be_patient};
use testbed::namespace::isolated_long;

use crate::shared::{Machine, echo, servers};
use crate::support::{Random, kill_nics_amid, on_threads};

/// Connections to a program of the kernel, in groups that share a thread.
const KERNELS: usize = 1000;
const PER_THREAD: usize = 50;

/// Clients that download.
const DOWNLOADS: usize = 64;
const ROUNDS: usize = 20;

const DEATHS: usize = 10;

#[test]
#[ignore = "takes minutes"]
fn a_thousand_connections_of_the_kernel_beside_downloads_outlive_ten_nic_processes() {
    isolated_long(|site| {
        let file = site.file("file", 3_000_000).unwrap();
        let machine = Machine::new();
        let _echo = Backend::inside(machine.pid(), 22, Speech::Echo).unwrap();
        let splitway = machine.serve(&site, &[]);
        let done = AtomicUsize::new(0);
        let is_over = || done.load(Ordering::Relaxed) >= DOWNLOADS * ROUNDS;
        kill_nics_amid(&splitway, DEATHS, (&done, DOWNLOADS * ROUNDS), || {
            on_threads(DOWNLOADS + KERNELS / PER_THREAD, |thread| {
                if let Some(group) = thread.checked_sub(DOWNLOADS) {
                    let mut random = Random::of(group as u64 + 1);
                    let mut streams = Vec::new();
                    for member in 0..PER_THREAD {
                        let server = servers(22)[member % 2];
                        let stream = TcpStream::connect(server).context(|| "echo".into())?;
                        be_patient(&stream)?;
                        streams.push(stream);
                    }
                    let mut rounds = 0;
                    while !is_over() || rounds == 0 {
                        for stream in &mut streams {
                            echo(stream, 1000, &mut random)?;
                        }
                        rounds += 1;
                    }
                    return Ok(());
                }
                let mut connection = Connection::open(servers(80)[thread % 2])?;
                for _ in 0..ROUNDS {
                    connection.get(&file)?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            });
        });
    });
}
