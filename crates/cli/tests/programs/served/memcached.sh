start() { exec memcached -u nobody -l 0.0.0.0 -p "$PORT" -U 0 -t 4 -I 4m -m 128; }
check() { /usr/bin/python3 "$here/memcached.py"; }
