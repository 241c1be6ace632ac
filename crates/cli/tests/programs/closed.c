/*
 * Says what closed sockets leave behind, a line for each: without a library the same as on those of
 * the kernel.
 */
#include "programs.h"

#include <arpa/inet.h>
#include <poll.h>
#include <unistd.h>

#define TURNS 100

static int reusing_stream(void)
{
    int on = 1, fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
    check(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), "SO_REUSEADDR");
    return fd;
}

static int bound(struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int fd = reusing_stream();
    *at = (struct sockaddr_in){.sin_family = AF_INET};
    at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(fd, (struct sockaddr *)at, sizeof *at), "bind");
    check(getsockname(fd, (struct sockaddr *)at, &len), "getsockname");
    return fd;
}

/* The port of a socket is free once that is closed. */
static void bind_again(int listens)
{
    int failed = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        struct sockaddr_in at;
        int fd = bound(&at);
        if (listens)
            check(listen(fd, 5), "listen");
        close(fd);
        fd = reusing_stream();
        failed += bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 5) < 0;
        close(fd);
    }
    printf("%s before: %d of %d failed\n", listens ? "a listener" : "bound", failed, TURNS);
}

/* A connection that its peer resets has that error. */
static void reset_by_peer(void)
{
    int others = 0;
    struct sockaddr_in at;
    int by = bound(&at);
    check(listen(by, 5), "listen");
    for (int turn = 0; turn < TURNS; turn++) {
        struct linger now = {.l_onoff = 1};
        int error = 0, fd = reusing_stream();
        socklen_t len = sizeof error;
        check(connect(fd, (struct sockaddr *)&at, sizeof at), "connect");
        int peer = check(accept(by, NULL, NULL), "accept");
        struct pollfd polled = {fd, POLLIN, 0};
        check(setsockopt(peer, SOL_SOCKET, SO_LINGER, &now, sizeof now), "SO_LINGER");
        close(peer);
        check(poll(&polled, 1, -1), "poll");
        check(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len), "SO_ERROR");
        others += error != ECONNRESET;
        close(fd);
    }
    close(by);
    printf("reset: %d of %d with another error\n", others, TURNS);
}

int main(void)
{
    bind_again(0);
    bind_again(1);
    reset_by_peer();
    return 0;
}
