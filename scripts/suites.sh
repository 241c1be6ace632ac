#!/usr/bin/env bash
# Fetches suites of others that the long tests run on split sockets: sources of this system's packages, and of PyPI's.
#
#   scripts/suites.sh [DIR]    DIR/lighttpd and so on; target/suites by default
#
# What is there already is left as it is.
set -euo pipefail

ROOT=$(realpath "$(dirname "$0")/..")
readonly ROOT
DIR=$(realpath -m "${1:-${CARGO_TARGET_DIR:-$ROOT/target}/suites}")
readonly DIR
readonly PACKAGES=(lighttpd redis socat haproxy)
readonly UVLOOP=0.22.1

mkdir -p "$DIR"
missing=()
for package in "${PACKAGES[@]}"; do
    [ -e "$DIR/$package" ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    rm -rf "$DIR/source"
    mkdir "$DIR/source"
    "$ROOT/scripts/source.sh" "$DIR/source" "${missing[@]}"
    for package in "${missing[@]}"; do
        mv "$DIR/source/$package"-*/ "$DIR/$package"
    done
    rm -rf "$DIR/source"
fi

# Beside the program, its source, which has the tests. The interpreter is the one that has tests of its own.
if [ ! -e "$DIR/uvloop/tests" ]; then
    rm -rf "$DIR"/{uvloop,python}
    python3 -m venv "$DIR/python"
    pip=("$DIR/python/bin/pip" --quiet --disable-pip-version-check)
    "${pip[@]}" install "uvloop==$UVLOOP" setuptools wheel psutil pyOpenSSL aiohttp
    "${pip[@]}" download --no-deps --no-build-isolation --no-binary uvloop --dest "$DIR" "uvloop==$UVLOOP"
    tar -C "$DIR" -xf "$DIR/uvloop-$UVLOOP.tar.gz"
    mv "$DIR/uvloop-$UVLOOP" "$DIR/uvloop"
fi
