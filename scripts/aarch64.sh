#!/usr/bin/env bash
# Builds splitway for the Arm cores of a DPU, and tries what runs under user emulation.
#
#   scripts/aarch64.sh build [cargo options]   target/aarch64-unknown-linux-gnu/…/splitway
#   scripts/aarch64.sh try                     a part of the simulation, emulated
#
# User emulation has neither openat2 nor Landlock, without which a NIC process does not start: serving
# files takes a machine, or a whole emulated one.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh aarch64

export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
readonly TARGET=aarch64-unknown-linux-gnu
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
export AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"

what=${1-}
shift || true
case "$what" in
    build) cargo build --locked --target "$TARGET" -p splitway-cli "$@" ;;
    try) cargo run --locked --target "$TARGET" -p splitway-cli "$@" -- sim --seeds 0..20 ;;
    *) sed -n '4,5s/^# *//p' "$0" >&2; exit 2 ;;
esac
