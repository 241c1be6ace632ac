/*
 * An echo server on the split stack: one thread, one epoll set, edge-triggered.
 *
 *     cc -O2 -o echo echo.c $(pkg-config --cflags --libs splitway)
 *     SPLITWAY_SOCKET=/run/splitway/sockets.sock ./echo 7
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <splitway.h>

static void die(const char *what)
{
    char why[256] = "";
    if (sw_init_error(why, sizeof why) == 0)
        snprintf(why, sizeof why, "%s", strerror(errno));
    fprintf(stderr, "echo: %s: %s\n", what, why);
    exit(1);
}

static void watch(int set, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = fd};
    if (sw_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll_ctl");
}

static int listen_on(unsigned short port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1;
    int fd = sw_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    if (sw_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0)
        die("SO_REUSEADDR");
    if (sw_bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || sw_listen(fd, 1024) < 0)
        die("listen");
    return fd;
}

/* Sends back what comes, until there is nothing more or the stream ends. A peer that does not read
 * its echo holds up the others: a real server would keep what it could not send. */
static void echo(int fd)
{
    char bytes[16384];
    ssize_t len;
    while ((len = sw_recv(fd, bytes, sizeof bytes, 0)) > 0) {
        ssize_t done = 0;
        while (done < len) {
            ssize_t sent = sw_send(fd, bytes + done, len - done, MSG_NOSIGNAL);
            if (sent < 0 && errno == EAGAIN) {
                struct pollfd room = {.fd = fd, .events = POLLOUT};
                sw_poll(&room, 1, -1);
            } else if (sent < 0) {
                sw_close(fd);
                return;
            } else {
                done += sent;
            }
        }
    }
    if (len == 0 || errno != EAGAIN)
        sw_close(fd);
}

int main(int count, char **arguments)
{
    struct epoll_event events[64];
    int listener = listen_on(count > 1 ? atoi(arguments[1]) : 7);
    int set = sw_epoll_create1(EPOLL_CLOEXEC);
    if (set < 0)
        die("epoll_create1");
    watch(set, listener);
    for (;;) {
        int found = sw_epoll_wait(set, events, 64, -1);
        if (found < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < found; i++) {
            int fd = events[i].data.fd;
            if (fd != listener) {
                echo(fd);
                continue;
            }
            while ((fd = sw_accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
                watch(set, fd);
        }
    }
}
