#!/usr/bin/env bash
# nginx 1.22.1 (Debian 12) over HTTP/2: a response without content ends twice where its head has to wait for room in the
# socket. HEADERS have END_STREAM, and an empty DATA frame with END_STREAM follows, on a stream that is closed for its
# peer (RFC 9113 §5.1: a stream error of type STREAM_CLOSED). Where the head leaves at once there is only HEADERS: so it
# happens beside large responses of the same connection alone. A proxy that counts errors of its backends counts these.
#
# The client speaks by hyperframe 6.1.0 for Python: stream 1 downloads a file of 20 MB that is not read at first, or of
# no bytes; stream 3 an empty one. Seen for stream 3: beside the large file "HEADERS+END_STREAM DATA+END_STREAM", beside
# the empty one "HEADERS+END_STREAM".
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
python/bin/pip install --quiet hyperframe==6.1.0 hpack==4.1.0
mkdir root
truncate --size 20000000 root/large
: >root/empty
cat >nginx.conf <<END
daemon off;
master_process off;
pid $place/pid;
error_log $place/log;
events {}
http {
    access_log off;
    client_body_temp_path $place/body;
    server {
        listen 127.0.0.1:18083 http2;
        root $place/root;
    }
}
END
debian/usr/sbin/nginx -p "$place" -c nginx.conf 2>/dev/null &
server=$!
until (: </dev/tcp/127.0.0.1/18083) 2>/dev/null; do kill -0 "$server"; done

cat >client.py <<'END'
import socket, sys, time
from hpack import Encoder
from hyperframe.frame import DataFrame, Frame, HeadersFrame, SettingsFrame, WindowUpdateFrame

beside = sys.argv[1]
encoder, window_max = Encoder(), 2**31 - 1
tcp = socket.create_connection(("127.0.0.1", 18083), timeout=10)

def get(stream, path):
    fields = [(":method", "GET"), (":scheme", "http"), (":authority", "a"), (":path", path)]
    return HeadersFrame(stream, encoder.encode(fields), flags=["END_HEADERS", "END_STREAM"]).serialize()

windows = SettingsFrame(settings={SettingsFrame.INITIAL_WINDOW_SIZE: window_max}).serialize()
windows += WindowUpdateFrame(0, window_increment=window_max - 65535).serialize()
tcp.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + windows + get(1, beside))
time.sleep(1)
tcp.sendall(get(3, "/empty"))
time.sleep(1)
# The answer to PING follows everything before it.
tcp.sendall(bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8))
reader, seen, ended, answered = tcp.makefile("rb"), [], set(), False
while not (answered and ended == {1, 3}):
    frame, length = Frame.parse_frame_header(memoryview(reader.read(9)))
    reader.read(length)
    if "END_STREAM" in frame.flags:
        ended.add(frame.stream_id)
    if frame.stream_id == 3 and isinstance(frame, (HeadersFrame, DataFrame)):
        name = type(frame).__name__.removesuffix("Frame").upper()
        seen.append(name + ("+END_STREAM" if "END_STREAM" in frame.flags else ""))
    answered |= frame.type == 6 and "ACK" in frame.flags
print(*seen)
END
large=$(python/bin/python client.py /large)
empty=$(python/bin/python client.py /empty)
echo "beside a large response: $large; beside an empty one: $empty"
[ "$large" = "HEADERS+END_STREAM DATA+END_STREAM" ]
[ "$empty" = "HEADERS+END_STREAM" ]
