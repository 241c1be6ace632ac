#!/usr/bin/env bash
# Links libsplitway.so from the archive that Cargo builds, and puts what programs need beside it.
#
#   scripts/library.sh link ARCHIVE DIR            the shared library, and the links to it, in DIR
#   scripts/library.sh stage ARCHIVE DIR PREFIX    all that a package has, below DIR, for a place at PREFIX
#
# Cargo makes a shared library as well, whose symbols have no versions: rustc gives the linker a version script of
# its own, without a name, which GNU ld refuses to combine with another ("anonymous version tag cannot be combined
# with other version tags"), and which takes precedence with gold and lld. `.symver` does not help: the version that
# it names is in no script. Linked by the C compiler, the archive has one script only, which all three take.
set -euo pipefail

ROOT=$(realpath "$(dirname "$0")/..")
readonly ROOT
readonly CAPI=$ROOT/crates/capi
VERSION=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml")
readonly VERSION
SONAME=$(sed -n 's/^const SONAME: &str = "\(.*\)";/\1/p' "$CAPI/build.rs")
readonly SONAME

link() {
    local archive=$1 directory=$2
    local name=libsplitway.so.$VERSION
    mkdir -p "$directory"
    # Moved into place when it is whole: programs may be using the one that was there. In a directory of its own
    # until then, for another process may link the same, and have the same number in another namespace.
    beside=$(mktemp -d "$directory/link.XXXXXX")
    trap 'rm -rf "$beside"' EXIT
    # shellcheck disable=SC2086
    ${CC:-cc} -shared -o "$beside/$name" -Wl,-soname,"$SONAME" -Wl,--version-script="$CAPI/libsplitway.map" \
        -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
        -Wl,--gc-sections -Wl,--strip-debug -Wl,--no-undefined -Wl,-z,relro,-z,now,-z,noexecstack \
        -Wl,--as-needed -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
    mv -f "$beside/$name" "$directory/$name"
    point "$directory/$SONAME" "$name"
    point "$directory/libsplitway.so" "$SONAME"
}

# Has a name lead to another; one that does already is never missing meanwhile.
point() { [ "$(readlink "$1")" = "$2" ] || ln -sfn "$2" "$1"; }

stage() {
    local archive=$1 directory=$2 prefix=$3
    link "$archive" "$directory/lib"
    mkdir -p "$directory"/{include,man,lib/pkgconfig}
    install -m 644 -t "$directory/man" "$CAPI"/man/*.[37]
    install -m 644 "$CAPI/include/splitway.h" "$directory/include"
    sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|\${prefix}/lib|" -e "s|@VERSION@|$VERSION|" \
        "$CAPI/splitway.pc.in" >"$directory/lib/pkgconfig/splitway.pc"
}

case "${1-}:$#" in
    link:3 | stage:4) "$@" ;;
    *) echo "usage: $0 link ARCHIVE DIR | stage ARCHIVE DIR PREFIX" >&2; exit 2 ;;
esac
