//! Where rings are kept. A program of its own: it looks at all the memory it has.

use std::thread;

use contract::control::{host_hello, nic_hello};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

#[test]
fn the_memory_of_rings_is_not_dumped_and_not_swapped_where_that_is_allowed() {
    let flags = SocketFlags::CLOEXEC;
    let (host_end, nic_end) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let nic = thread::spawn(move || nic_hello(nic_end, 1).unwrap());
    let _host = host_hello(host_end, 1).unwrap();
    let _nic = nic.join().unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut of_rings = 0;
    let mut is_of_rings = false;
    for line in smaps.lines() {
        if line.contains("-") && line.contains(" rw-s ") {
            is_of_rings = line.contains("splitway-channel");
        }
        let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_of_rings) else {
            continue;
        };
        of_rings += 1;
        is_of_rings = false;
        assert!(flags.contains(" dd"), "{flags}");
        // Others may not lock as much as they like.
        if limit.is_none() || rustix::process::geteuid().is_root() {
            assert!(flags.contains(" lo"), "{flags}");
        }
    }
    assert!(of_rings >= 2, "both ends are in this process");
}
