#!/usr/bin/env bash
# Links libsplitway.so from the archive that Cargo builds, and puts what programs need beside it.
#
#   scripts/library.sh link ARCHIVE DIR            the shared library, and the links to it, in DIR
#   scripts/library.sh preload ARCHIVE DIR         libsplitway-preload.so, of the archive of crates/preload, in DIR
#   scripts/library.sh stage ARCHIVE DIR PREFIX    all that a package has, below DIR, for a place at PREFIX; the archive of
#                                                  crates/preload lies beside ARCHIVE
#
# Cargo makes a shared library as well, whose symbols have no versions: rustc gives the linker a version script of
# its own, without a name, which GNU ld refuses to combine with another ("anonymous version tag cannot be combined
# with other version tags"), and which takes precedence with gold and lld. `.symver` does not help: the version that
# it names is in no script. Linked by the C compiler, the archive has one script only, which all three take.
set -euo pipefail

ROOT=$(realpath "$(dirname "$0")/..")
readonly ROOT
readonly CAPI=$ROOT/crates/capi
readonly PRELOAD=$ROOT/crates/preload
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
readonly VERSION
SONAME=$(sed -n 's/^const SONAME: &str = "\(.*\)";/\1/p' "$CAPI/build.rs")
readonly SONAME

# Of an archive and options of the linker, a shared library.
shared() {
    local file=$1 archive=$2
    shift 2
    # shellcheck disable=SC2086
    ${CC:-cc} -shared -o "$file" "$@" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
        -Wl,--gc-sections -Wl,--strip-debug -Wl,--no-undefined -Wl,-z,relro,-z,now,-z,noexecstack \
        -Wl,--as-needed -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
}

# A directory within another for what is moved into place when it is whole: programs may be using what was there. Of its
# own, for another process may link the same, and have the same number in another namespace.
beside=
beside() {
    mkdir -p "$1"
    [ -z "$beside" ] || rm -rf "$beside"
    beside=$(mktemp -d "$1/link.XXXXXX")
    trap 'rm -rf "$beside"' EXIT
}

link() {
    local archive=$1 directory=$2
    local name=libsplitway.so.$VERSION
    beside "$directory"
    shared "$beside/$name" "$archive" -Wl,-soname,"$SONAME" -Wl,--version-script="$CAPI/libsplitway.map"
    mv -f "$beside/$name" "$directory/$name"
    point "$directory/$SONAME" "$name"
    point "$directory/libsplitway.so" "$SONAME"
}

# Its functions have names of their own in the archive, for whatever else is linked with that is not to have them in the
# place of the C library's. What stands with others in a line of the map has the same name in both.
preload() {
    local archive=$1 directory=$2
    local map=$PRELOAD/libsplitway-preload.map name names=()
    while read -r name; do
        names+=("-Wl,--defsym=$name=splitway_preload_$name")
    done < <(sed -n 's/^ *\([A-Za-z0-9_]*\);$/\1/p' "$map")
    beside "$directory"
    shared "$beside/libsplitway-preload.so" "$archive" "${names[@]}" -Wl,-init,splitway_preload_start \
        -Wl,--version-script=<(grep -v '^#' "$map")
    mv -f "$beside/libsplitway-preload.so" "$directory/libsplitway-preload.so"
}

# Has a name lead to another; one that does already is never missing meanwhile.
point() { [ "$(readlink "$1")" = "$2" ] || ln -sfn "$2" "$1"; }

stage() {
    local archive=$1 directory=$2 prefix=$3
    link "$archive" "$directory/lib"
    preload "${archive%/*}/libsplitway_preload.a" "$directory/lib"
    mkdir -p "$directory"/{include,man,lib/pkgconfig}
    install -m 644 -t "$directory/man" "$CAPI"/man/*.[37]
    install -m 644 "$CAPI/include/splitway.h" "$directory/include"
    sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|\${prefix}/lib|" -e "s|@VERSION@|$VERSION|" \
        "$CAPI/splitway.pc.in" >"$directory/lib/pkgconfig/splitway.pc"
}

case "${1-}:$#" in
    link:3 | preload:3 | stage:4) "$@" ;;
    *) echo "usage: $0 link ARCHIVE DIR | preload ARCHIVE DIR | stage ARCHIVE DIR PREFIX" >&2; exit 2 ;;
esac
