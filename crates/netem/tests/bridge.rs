//! The emulator between two veth pairs, each test in a network namespace of its own.
#![forbid(unsafe_code)]

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netdev::packet::PromiscuousPort;
use netdev::packet::virtio::VirtioNetHeader;
use netem::bridge::{Bridge, Settings};
use netem::conditions::Changes;
use netem::report::Report;
use testbed::link;
use testbed::namespace::{Network, isolated, within};
use testbed::process::{Process, run, tool};
use testbed::wait;

/// Long enough for anything that is going to happen.
const SOON: Duration = Duration::from_secs(20);

/// EtherType for local experiments (IEEE 802): the kernel takes no notice.
const EXPERIMENT: u16 = 0x88b5;

fn ip(arguments: &str) {
    run(&mut tool(&format!("ip {arguments}"))).unwrap();
}

/// `va` - `near` and `far` - `vb`: the emulator joins the inner ones.
fn veth_pairs() {
    for (outer, inner) in [("va", "near"), ("vb", "far")] {
        ip(&format!("link add {outer} type veth peer name {inner}"));
        for end in [outer, inner] {
            ip(&format!("link set {end} addrgenmode none"));
            ip(&format!("link set {end} up"));
        }
        link::await_ready(&[outer, inner], &[]).unwrap();
    }
}

fn settings(ab: &str, ba: &str, seed: u64) -> Settings {
    let conditions = |text: &str| text.parse::<Changes>().unwrap().conditions().unwrap();
    Settings {
        directions: [conditions(ab), conditions(ba)],
        seed,
    }
}

/// Runs the emulator while `work` does something.
fn with_emulator<T>(settings: Settings, work: impl FnOnce() -> T) -> (T, Report) {
    let mut bridge = Bridge::open(["near", "far"], settings).unwrap();
    let (stop, stopped) = std::io::pipe().unwrap();
    let done = std::thread::scope(|scope| {
        let emulator = scope.spawn(|| bridge.run(stop.as_fd()));
        let done = work();
        drop(stopped);
        emulator.join().unwrap().unwrap();
        done
    });
    (done, bridge.report().unwrap())
}

