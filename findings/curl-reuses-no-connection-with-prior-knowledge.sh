#!/usr/bin/env bash
# curl 7.88.1 (Debian 12, 7.88.1-10+deb12u15) with --http2-prior-knowledge: the first transfer of a connection succeeds,
# and each further one that reuses it fails with "(16) Error in the HTTP2 framing layer" before a frame of its own is sent.
# So it is with transfers in sequence and in parallel (--parallel); with a connection for each transfer they succeed, and
# over TLS, where ALPN chooses HTTP/2, connections are reused. A script that checks an HTTP/2 port without TLS with two
# URLs in one command sees a server that seems to break the protocol.
#
# hypercorn 0.18.0 serves HTTP/2 without TLS; curl downloads three times six bytes. Seen: one right of three in sequence
# and in parallel, three right of three with a curl for each.
#
# Needs bash, Debian 12 (apt-get download), dpkg-deb, Python 3 with venv; takes packages from Debian and PyPI.
set -euo pipefail
version=7.88.1-10+deb12u15
place=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$place"' EXIT
cd "$place"
apt-get download --quiet curl="$version" libcurl4="$version" >/dev/null 2>&1
for package in ./*.deb; do dpkg-deb --extract "$package" debian; done
python3 -m venv python
python/bin/pip install --quiet hypercorn==0.18.0

cat >app.py <<'END'
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
    await send({"type": "http.response.body", "body": b"right\n"})
END
python/bin/hypercorn --bind 127.0.0.1:18081 app:app >server.log 2>&1 &
server=$!
until (: </dev/tcp/127.0.0.1/18081) 2>/dev/null; do kill -0 "$server"; done

# curl with these options, for these transfers.
get() {
    local transfer
    rm -f urls
    for transfer in $1; do
        printf 'url=http://127.0.0.1:18081/%s\noutput=out.%s\n' "$transfer" "$transfer" >>urls
    done
    LD_LIBRARY_PATH=$(echo debian/usr/lib/*/) debian/usr/bin/curl -q --silent --http2-prior-knowledge ${2:-} --config urls \
        2>/dev/null || true
}
right() {
    grep -lx right out.* 2>/dev/null | wc -l
    rm -f out.*
}
get "1 2 3"
sequence=$(right)
get "1 2 3" --parallel
parallel=$(right)
for transfer in 1 2 3; do get $transfer; done
apart=$(right)
echo "right of three: $sequence in sequence, $parallel in parallel, $apart with a connection for each"
[ "$sequence $parallel $apart" = "1 1 3" ]
