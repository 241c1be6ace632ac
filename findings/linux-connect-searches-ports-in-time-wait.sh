#!/usr/bin/env bash
# Linux 6.18: connect() to one address and port takes milliseconds of CPU time once most local ports are in TIME-WAIT. The
# kernel tries port after port from a random one on, and looks each up among the connections to that peer, in thousands of
# look-ups. Nothing fails, and no counter tells: a load generator that closes its connections itself finds that its server has
# become slow after half a minute, and the time is its own. tcp_tw_reuse or more source addresses hide it; fewer
# tcp_max_tw_buckets end it.
#
# A client in a namespace makes 28,000 connections to one address, of 28,232 ports, and closes each first. Seen: a hundred
# calls of connect() take 2.7 ms of CPU time at first, and 469 ms after 21,700 others; the script wants twenty times as much.
#
# Needs root, bash, iproute2, Python 3; takes no packages.
set -euo pipefail
if [ "${1:-}" != inside ]; then
    unshare --net --mount --pid --fork --kill-child --mount-proc "$0" inside
    exit
fi
ip link set lo up
sysctl -q net.ipv4.tcp_tw_reuse=0 net.ipv4.ip_local_port_range="32768 60999" net.ipv4.tcp_max_tw_buckets=60000
python3 - <<'END'
import socket, threading, time

listener = socket.create_server(("127.0.0.1", 9000), backlog=4096)

def serve():
    while True:
        peer, _ = listener.accept()
        # The client closes first, and keeps TIME-WAIT.
        peer.recv(1)
        peer.close()

threading.Thread(target=serve, daemon=True).start()

def connects(count):
    """CPU time of this thread in connect(), in seconds."""
    used = 0.0
    for _ in range(count):
        client = socket.socket()
        begun = time.thread_time()
        client.connect(("127.0.0.1", 9000))
        used += time.thread_time() - begun
        client.close()
    return used

blocks = [connects(100) for _ in range(280)]
first, worst = blocks[0], max(blocks)
print(f"100 calls of connect(): at first {first * 1000:.1f} ms of CPU time, at worst {worst * 1000:.0f} ms, "
      f"after {100 * blocks.index(worst)} others")
assert worst > 20 * first
END
