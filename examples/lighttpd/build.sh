#!/usr/bin/env bash
# Builds lighttpd from the distribution's source, with splitway.patch, for `splitway run`.
#
#   examples/lighttpd/build.sh [DIR]    DIR/lighttpd, with its modules in DIR/modules; target/lighttpd by default
#
# The source comes from where this system's packages come from (scripts/source.sh). Nothing outside DIR changes, and no
# privileges are needed. What is built already is left as it is.
set -euo pipefail

HERE=$(realpath "$(dirname "$0")")
readonly HERE
readonly ROOT=$HERE/../..
DIR=$(realpath -m "${1:-${CARGO_TARGET_DIR:-$ROOT/target}/lighttpd}")
readonly DIR
readonly MODULES=(mod_indexfile mod_dirlisting mod_staticfile)

say() { printf 'lighttpd: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

stamp=$(cat "$0" "$HERE/splitway.patch" | sha256sum)
[ "$(cat "$DIR/stamp" 2>/dev/null)" != "$stamp" ] || exit 0
for tool in patch:patch make:make cc:gcc; do
    command -v "${tool%:*}" >/dev/null || die "please install ${tool#*:}"
done
rm -rf "$DIR"/{lighttpd,modules,stamp,source}
mkdir -p "$DIR/source"
"$ROOT/scripts/source.sh" "$DIR/source" lighttpd

cd "$DIR"/source/lighttpd-*/
patch -s -p1 <"$HERE/splitway.patch"
modules=("${MODULES[@]/%/.so}")
say "building $(basename "$PWD")"
{
    ./configure --disable-dependency-tracking --without-pcre2 --without-zlib --without-zstd --without-bzip2 \
        CPPFLAGS="-I$ROOT/crates/capi/include" &&
        make -C src -j"$(nproc)" parsers versionstamp &&
        make -C src -j"$(nproc)" lighttpd "${MODULES[@]/%/.la}" &&
        install -D -t "$DIR" src/lighttpd &&
        install -D -t "$DIR/modules" "${modules[@]/#/src/.libs/}"
} >"$DIR/log" 2>&1 || die "that failed; $DIR/log says why"
printf '%s\n' "$stamp" >"$DIR/stamp"
