# The daemon of git: clones and pushes.
start() {
    git init --quiet --bare repositories/it.git
    git clone --quiet repositories/it.git seed 2>clone.log
    cp "$ROOT"/[0-9]* seed/
    commit seed first
    git -C seed push --quiet origin HEAD:refs/heads/main
    exec git daemon --reuseaddr --listen=0.0.0.0 --port="$PORT" --base-path="$WORK/repositories" --export-all --enable=receive-pack
}
commit() { git -C "$1" add . && git -C "$1" -c user.name=it -c user.email=it@test commit --quiet --message="$2"; }
export HOME=$WORK GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
clones() { # NUMBER: has all files, and pushes one more
    git clone --quiet --branch main "git://$HOST:$PORT/it.git" "clone-$1"
    diff --recursive --exclude=.git "$ROOT" "clone-$1" || fail "other bytes"
    git -C "clone-$1" fsck --strict || fail "objects are damaged"
    head --bytes=1000000 /dev/urandom >"clone-$1/more"
    commit "clone-$1" more
    git -C "clone-$1" push --quiet origin "HEAD:refs/heads/of-$1"
    [ "$(git -C "clone-$1" rev-parse HEAD)" = "$(git -C repositories/it.git rev-parse "of-$1")" ] || fail "not pushed"
}
check() {
    local number all=()
    for number in {1..6}; do clones "$number" & all+=($!); done
    for number in "${all[@]}"; do wait "$number" || fail "a clone is incomplete"; done
    git -C repositories/it.git fsck --strict || fail "objects are damaged"
}
