#!/usr/bin/env bash
# nginx 1.22.1 (Debian 12) over HTTP/2: trailers of a request, which RFC 9113 §8.1 permits, end the whole connection. The
# request that had them is answered with 200; then comes GOAWAY with PROTOCOL_ERROR ("client sent HEADERS frame with
# incorrect identifier" in the log), and the other streams of the connection end. The same request without trailers
# leaves the connection alone. A client that sends a checksum behind an upload, as Go's net/http does with
# Request.Trailer, loses the downloads beside it.
#
# The client is h2 4.3.0 for Python: stream 1 downloads a file of 1 MB, of which the window admits a part; stream 3 sends
# a body, with trailers or without; then the window opens. Seen: with trailers GOAWAY 1 and 65,535 bytes of stream 1;
# without, no GOAWAY and all 1,000,000.
#
# Needs bash, Debian 12 (apt-get download, libraries of nginx), dpkg-deb, Python 3 with venv; takes packages from Debian and PyPI.
set -euo pipefail
version=1.22.1-9+deb12u11
place=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" 2>/dev/null || true; }; rm -rf "$place"' EXIT
cd "$place"
apt-get download --quiet nginx="$version" >/dev/null 2>&1
dpkg-deb --extract ./*.deb debian
python3 -m venv python
python/bin/pip install --quiet h2==4.3.0
mkdir root
head -c 1000000 /dev/zero >root/file
cat >nginx.conf <<END
daemon off;
master_process off;
pid $place/pid;
error_log $place/log info;
events {}
http {
    access_log off;
    client_body_temp_path $place/body;
    server {
        listen 127.0.0.1:18082 http2;
        root $place/root;
        location = /upload { return 200; }
    }
}
END
debian/usr/sbin/nginx -p "$place" -c nginx.conf 2>/dev/null &
server=$!
until (: </dev/tcp/127.0.0.1/18082) 2>/dev/null; do kill -0 "$server"; done

cat >client.py <<'END'
import socket, sys
import h2.connection, h2.events

has_trailers = sys.argv[1] == "with"
tcp = socket.create_connection(("127.0.0.1", 18082), timeout=10)
client = h2.connection.H2Connection()
client.initiate_connection()
fields = lambda method, path: [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path)]
client.send_headers(1, fields("GET", "/file"), end_stream=True)
client.send_headers(3, fields("POST", "/upload"))
client.send_data(3, b"body", end_stream=not has_trailers)
if has_trailers:
    client.send_headers(3, [("checksum", "0")], end_stream=True)
tcp.sendall(client.data_to_send())
received, code, status, is_over, is_open = 0, None, None, False, False
while not is_over:
    data = tcp.recv(65536)
    if not data:
        break
    for event in client.receive_data(data):
        if isinstance(event, h2.events.DataReceived) and event.stream_id == 1:
            received += len(event.data)
        elif isinstance(event, h2.events.ResponseReceived) and event.stream_id == 3:
            status = dict(event.headers)[b":status"].decode()
        elif isinstance(event, h2.events.ConnectionTerminated):
            code, is_over = int(event.error_code), True
        elif isinstance(event, h2.events.StreamEnded) and event.stream_id == 1:
            is_over = True
    if status and not is_over and not is_open:
        # The upload is answered: the download may go on.
        client.increment_flow_control_window(1 << 20)
        client.increment_flow_control_window(1 << 20, stream_id=1)
        is_open = True
    if not is_over:
        tcp.sendall(client.data_to_send())
print(f"status {status}, GOAWAY {code}, {received} bytes")
END
with=$(python/bin/python client.py with)
without=$(python/bin/python client.py without)
echo "with trailers: $with; without: $without"
grep -q "client sent HEADERS frame with incorrect identifier" log
[ "$without" = "status 200, GOAWAY None, 1000000 bytes" ]
[[ $with = "status 200, GOAWAY 1, "* && $with != *" 1000000 bytes" ]]
