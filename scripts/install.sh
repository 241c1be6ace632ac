#!/usr/bin/env bash
# Copies what `make man library` has made to where a system looks for it.
#
#   scripts/install.sh RELEASE PREFIX
set -euo pipefail
[ $# = 2 ] || { echo "usage: $0 RELEASE PREFIX" >&2; exit 2; }
readonly RELEASE=$1 PREFIX=$2
readonly PACKAGE=$RELEASE/package

# Without line tables, which are four fifths of it.
install -D -m 755 --strip -t "$PREFIX/bin" "$RELEASE/splitway"
for section in 1 3 7; do
    install -D -m 644 -t "$PREFIX/share/man/man$section" "$PACKAGE"/man/*."$section"
done
install -D -m 644 "$PACKAGE/completions/splitway.bash" "$PREFIX/share/bash-completion/completions/splitway"
install -D -m 644 -t "$PREFIX/share/zsh/site-functions" "$PACKAGE/completions/_splitway"
install -D -m 644 -t "$PREFIX/share/fish/vendor_completions.d" "$PACKAGE/completions/splitway.fish"
install -D -m 644 -t "$PREFIX/include" "$PACKAGE/include/splitway.h"
install -D -m 644 -t "$PREFIX/lib/pkgconfig" "$PACKAGE/lib/pkgconfig/splitway.pc"
# With its links.
cp -P "$PACKAGE"/lib/libsplitway*.so* "$PREFIX/lib"
# Programs find a new library once the linker's cache has it; there is none in another root.
[ "$(id -u)" != 0 ] || [ "${DESTDIR-}" ] || ldconfig
