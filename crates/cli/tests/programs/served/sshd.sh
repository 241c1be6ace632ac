start() {
    mkdir -p /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f host
    ssh-keygen -q -t ed25519 -N '' -f key
    cp key.pub authorized
    cat >sshd.conf <<END
Port $PORT
ListenAddress 0.0.0.0
HostKey $WORK/host
AuthorizedKeysFile $WORK/authorized
StrictModes no
UsePAM no
PermitRootLogin yes
PidFile $WORK/sshd.pid
MaxStartups 100
Subsystem sftp internal-sftp
END
    exec /usr/sbin/sshd -D -E "$WORK/log" -f "$WORK/sshd.conf"
}
ssh_options=(-F none -i "$WORK/key" -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR)
of_ssh() { ssh "${ssh_options[@]}" -p "$PORT" "root@$HOST" "$@"; }
session() { # NUMBER: a file in each direction, then one through, whose end the command waits for
    of_ssh "cat '$ROOT/3000000'" </dev/null >"$1.got"
    same "$1.got" "$ROOT/3000000"
    of_ssh "cat >'$WORK/$1.put'" <"$ROOT/3000000"
    same "$1.put" "$ROOT/3000000"
    of_ssh cat <"$ROOT/500000" >"$1.got"
    same "$1.got" "$ROOT/500000"
}
check() {
    local number all=()
    for number in {1..6}; do session "$number" & all+=($!); done
    for number in "${all[@]}"; do wait "$number" || fail "a session has other bytes"; done
    sftp "${ssh_options[@]}" -q -P "$PORT" -b - "root@$HOST" <<<"get $ROOT/3000000 got" >sftp.log
    same got "$ROOT/3000000"
    # It executes itself again; sessions go on.
    of_ssh "touch '$WORK/begun'; read -r line; echo \$line" < <(until_true test -e again; echo end) >line & local session=$!
    until_true test -e begun
    kill -HUP "$(cat sshd.pid)"
    until_true of_ssh true </dev/null
    touch again
    wait "$session"
    [ "$(cat line)" = end ] || fail "a session ended"
}
