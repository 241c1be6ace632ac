# $style is how it has threads for connections.
start() {
    mkdir data
    mariadb-install-db --no-defaults --user=nobody --auth-root-authentication-method=normal --datadir="$WORK/data" >install.log 2>&1
    chmod 777 "$WORK"
    exec mariadbd --no-defaults --user=nobody --datadir="$WORK/data" --socket="$WORK/socket" --bind-address=0.0.0.0 --port="$PORT" \
        --thread-handling="$style" --skip-grant-tables --skip-name-resolve --max-allowed-packet=64M --innodb-flush-log-at-trx-commit=0 \
        --log-error="$WORK/error.log"
}
client() { mariadb --no-defaults --protocol=tcp --host="$HOST" --port="$PORT" --batch --skip-column-names --raw --max-allowed-packet=64M "$@"; }
value_returns() { # NUMBER FILE
    local hex
    hex=$(od -An -v -tx1 "$ROOT/$2" | tr -d ' \n')
    echo "INSERT INTO it.files VALUES ($1, x'$hex');" >"$1.sql"
    client <"$1.sql"
    client --execute="SELECT HEX(bytes) FROM it.files WHERE name = $1" | tr 'A-F' 'a-f' | tr -d '\n' >"$1.got"
    printf %s "$hex" >"$1.wanted"
    same "$1.got" "$1.wanted"
}
check() {
    client --execute='CREATE DATABASE it; CREATE TABLE it.files (name INT PRIMARY KEY, bytes LONGBLOB)'
    local number files=(10 20000 500000 3000000) all=()
    for number in {0..11}; do
        value_returns "$number" "${files[number % 4]}" & all+=($!)
    done
    for number in "${all[@]}"; do wait "$number" || fail "a client has other bytes"; done
    # One connection, many statements.
    [ "$(for number in {1..500}; do echo "SELECT $number;"; done | client | sha256sum)" = "$(seq 500 | sha256sum)" ] || fail "other rows"
}
