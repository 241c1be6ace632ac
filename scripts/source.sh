#!/usr/bin/env bash
# Fetches the distribution's sources of packages, each in a folder of its name and version below DIR.
#
#   scripts/source.sh DIR PACKAGE...
#
# They come from where this system's packages come from. Lists of sources and what is fetched lie in DIR: nothing outside
# changes, and no privileges are needed.
set -euo pipefail

say() { printf 'source: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[ $# -ge 2 ] || die "usage: $0 DIR PACKAGE..."
DIR=$(realpath -m "$1")
readonly DIR
shift
for tool in apt-get:apt dpkg-source:dpkg-dev; do
    command -v "${tool%:*}" >/dev/null || die "please install ${tool#*:}"
done
apt=$DIR/.apt
rm -rf "$apt"
mkdir -p "$apt"/{sources,lists/partial,cache/archives/partial}
cd "$DIR"

# The sources of this system, for source packages.
for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    [ -f "$list" ] || continue
    case $list in
        *.list) sed -n 's/^ *deb /deb-src /p' "$list" >"$apt/sources/${list##*/}" ;;
        *.sources) sed 's/^Types:.*/Types: deb-src/' "$list" >"$apt/sources/${list##*/}" ;;
    esac
done
options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/sources"
    -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o "APT::Sandbox::User=$(id -un)")
say "fetching $*"
apt-get "${options[@]}" update || say "some of the lists could not be fetched"
# The latest version that the servers have: lists may name others.
fetch() {
    local versions
    mapfile -t versions < <(apt-cache "${options[@]}" madison "$1" | sed 's/ //g' | cut -d'|' -f2)
    for version in "${versions[@]}"; do
        if apt-get "${options[@]}" source "$1=$version" >"$apt/log" 2>&1; then
            return
        fi
    done
    cat "$apt/log" >&2
    die "the source of $1 cannot be had"
}
for package in "$@"; do
    fetch "$package"
done
rm -rf "$apt"
