# $style is how it waits.
start() { exec java -cp "$PLACE/java/*" "$here/Netty.java" "$style" "$PORT"; }
check() { /usr/bin/python3 "$here/echo.py"; }