fn numbered(number: u32) -> Vec<u8> {
    let mut frame = vec![0xff; 12];
    frame.extend(EXPERIMENT.to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame.resize(100, 0);
    frame
}

/// Sends numbered frames from `va` to `vb`, in batches; which arrive, in order.
fn arrivals(settings: Settings, count: u32, batch: u32) -> (Vec<u32>, Report) {
    let mut from = PromiscuousPort::open("va").unwrap();
    let mut to = PromiscuousPort::open("vb").unwrap();
    with_emulator(settings, || {
        let mut arrived = Vec::new();
        let mut take = |arrived: &mut Vec<u32>| {
            to.receive(1000, &mut |arrival| {
                if arrival.bytes[12..14] == EXPERIMENT.to_be_bytes() {
                    arrived.push(u32::from_be_bytes(
                        *arrival.bytes[14..].first_chunk().unwrap(),
                    ));
                }
            })
            .unwrap()
        };
        for number in 0..count {
            from.send(VirtioNetHeader::default(), [&numbered(number), &[]])
                .unwrap();
            if number % batch == 0 {
                from.receive(1000, &mut |_| {}).unwrap();
                take(&mut arrived);
            }
        }
        // Sent until one arrives: behind it nothing of the others is on the way.
        let mut lasts = 0;
        wait::until(SOON, "the last frame", || {
            from.send(VirtioNetHeader::default(), [&numbered(u32::MAX), &[]])
                .unwrap();
            lasts += 1;
            take(&mut arrived);
            arrived.contains(&u32::MAX).then_some(())
        })
        .unwrap();
        arrived.retain(|number| *number != u32::MAX);
        arrived
    })
}

#[test]
fn the_same_seed_loses_the_same_frames() {
    isolated(|_| {
        veth_pairs();
        let (first, report) = arrivals(settings("loss=5%", "delay=0", 42), 2000, 10);
        assert!(first.is_sorted());
        assert!((1850..1950).contains(&first.len()), "{}", first.len());
        let [ab, ba] = &report.directions;
        assert_eq!((ab.from.as_str(), ab.to.as_str()), ("near", "far"));
        assert!(ab.counters.lost >= 2000 - first.len() as u64);
        assert_eq!((ab.overrun, ab.refused, ba.counters.frames), (0, 0, 0));

        let slower = "loss=5%,delay=2ms,jitter=1ms,rate=100mbit,loss=5%";
        let (second, _) = arrivals(settings(slower, "delay=0", 42), 2000, 100);
        assert_eq!(second, first);
        let (other, _) = arrivals(settings("loss=5%", "delay=0", 43), 2000, 10);
        assert_ne!(other, first);
    });
}

#[test]
fn frames_held_back_and_duplicated_arrive() {
    isolated(|_| {
        veth_pairs();
        let both = "delay=2ms,reorder=5%,reorder-by=1ms,duplicate=5%";
        let (mut arrived, report) = arrivals(settings(both, "delay=0", 7), 2000, 10);
        assert!(!arrived.is_sorted());
        let counters = report.directions[0].counters;
        assert!(counters.reordered > 50 && counters.duplicated > 50);
        arrived.sort_unstable();
        arrived.dedup();
        assert_eq!(arrived, (0..2000).collect::<Vec<_>>());
    });
}

#[test]
fn nothing_arrives_before_its_time() {
    isolated(|_| {
        veth_pairs();
        let from = PromiscuousPort::open("va").unwrap();
        let mut to = PromiscuousPort::open("vb").unwrap();
        // A frame of 1,250 bytes takes 1 ms at 10 Mbit/s.
        let conditions = "delay=3ms,rate=10mbit";
        let (elapsed, report) = with_emulator(settings(conditions, "delay=0", 1), || {
            let start = Instant::now();
            let mut frame = numbered(0);
            frame.resize(1250, 0);
            for _ in 0..10 {
                from.send(VirtioNetHeader::default(), [&frame, &[]])
                    .unwrap();
            }
            let mut arrived = 0;
            wait::until(SOON, "ten frames", || {
                arrived += to.receive(100, &mut |_| {}).unwrap();
                (arrived == 10).then_some(())
            })
            .unwrap();
            start.elapsed()
        });
        assert!(elapsed >= Duration::from_millis(13), "{elapsed:?}");
        assert_eq!(report.directions[0].lateness.departures, 10);
    });
}

/// The kernel's TCP sends superpackets over a veth pair; here they lose single packets.
#[test]
fn the_kernels_tcp_gets_every_byte_through() {
    const BYTES: usize = 8_000_000;
    isolated(|site| {
        veth_pairs();
        let network = Network::new().unwrap();
        let pid = network.holder().as_raw_nonzero();
        ip(&format!("link set vb netns {pid}"));
        let inside = |line: &str| run(&mut within(network.holder(), line)).unwrap();
        inside("ip link set vb up");
        inside("ip address add 10.79.0.2/24 dev vb");
        ip("address add 10.79.0.1/24 dev va");
        let byte_at = |at: usize| (at / 3 + at / 1009) as u8;
        let sent: Vec<u8> = (0..BYTES).map(byte_at).collect();
        let file = site.outside().join("sent");
        std::fs::write(&file, &sent).unwrap();
        for conditions in [
            "delay=100us",
            "delay=1ms,rate=400mbit,queue=256kb,loss=1%,reorder=1%,duplicate=1%",
        ] {
            let (received, report) = with_emulator(settings(conditions, conditions, 3), || {
                let server: SocketAddr = "10.79.0.1:9000".parse().unwrap();
                let listener = TcpListener::bind(server).unwrap();
                let mut sender = Process::spawn(
                    within(network.holder(), "bash -c")
                        .arg(format!("cat {} > /dev/tcp/10.79.0.1/9000", file.display())),
                )
                .unwrap();
                let (mut stream, _) = listener.accept().unwrap();
                let mut received = Vec::new();
                stream.read_to_end(&mut received).unwrap();
                assert!(sender.wait(SOON).unwrap().success());
                received
            });
            assert!(received == sent, "{conditions}: wrong bytes");
            let data = report.directions[1].counters;
            assert!(data.packets >= (BYTES / 1448) as u64, "{data:?}");
            assert!(data.frames < data.packets / 2, "no superpackets: {data:?}");
            assert_eq!(data.lost > 0, conditions.contains("loss"));
        }
    });
}
