start() {
    mkdir pushed
    cat >rsyncd.conf <<END
port = $PORT
address = 0.0.0.0
use chroot = no
uid = root
gid = root
pid file = $WORK/rsync.pid
log file = $WORK/log
[files]
path = $ROOT
[pushed]
path = $WORK/pushed
read only = no
END
    exec rsync --daemon --no-detach --config="$WORK/rsyncd.conf"
}
pulls() { rsync --archive --checksum "rsync://$HOST:$PORT/files/" "pulled-$1/" && diff --recursive "$ROOT" "pulled-$1" || fail "other bytes"; }
pushes() { rsync --archive "$ROOT/" "rsync://$HOST:$PORT/pushed/$1/" && diff --recursive "$ROOT" "pushed/$1" || fail "other bytes"; }
check() {
    local number all=()
    for number in {1..6}; do
        pulls "$number" & all+=($!)
        pushes "$number" & all+=($!)
    done
    for number in "${all[@]}"; do wait "$number" || fail "other bytes"; done
    # Of a file that differs in the middle, only that is sent.
    printf x | dd of=pulled-1/3000000 bs=1 seek=1500000 conv=notrunc status=none
    rsync --archive --checksum --no-whole-file "rsync://$HOST:$PORT/files/" pulled-1/
    diff --recursive "$ROOT" pulled-1 || fail "other bytes"
}
