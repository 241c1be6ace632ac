#!/usr/bin/env bash
# Chromium ends every connection of HTTP/2, with all requests under way, when the machine gets another address
# (ERR_NETWORK_CHANGED, -21): a fetch() rejects with "TypeError: Failed to fetch", although nothing has happened to its
# connection and its server. Requests over HTTP/1.1 go on. An address of IPv6 counts when duplicate address detection is
# over, a second or two after its interface came up: a page that is loaded at once after a veth pair, a tunnel or a bridge was
# made fails now and then, over HTTP/2 alone. The server sees a client that leaves. fetch() is not repeated.
#
# Hypercorn 0.17.3 answers a byte each half second for five seconds, over TLS; the interface gets fd09::1/64 after two. Seen:
# "2 TypeError: Failed to fetch" and "1.1 done 10"; "2 done 10" where no address is added.
#
# Needs root, bash, iproute2, openssl, Python 3 with venv, Debian 12 (apt-get download, libraries of chromium), dpkg-deb;
# takes packages from Debian and PyPI.
set -euo pipefail
version=156.0.8078.114-1~deb12u1
if [ "${1:-}" != inside ]; then
    place=$(mktemp -d)
    trap 'rm -rf "$place"' EXIT
    (cd "$place" && apt-get download --quiet chromium="$version" chromium-common="$version" >/dev/null 2>&1 &&
        for package in ./*.deb; do dpkg-deb --extract "$package" debian; done)
    python3 -m venv "$place/python"
    "$place/python/bin/pip" install --quiet hypercorn==0.17.3 h2==4.1.0
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x \
        -keyout "$place/key" -out "$place/certificate" 2>/dev/null
    unshare --net --mount --pid --fork --kill-child --mount-proc "$0" inside "$place"
    exit
fi
cd "$2"
cat >app.py <<'END'
import asyncio, urllib.parse

PAGE = b"""<!doctype html><script>
fetch("/slow").then((answer) => answer.arrayBuffer()).then((body) => "done " + body.byteLength, String)
  .then((outcome) => fetch("/outcome?" + encodeURIComponent(outcome)));
</script>"""

async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    path, body = scope["path"], b""
    if path == "/":
        body = PAGE
    elif path == "/slow":
        body = b"0123456789"
    elif path == "/outcome":
        print(scope["http_version"], urllib.parse.unquote(scope["query_string"].decode()), flush=True)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
    for part in [bytes([byte]) for byte in body] if path == "/slow" else [body]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
        if path == "/slow":
            await asyncio.sleep(0.5)
    await send({"type": "http.response.body"})
END
ip link set lo up
ip link add one type veth peer name other
for end in one other; do
    sysctl -q "net.ipv6.conf.$end.addr_gen_mode=1"
    ip link set "$end" up
done
ip addr add 10.9.0.1/24 dev one
count=0
load() { # protocol, whether an address is added: what the page says
    local server browser
    echo "alpn_protocols = [\"$1\"]" >settings.toml
    : >outcome
    python/bin/hypercorn --config settings.toml --bind 10.9.0.1:8443 --certfile certificate --keyfile key app:app \
        >outcome 2>/dev/null &
    server=$!
    until ss -Hnlt sport = :8443 | grep -q .; do sleep 0.1; done
    count=$((count + 1))
    debian/usr/lib/chromium/chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
        --disable-background-networking --disable-component-update --remote-debugging-port=0 --ignore-certificate-errors \
        --user-data-dir="$PWD/profile$count" https://10.9.0.1:8443/ >/dev/null 2>&1 &
    browser=$!
    until ss -Hnt state established sport = :8443 | grep -q .; do sleep 0.1; done
    sleep 2
    [ "$2" = no ] || ip addr add fd09::1/64 dev one
    for _ in $(seq 100); do
        [ -s outcome ] && break
        sleep 0.2
    done
    kill "$browser" "$server"
    wait "$browser" "$server" 2>/dev/null || true
    [ "$2" = no ] || ip addr del fd09::1/64 dev one
    cat outcome
}
same=$(load h2 no)
h2=$(load h2 yes)
http1=$(load http/1.1 yes)
printf 'no address is added: %s\nHTTP/2: %s\nHTTP/1.1: %s\n' "$same" "$h2" "$http1"
[ "$same" = "2 done 10" ] && [ "$h2" = "2 TypeError: Failed to fetch" ] && [ "$http1" = "1.1 done 10" ]
