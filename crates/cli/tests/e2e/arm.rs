//! The NIC stack on another machine that is another kind of machine as well: aarch64, emulated,
//! with a kernel of its own. Host stack and clients are as in [`crate::dpu`].
//!
//! ```text
//! client's bridge ─── nic-port   data ── bridge ── tap-data ──┐
//!                                                             │ qemu: splitway nic --control
//! host: client ─── near   far  uplink ── bridge ── tap-control┘
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use testbed::http::download;
use testbed::namespace::{isolated_long, within};
use testbed::path::UPLINK;
use testbed::process::run;
use testbed::site::KnownFile;

use crate::dpu::{Machines, NicMachine, servers};
use crate::support::{on_threads, program};

/// By which the machine's first process (`scripts/aarch64-init`) tells one link from the other.
const CONTROL_MAC: &str = "02:00:00:00:00:0c";

/// Kernel and first file system of the machine, which `scripts/aarch64.sh machine` puts beside the
/// builds.
fn part(name: &str) -> PathBuf {
    let mut ancestors = program().ancestors();
    let builds = ancestors.nth(2).unwrap();
    let part = builds.join("aarch64-machine").join(name);
    assert!(
        part.exists(),
        "there is no {}: run scripts/aarch64.sh machine",
        part.display()
    );
    part
}

/// A disk with the files below the root, and the key.
fn disk(machines: &Machines, files: &[KnownFile]) -> PathBuf {
    let outside = machines.site.outside();
    let content = outside.join("content");
    let served = content.join("files");
    std::fs::create_dir_all(&served).unwrap();
    for file in files {
        std::fs::copy(
            machines.site.root().join(file.name()),
            served.join(file.name()),
        )
        .unwrap();
    }
    // With its mode: a key that others may read is refused.
    std::fs::copy(outside.join("key"), content.join("key")).unwrap();
    let disk = outside.join("disk");
    run(Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-d"])
        .args([&content, &disk])
        .arg("64M"))
    .unwrap();
    disk
}

fn nic_machine(machines: &Machines, disk: &Path) -> NicMachine {
    let namespace = machines.path.beyond();
    for (device, link) in [(UPLINK, "control"), ("data", "data")] {
        for line in [
            format!("ip link add bridge-{link} type bridge"),
            format!("ip tuntap add tap-{link} mode tap"),
            format!("ip link set {device} master bridge-{link}"),
            format!("ip link set tap-{link} master bridge-{link} up"),
            format!("ip link set bridge-{link} up"),
        ] {
            run(&mut within(namespace, &line)).unwrap();
        }
    }
    let mut qemu = within(
        namespace,
        "qemu-system-aarch64 -machine virt -cpu cortex-a72 -smp 2 -m 512 -no-reboot -nodefaults \
         -display none -serial stdio",
    );
    qemu.args(["-append", "console=ttyAMA0 quiet panic=-1", "-kernel"]);
    qemu.arg(part("kernel")).arg("-initrd").arg(part("initrd"));
    let disk = disk.display();
    qemu.args([
        "-drive",
        &format!("file={disk},format=raw,if=none,id=disk,readonly=on"),
    ]);
    qemu.args(["-device", "virtio-blk-device,drive=disk"]);
    for (link, mac) in [("control", CONTROL_MAC), ("data", "02:00:00:00:00:0d")] {
        qemu.args([
            "-netdev",
            &format!("tap,id={link},ifname=tap-{link},script=no,downscript=no"),
            "-device",
            &format!("virtio-net-device,netdev={link},mac={mac}"),
        ]);
    }
    NicMachine::spawn(&mut qemu)
}

#[test]
#[ignore = "boots an emulated machine, which takes a minute or more"]
fn an_emulated_arm_machine_serves_every_byte() {
    isolated_long(|site| {
        let files = [0, 1, 1448, 100_000, 3_000_001].map(|size| {
            let name = format!("file-{size}");
            site.file(&name, size).unwrap()
        });
        let machines = Machines::new(site, &["--loss", "1%", "--seed", "13"]);
        let disk = disk(&machines, &files);
        let mut nic = nic_machine(&machines, &disk);
        let mut host = machines.host_stack(&nic);
        nic.next_session();
        for server in servers() {
            for file in &files {
                download(server, file).unwrap();
            }
        }
        on_threads(20, |index| {
            download(servers()[index % 2], &files[3 + index % 2]).map(|_| ())
        });
        assert!(host.end_with(Signal::INT).unwrap().success());
        // It is there for the next host stack, and that gets a process of its own.
        let mut host = machines.host_stack(&nic);
        nic.next_session();
        download(servers()[0], &files[4]).unwrap();
        assert!(host.end_with(Signal::INT).unwrap().success());
    });
}
