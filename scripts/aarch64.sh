#!/usr/bin/env bash
# Builds splitway for the Arm cores of a DPU, and runs it where there are none.
#
#   scripts/aarch64.sh build [cargo options]   target/aarch64-unknown-linux-gnu/…/splitway
#   scripts/aarch64.sh try                     a debug build, and what of it runs under user emulation
#   scripts/aarch64.sh machine                 a debug build, and what an emulated machine needs to run it
#
# User emulation has neither openat2 nor Landlock, without which a NIC process does not start: serving
# files takes a machine, or a whole emulated one.
set -euo pipefail
cd "$(dirname "$0")/.."

export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
readonly TRIPLE=aarch64-unknown-linux-gnu
TARGET=$(realpath -m "${CARGO_TARGET_DIR:-target}")
readonly TARGET
readonly PROGRAMS="$TARGET/$TRIPLE/debug"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
readonly LIBRARIES=/usr/aarch64-linux-gnu

die() { printf 'aarch64: %s\n' "$*" >&2; exit 1; }

build() { cargo build --locked --target "$TRIPLE" -p splitway-cli "$@"; }

emulated() { local program=$1; shift; qemu-aarch64 -L "$LIBRARIES" "$PROGRAMS/$program" "$@"; }

# Both stacks in the simulator: every promise holds, and a seed is the same run there as here.
try() {
    local seed here there
    emulated splitway --version
    emulated splitway-sim --seeds 0..40
    # The build that `cargo test` has made already: of one package alone, dependencies have other features.
    cargo test --workspace --locked --no-run --quiet
    for seed in 3 7 11; do
        here=$("$TARGET/debug/splitway-sim" --seed "$seed")
        there=$(emulated splitway-sim --seed "$seed")
        diff <(echo "$here") <(echo "$there") || die "the simulation of seed $seed is another one on aarch64"
    done
}

# The kernel of this distribution for arm64, its modules, and a shell: packages that are unpacked, not installed.
fetch_machine() {
    local directory=$1 kernel
    local -a apt=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Acquire::Languages=none
        -o "Dir::State::lists=$directory/lists" -o "Dir::Cache=$directory/cache" -o Dir::State::status=/dev/null
        -o "APT::Sandbox::User=$(id -un)")
    command -v apt-get >/dev/null || die "the emulated machine's kernel is Debian's, and there is no apt-get to fetch it with"
    mkdir -p "$directory"/{lists,cache/archives}/partial
    apt-get "${apt[@]}" update -qq
    kernel=$({ apt-cache "${apt[@]}" depends linux-image-cloud-arm64 2>/dev/null || true; } | sed -n 's/^ *Depends: \(linux-image[^ ]*\)$/\1/p')
    [ -n "$kernel" ] || die "none of this machine's package sources has Debian's linux-image-cloud-arm64"
    (cd "$directory" && apt-get "${apt[@]}" download -qq "$kernel" busybox-static)
    for package in "$directory"/*.deb; do dpkg-deb -x "$package" "$directory"; done
    rm -rf "$directory"/{lists,cache,*.deb}
}

# Kernel and root file system of an emulated machine, beside the builds.
machine() {
    local directory="$TARGET/aarch64-machine"
    # Moved into place when it is whole.
    if [ ! -e "$directory/boot" ]; then
        rm -rf "$directory" "$directory.part"
        fetch_machine "$directory.part"
        mv "$directory.part" "$directory"
    fi
    cp "$directory"/boot/vmlinuz-* "$directory/kernel"

    local root="$directory/root" modules busybox file
    # Debian 13 has merged /lib and /bin into /usr.
    modules=$(compgen -G "$directory/lib/modules/*/kernel" || compgen -G "$directory/usr/lib/modules/*/kernel") ||
        die "the kernel package has no modules where Debian's are"
    busybox=$(compgen -G "$directory/bin/busybox" || compgen -G "$directory/usr/bin/busybox") ||
        die "busybox-static has no busybox where Debian's is"
    rm -rf "$root"
    mkdir -p "$root"/{bin,dev,lib,modules,proc,run,sys,site,tmp}
    cp "$busybox" "$PROGRAMS/splitway" "$root/bin"
    cp scripts/aarch64-init "$root/init"
    for module in net/core/failover drivers/net/net_failover drivers/net/virtio_net drivers/block/virtio_blk \
        drivers/virtio/virtio drivers/virtio/virtio_ring drivers/virtio/virtio_mmio; do
        file="$modules/$module.ko"
        if [ -e "$file" ]; then
            cp "$file" "$root/modules"
        elif [ -e "$file.xz" ]; then
            xz -dc "$file.xz" >"$root/modules/${module##*/}.ko"
        else
            # Some kernels have one or the other built in.
            grep -q "/${module##*/}\.ko$" "$(dirname "$modules")/modules.builtin" || die "this kernel has no $module"
        fi
    done
    for library in ld-linux-aarch64.so.1 libc.so.6 libm.so.6 libgcc_s.so.1; do
        cp -L "$LIBRARIES/lib/$library" "$root/lib"
    done
    (cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$directory/initrd"
}

what=${1-}
shift || true
case "$what" in
    build)
        scripts/setup.sh aarch64
        build "$@"
        ;;
    try)
        scripts/setup.sh aarch64
        build -p splitway-sim
        try
        ;;
    machine)
        scripts/setup.sh machine
        build
        machine
        ;;
    *) sed -n '4,6s/^# *//p' "$0" >&2; exit 2 ;;
esac
