start() {
    printf '<?php echo file_get_contents("php://input");\n' >echo.php
    chmod 755 "$WORK"
    cat >fpm.conf <<END
[global]
pid = $WORK/fpm.pid
error_log = $WORK/error.log
[it]
user = nobody
listen = 0.0.0.0:$PORT
pm = static
pm.max_children = 4
php_admin_value[post_max_size] = 16M
END
    exec "$(compgen -c php-fpm | sort | head -1)" --nodaemonize --fpm-config "$WORK/fpm.conf"
}
echoes() { # NUMBER FILE
    REQUEST_METHOD=POST SCRIPT_FILENAME=$WORK/echo.php CONTENT_TYPE=application/octet-stream CONTENT_LENGTH=$2 \
        cgi-fcgi -bind -connect "$HOST:$PORT" <"$ROOT/$2" >"$1.response"
    # The header ends with an empty line.
    sed '1,/^\r$/d' "$1.response" >"$1.got"
    same "$1.got" "$ROOT/$2"
}
all_echo() {
    local number files=(10 20000 500000 3000000) all=()
    for number in {0..7}; do
        echoes "$number" "${files[number % 4]}" & all+=($!)
    done
    for number in "${all[@]}"; do wait "$number" || fail "other bytes"; done
}
check() {
    all_echo
    local master
    master=$(cat fpm.pid)
    kill_children "$master"
    until_true echoes 0 10
    all_echo
}
