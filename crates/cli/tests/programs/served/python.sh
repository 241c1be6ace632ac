# $style is the server.
start() {
    export PYTHONPATH=$here
    local bin=$PLACE/python/bin
    echo "$$" >server.pid
    case $style in
    gunicorn)
        exec "$bin/gunicorn" --workers 2 --threads 16 --worker-class gthread --keep-alive 60 --timeout 120 --bind "0.0.0.0:$PORT" \
            --worker-tmp-dir "$WORK" app:wsgi
        ;;
    uvicorn)
        exec "$bin/uvicorn" --workers 2 --loop uvloop --http httptools --host 0.0.0.0 --port "$PORT" --log-level warning app:asgi
        ;;
    hypercorn) exec "$bin/hypercorn" --workers 2 --bind "0.0.0.0:$PORT" app:asgi ;;
    granian) exec "$bin/granian" --workers 2 --interface asgi --host 0.0.0.0 --port "$PORT" --respawn-failed-workers app:asgi ;;
    esac
}
check() {
    local half_close=half_close
    # What waits for a request goes with the end of the client's direction.
    [ "$style" != granian ] || half_close=half_close_ends
    ask parallel keep_alive "$half_close" half_close_amid slow_reader upload
    # It neither reloads nor replaces workers.
    [ "$style" != hypercorn ] || return 0
    local parent
    parent=$(cat server.pid)
    amid_downloads kill -HUP "$parent"
    kill_children "$parent"
    until_true ask responds
    ask parallel
}
