start() { exec "$PLACE/node/node_modules/.bin/bun" run "$here/bun.js" "$ROOT" "$PORT"; }
# It ends a connection with its client's direction.
check() { ask parallel keep_alive half_close_ends slow_reader upload; }
