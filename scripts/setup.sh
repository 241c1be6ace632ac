#!/usr/bin/env bash
# Installs what a make target needs and this machine does not have yet, on Debian and Ubuntu.
# Where nothing is missing it does nothing and takes no time.
#
#   scripts/setup.sh serve|test|long|deb|deny|bench|aarch64|machine
set -euo pipefail

# The oldest compiler that builds the tree: rust-version in Cargo.toml.
readonly RUST_MIN=1.93

# The version of Caddy that benchmarks have as a peer, if it can be built.
readonly CADDY=v2.10.2

# The version of aioquic that another peer is built on.
readonly AIOQUIC=1.7.2

PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"
    elif has sudo; then sudo "$@"
    else die "this needs root and there is no sudo; run as root: $*"
    fi
}

apt_updated=
apt_install() {
    has apt-get || die "please install: $* (only Debian's and Ubuntu's package manager is known here)"
    if [ -z "$apt_updated" ]; then
        as_root apt-get update -qq
        apt_updated=yes
    fi
    say "installing $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# need COMMAND PACKAGE: notes the package if the command is not there.
packages=()
need() { has "$1" || packages+=("$2"); }
install_needed() {
    [ ${#packages[@]} -eq 0 ] || apt_install "${packages[@]}"
    packages=()
}

# True if the first version is at least the second.
at_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }
rust_is_recent() { has cargo && at_least "$(rustc --version 2>/dev/null | cut -d' ' -f2)" "$RUST_MIN"; }
apt_candidate() { apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p' | grep -v '(none)'; }

fetch_rustup() {
    apt_install curl ca-certificates
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --no-modify-path
}

# A compiler: the one that is there, else rustup's, else the distribution's own if it is recent enough.
need_rust() {
    rust_is_recent && return
    if ! has rustup && has apt-get; then
        as_root apt-get update -qq
        apt_updated=yes
        if [ -n "$(apt_candidate rustup)" ]; then
            apt_install rustup
        elif at_least "$(apt_candidate cargo)" "$RUST_MIN"; then
            apt_install cargo rustc rustfmt rust-clippy
        elif at_least "$(apt_candidate cargo-web)" "$RUST_MIN"; then
            # Debian 12 keeps a recent compiler for its browsers.
            apt_install cargo-web rustc-web rustfmt-web rust-web-clippy
        else
            say "this release packages neither rustup nor Rust $RUST_MIN: fetching rustup from its own site"
            fetch_rustup || die "that failed; install Rust $RUST_MIN or later yourself (https://rustup.rs) and try again"
        fi
    fi
    if has rustup; then
        rustup default stable >/dev/null 2>&1 || true
        rust_is_recent || rustup update --no-self-update stable
    fi
    rust_is_recent || die "Rust $RUST_MIN or later is needed and $(rustc --version 2>&1 | head -n 1) is what there is:" \
        "install a later one (https://rustup.rs) and try again"
}

# Debian starts a server as it is installed; these are only run by benchmarks and tests, in a namespace.
need_servers() {
    need nginx nginx
    need lighttpd lighttpd
    need redis-server redis-server
    need haproxy haproxy
    need fail2ban-server fail2ban
    [ -e /usr/lib/lighttpd/mod_openssl.so ] || packages+=(lighttpd-mod-openssl)
    nginx -V 2>&1 | grep -q -e '--with-stream ' || [ -e /usr/lib/nginx/modules/ngx_stream_module.so ] ||
        packages+=(libnginx-mod-stream)
    [ ${#packages[@]} -eq 0 ] && return
    install_without_starting
}

install_without_starting() {
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
        # shellcheck disable=SC2064
        trap "$(declare -f as_root has die say); as_root rm -f $policy" EXIT
    fi
    install_needed
}

# The suites that Python brings along: programs that run on split sockets.
need_python_tests() {
    local python
    for python in /usr/bin/python3 python3; do
        "$python" -c 'import test.test_socket' 2>/dev/null && return
    done
    packages+=("lib$(basename "$(readlink -f /usr/bin/python3)")-testsuite")
    install_needed
}

setup_serve() {
    need cc build-essential
    need curl curl
    install_needed
    need_rust
}

setup_test() {
    setup_serve
    need ip iproute2
    need ping iputils-ping
    need nft nftables
    need ethtool ethtool
    need valgrind valgrind
    need openssl openssl
    need gnutls-cli gnutls-bin
    need pkg-config pkg-config
    need man man-db
    need mandoc mandoc
    need systemd-analyze systemd
    need logrotate logrotate
    need python3 python3
    need strace strace
    need wget wget
    need iperf3 iperf3
    need h2load nghttp2-client
    need node nodejs
    install_needed
    need_python_tests
    need_servers
    if has rustup; then
        cargo fmt --version >/dev/null 2>&1 || rustup component add rustfmt
        cargo clippy --version >/dev/null 2>&1 || rustup component add clippy
    else
        cargo fmt --version >/dev/null 2>&1 || apt_install rustfmt
        cargo clippy --version >/dev/null 2>&1 || apt_install rust-clippy
    fi
}

setup_long() {
    setup_test
    setup_deb
    has rustup || die "fuzzing needs a nightly compiler, which rustup installs (https://rustup.rs)"
    cargo +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal
    cargo fuzz --version >/dev/null 2>&1 || cargo install --locked --quiet cargo-fuzz
    need chromium chromium
    need ffmpeg ffmpeg
    install_needed
    need caddy caddy
    [ -x /usr/local/go/bin/go ] || need go golang-go
    [ -n "$(compgen -G '/usr/lib/postgresql/*/bin/postgres')" ] || packages+=(postgresql)
    # What suites of others need besides the programs that they are of.
    need varnishtest varnish
    need tclsh tcl
    need socat socat
    need stress-ng stress-ng
    [ -e /usr/lib/lighttpd/mod_deflate.so ] || packages+=(lighttpd-mod-deflate)
    need_servers
    need patch patch
    install_needed
    # lighttpd as the paper has ported it, from its source.
    examples/lighttpd/build.sh
    python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
    install_needed
    scripts/suites.sh
    # What looks for weaknesses of TLS servers, and for mistakes of HTTP servers.
    need_from_pypi sslyze
    need_from_pypi redbot
    # What decrypts captures.
    need tshark tshark
    # Clients of HTTP/3.
    need gtlsclient ngtcp2-client
    install_needed
    need_http3_clients
    need_h2spec
    # A server of HTTP/2 to compare with.
    need nghttpd nghttp2-server
    install_needed
    need_interop_clients
    need_grpc
    need_served
}

# gRPC of Python, which is that of C, in a place of its own.
need_grpc() {
    local place=${CARGO_TARGET_DIR:-target}/grpc pins=crates/cli/tests/programs/grpc/requirements.txt
    [ -e "$place/complete" ] && [ -z "$(find "$pins" -newer "$place/complete")" ] && return
    say "installing gRPC in $place"
    rm -rf "$place/complete"
    python3 -m venv "$place"
    "$place/bin/pip" install --quiet --disable-pip-version-check --requirement "$pins"
    touch "$place/complete"
}

# Servers of every style, and their clients: those of the distribution, and in a place of their own those of PyPI, npm and Maven, whose
# versions are pinned.
need_served() {
    need apache2 apache2
    need varnishd varnish
    need squid squid
    need traffic_server trafficserver
    need memcached memcached
    need mariadbd mariadb-server
    need mariadb mariadb-client
    need mosquitto mosquitto
    need mosquitto_pub mosquitto-clients
    need dovecot dovecot-core
    [ -e /usr/lib/dovecot/imap ] || packages+=(dovecot-imapd)
    need vsftpd vsftpd
    need rsync rsync
    need sshd openssh-server
    need ssh openssh-client
    [ -n "$(compgen -G '/usr/sbin/php-fpm*')" ] || packages+=(php-fpm)
    need cgi-fcgi libfcgi-bin
    need puma puma
    need erl erlang-base
    [ -n "$(compgen -G '/usr/lib/erlang/lib/inets-*')" ] || packages+=(erlang-inets)
    [ -e /usr/share/tomcat10/bin/catalina.sh ] || packages+=(tomcat10)
    need dnsmasq dnsmasq-base
    need unbound unbound
    need nsd nsd
    need dig bind9-dnsutils
    need git git
    need nats-server nats-server
    need etcd etcd-server
    need etcdctl etcd-client
    [ -e /usr/include/asio.hpp ] || packages+=(libasio-dev)
    need javac default-jdk-headless
    need npm npm
    need mvn maven
    [ ${#packages[@]} -eq 0 ] || install_without_starting
    local place=${CARGO_TARGET_DIR:-target}/served pins=crates/cli/tests/programs/served
    [ -e "$place/complete" ] && [ -z "$(find "$pins" \( -name requirements.txt -o -name package.json -o -name pom.xml \) -newer "$place/complete")" ] &&
        return
    say "installing servers in $place"
    rm -rf "$place"
    mkdir -p "$place/node"
    python3 -m venv "$place/python"
    "$place/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$pins/requirements.txt"
    cp "$pins/package.json" "$place/node/"
    npm install --prefix "$place/node" --silent --no-audit --no-fund --no-package-lock
    mvn --quiet --batch-mode --file "$pins/pom.xml" dependency:copy-dependencies -DoutputDirectory="$(realpath -m "$place/java")"
    touch "$place/complete"
}

# Clients at their jobs: those of the distribution, and in a place of their own those of PyPI, npm, Maven and crates.io, whose versions are
# pinned.
need_interop_clients() {
    need zsync zsync
    need zck zchunk
    need wget2 wget2
    need aria2c aria2
    need axel axel
    need lftp lftp
    need mpv mpv
    need cvlc vlc-bin
    [ -n "$(compgen -G '/usr/lib/*/vlc/plugins/demux/libmp4_plugin.so')" ] || packages+=(vlc-plugin-base)
    need gst-launch-1.0 gstreamer1.0-tools
    [ -n "$(compgen -G '/usr/lib/*/gstreamer-1.0/libgstsoup.so')" ] || packages+=(gstreamer1.0-plugins-good)
    need nghttp nghttp2-client
    need firefox-esr firefox-esr
    need certutil libnss3-tools
    need dnf dnf
    need createrepo_c createrepo-c
    need rpmbuild rpm
    need cmake cmake
    need npm npm
    need javac default-jdk-headless
    need mvn maven
    install_needed
    local place=${CARGO_TARGET_DIR:-target}/interop pins=crates/cli/tests/programs/interop
    build_go "$pins/go" "$place/go-http2" || die "that failed; it needs Go 1.26 or later (https://go.dev/dl), in /usr/local/go or in PATH"
    [ -e "$place/complete" ] && [ -z "$(find "$pins" \( -name requirements.txt -o -name package.json -o -name pom.xml -o -path '*/rust/*' \) -newer "$place/complete")" ] &&
        return
    say "installing clients in $place"
    rm -rf "$place/complete" "$place/java"
    mkdir -p "$place/node"
    python3 -m venv "$place/python"
    "$place/python/bin/pip" install --quiet --disable-pip-version-check --requirement "$pins/requirements.txt"
    cp "$pins/package.json" "$place/node/"
    npm install --prefix "$place/node" --silent --no-audit --no-fund --no-package-lock
    mvn --quiet --batch-mode --file "$pins/pom.xml" dependency:copy-dependencies -DoutputDirectory="$(realpath -m "$place/java")"
    # HTTP/3 is behind this in reqwest.
    RUSTFLAGS="--cfg reqwest_unstable" cargo build --quiet --locked --manifest-path "$pins/rust/Cargo.toml" --target-dir "$place/rust"
    touch "$place/complete"
}

# Those that Python has, in a place of their own, and beside them one that is built on quic-go.
need_http3_clients() {
    local place=${CARGO_TARGET_DIR:-target}/http3-clients
    if [ ! -e "$place/complete" ]; then
        say "installing clients of HTTP/3 in $place"
        python3 -m venv "$place"
        "$place/bin/pip" install --quiet --disable-pip-version-check aioquic curl_cffi
        touch "$place/complete"
    fi
    build_go crates/cli/tests/e2e/http3/quic_go "$place/quic-go" ||
        die "that failed; quic-go needs Go 1.26 or later (https://go.dev/dl), in /usr/local/go or in PATH"
}

# The suite of HTTP/2, a tool that its module names.
need_h2spec() {
    local program=${CARGO_TARGET_DIR:-target}/h2spec pins=crates/cli/tests/e2e/http2_long/h2spec
    [ -z "$(find "$pins" -newer "$program" 2>&1)" ] && return
    say "building $program"
    PATH="/usr/local/go/bin:$PATH" go -C "$pins" build -trimpath -buildvcs=false -o "$(realpath -m "$program")" \
        github.com/summerwind/h2spec/cmd/h2spec ||
        die "that failed; h2spec needs Go 1.26 or later (https://go.dev/dl), in /usr/local/go or in PATH"
}

# build_go SOURCE PROGRAM: builds a program in Go whose source is newer.
build_go() {
    [ -z "$(find "$1" -newer "$2" 2>&1)" ] && return
    say "building $2"
    PATH="/usr/local/go/bin:$PATH" go -C "$1" build -trimpath -buildvcs=false -o "$(realpath -m "$2")" .
}

# A program that no distribution has, from PyPI, in a place of its own.
need_from_pypi() {
    has "$1" && return
    local place=${CARGO_TARGET_DIR:-target}/$1
    [ -x "$place/bin/$1" ] && return
    need python3 python3
    python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
    install_needed
    say "installing $1 in $place"
    python3 -m venv "$place"
    "$place/bin/pip" install --quiet --disable-pip-version-check "$1"
}

setup_deb() {
    setup_serve
    # What the package depends on, from the libraries of the program.
    need dpkg-shlibdeps dpkg-dev
    install_needed
    cargo deb --version >/dev/null 2>&1 || cargo install --locked --quiet cargo-deb
}

setup_deny() {
    need_rust
    cargo deny --version >/dev/null 2>&1 || cargo install --locked --quiet cargo-deny
}

setup_aarch64() {
    setup_serve
    need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
    need qemu-aarch64 qemu-user
    [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || packages+=(libc6-dev-arm64-cross)
    install_needed
    local target=aarch64-unknown-linux-gnu
    # Wherever it comes from: another distribution's packages bring it along as well.
    [ -n "$(compgen -G "$(rustc --print sysroot)/lib/rustlib/$target/lib/libstd-*.rlib")" ] && return
    local otherwise="SPLITWAY_NO_AARCH64=1 makes the tests do without"
    if ! has rustup; then
        say "$(rustc --print sysroot) has no standard library for $target: fetching rustup, which has one, from its own site"
        fetch_rustup || die "that failed; install rustup (https://rustup.rs) yourself and try again; $otherwise"
    fi
    say "adding Rust's standard library for $target"
    rustup target add "$target" >/dev/null || die "rustup could not fetch the standard library for $target; $otherwise"
}

# An emulated machine: qemu, and what is put into its memory (scripts/aarch64.sh fetches its kernel).
setup_machine() {
    setup_test
    setup_aarch64
    need qemu-system-aarch64 qemu-system-arm
    need cpio cpio
    need mke2fs e2fsprogs
    need xz xz-utils
    install_needed
}

setup_bench() {
    setup_serve
    need ip iproute2
    # Table 1 and system calls need it; where no package has it, the rest is measured.
    has perf || [ -z "$(apt_candidate linux-perf)" ] || packages+=(linux-perf)
    need redis-benchmark redis-tools
    need h2load nghttp2-client
    need ethtool ethtool
    install_needed
    # A peer over HTTP/3; it is left out where no package has it.
    has gtlsserver || [ -z "$(apt_candidate ngtcp2-server)" ] || packages+=(ngtcp2-server)
    need_servers
    need_caddy
    need_http3_servers
}

# Another. Packages are of a version that does not send superpackets of datagrams; where there is Go,
# a later one comes into a place of its own.
need_caddy() {
    local place go
    place=$(realpath -m "${CARGO_TARGET_DIR:-target}/caddy")
    [ -x "$place/caddy" ] && return
    go=$(PATH="$PATH:/usr/local/go/bin" command -v go) || go=
    if [ -n "$go" ]; then
        say "building caddy in $place"
        GOBIN="$place" "$go" install "github.com/caddyserver/caddy/v2/cmd/caddy@$CADDY" && return
        say "that failed"
    fi
    has caddy || [ -z "$(apt_candidate caddy)" ] || packages+=(caddy)
    need_servers
}

# Servers of ours that are built on aioquic and quic-go; one that cannot be built is left out.
need_http3_servers() {
    local place=${CARGO_TARGET_DIR:-target}/http3-servers
    if ! "$place/aioquic/bin/python" -c 'import aioquic' 2>/dev/null; then
        need python3 python3
        python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
        install_needed
        say "installing aioquic in $place"
        rm -rf "$place/aioquic"
        { python3 -m venv "$place/aioquic" &&
            "$place/aioquic/bin/pip" install --quiet --disable-pip-version-check "aioquic==$AIOQUIC"; } ||
            { say "that failed"; rm -rf "$place/aioquic"; }
    fi
    build_go crates/bench/src/servers/http3_peers/quic_go "$place/quic-go" || say "that failed"
}

case "${1-}" in
    serve | test | long | deb | deny | bench | aarch64 | machine) "setup_$1" ;;
    *) die "usage: $0 serve|test|long|deb|deny|bench|aarch64|machine" ;;
esac
