#!/usr/bin/env bash
# A server and what is asked of it: `job.sh NAME start|check [STYLE]`, of the functions in NAME.sh. `start` becomes the server, in the
# foreground, with all its files in $WORK; `check` is its client, on the kernel's sockets, which compares every byte. The last line that
# `check` prints before it fails is the reason.
#
# $HOST:$PORT is the server. It serves the files of $ROOT where it serves files. $BACKEND is an HTTP server on the kernel's sockets that
# does as well, for those that forward. $PLACE has the programs that Debian does not have.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1 HOME=$WORK PATH=$PATH:/usr/sbin:/sbin

here=$(cd "$(dirname "$0")" && pwd)
style=${3-}

ask() { /usr/bin/python3 "$here/client.py" "$@"; }
fail() { echo "$*"; exit 1; }
# The children of a process, by their number.
children() { cat "/proc/$1/task/"*/children; }
gone() {
    local process
    for process; do [ ! -e "/proc/$process" ] || return 1; done
}
# Kills the children of a process, and returns when it knows.
kill_children() {
    local all
    all=$(children "$1")
    # shellcheck disable=SC2086
    kill -KILL $all
    # shellcheck disable=SC2086
    until_true gone $all
}
replaced() { # PROCESS CHILDREN: that it has others, of which none was there
    local now child
    now=$(children "$1")
    [ -n "$now" ] || return 1
    for child in $now; do [[ " $2 " != *" $child "* ]] || return 1; done
}
# Waits for something to become true, for twenty seconds.
until_true() {
    local attempt
    for attempt in {1..400}; do
        ! ("$@") >>"$WORK/until.log" 2>&1 || return 0
        read -r -t 0.05 <> <(:) || true
    done
    fail "never: $*"
}
same() { # GOT WANTED
    [ "$(sha256sum <"$1")" = "$(sha256sum <"$2")" ] || fail "other bytes"
}
# Does something while downloads go on, which must all be whole.
amid_downloads() {
    ask steadily & local asks=$!
    until_true test -e "$WORK/steady"
    "$@"
    touch "$WORK/enough"
    wait "$asks" || fail "a download failed meanwhile"
    rm "$WORK/steady" "$WORK/enough"
}

cd "$WORK"
# shellcheck source=/dev/null
. "$here/$1.sh"
"$2"
