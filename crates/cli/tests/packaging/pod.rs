//! Splitway in the network of a pod, as deploy/pod-network makes it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use testbed::http::download;
use testbed::namespace::{Network, isolated, within};
use testbed::process::{run, tool};
use testbed::splitway::Splitway;

use crate::container::pod_commands;
use crate::support::{PROGRAM, sh};

/// A file of the tree.
pub(crate) fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

#[test]
fn clients_reach_a_pods_stack_at_the_pods_address() {
    isolated(|site| {
        let file = site.file("file", 3_000_001).unwrap();
        let pod = Network::new().unwrap();
        let holder = pod.holder();
        let inside = |line: &str| run(&mut within(holder, line)).unwrap();
        // The node's network is this one; its MTU is that of an overlay.
        let pid = holder.as_raw_nonzero();
        sh(&format!(
            "ip link add node mtu 1450 type veth peer name eth0 mtu 1450 netns {pid}"
        ));
        sh("ip address add 198.51.100.1/24 dev node");
        sh("ip address add 2001:db8::1/64 dev node nodad");
        sh("ip link set node up");
        inside("ip link set lo up");
        inside("ip link set eth0 up");
        inside("ip address add 198.51.100.2/24 dev eth0");
        inside("ip address add 2001:db8::2/64 dev eth0 nodad");
        inside("ip route add default via 198.51.100.1");
        inside("ip -6 route add default via 2001:db8::1");
        let script = tree("deploy/pod-network");
        run(within(holder, "sh").arg(&script).args(["80", "8080"])).unwrap();

        // With what the manifest says, and IPv6.
        let (args, _) = pod_commands();
        let args = args.iter().map(|word| match word.as_str() {
            "/srv/www" => site.root().to_str().unwrap().to_owned(),
            word => word
                .replace("--addr=", "--addr=fd77::2/64,")
                .replace("--gateway=", "--gateway=fd77::1,"),
        });
        let mut serve = within(holder, "setpriv --no-new-privs");
        serve.arg("--bounding-set=-all,+net_raw,+dac_read_search,+ipc_lock");
        let _splitway = Splitway::start(serve.arg(PROGRAM).args(args)).unwrap();
        for server in ["198.51.100.2:80", "[2001:db8::2]:80"] {
            download(server.parse::<SocketAddr>().unwrap(), &file).unwrap();
        }
        // Packets for others are not forwarded, so that none goes round in a circle.
        let forwarded = inside("nft list table inet splitway");
        assert!(forwarded.contains("8080"), "{forwarded}");
        let other = tool("curl -q --silent --max-time 2 http://198.51.100.2:8081/")
            .output()
            .unwrap();
        assert_eq!(
            other.status.code(),
            Some(7),
            "refused by the pod's kernel: {other:?}"
        );
    });
}
