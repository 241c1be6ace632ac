start() {
    export DENO_DIR=$WORK/deno DENO_NO_UPDATE_CHECK=1
    exec "$PLACE/node/node_modules/.bin/deno" run --quiet --no-config --allow-all "$here/deno.js" "$ROOT" "$PORT"
}
# It gives up a request whose client has ended its direction.
check() { ask parallel keep_alive half_close_ends slow_reader upload; }
