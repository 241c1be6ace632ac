start() {
    mkdir -p /run/vsftpd/empty ftp/in
    chmod 755 "$WORK" ftp
    chmod 777 ftp/in
    cp "$ROOT"/[0-9]* ftp/
    cat >vsftpd.conf <<END
listen=YES
listen_address=0.0.0.0
listen_port=$PORT
background=NO
anonymous_enable=YES
local_enable=NO
write_enable=YES
anon_upload_enable=YES
anon_umask=022
anon_root=$WORK/ftp
ftp_username=daemon
nopriv_user=nobody
secure_chroot_dir=/run/vsftpd/empty
connect_from_port_20=NO
pasv_min_port=40000
pasv_max_port=40100
END
    exec vsftpd "$WORK/vsftpd.conf"
}
of_ftp() { curl -q --silent --show-error --fail --max-time 30 "$@"; }
transfers() { # NUMBER OPTION...: a file in each direction
    local number=$1
    shift
    of_ftp "$@" --output "$number.got" "ftp://$HOST:$PORT/3000000"
    same "$number.got" "$ROOT/3000000"
    of_ftp "$@" --upload-file "$ROOT/500000" "ftp://$HOST:$PORT/in/$number"
    same "ftp/in/$number" "$ROOT/500000"
}
check() {
    local number all=()
    for number in {1..6}; do transfers "$number" & all+=($!); done
    for number in "${all[@]}"; do wait "$number" || fail "other bytes"; done
    # The server connects.
    transfers active --ftp-port "$BACKEND_HOST"
    # Two by one connection.
    of_ftp "ftp://$HOST:$PORT/20000" "ftp://$HOST:$PORT/500000" >got
    cat "$ROOT/20000" "$ROOT/500000" >wanted
    same got wanted
}
