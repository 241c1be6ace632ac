/*
 * Says how a listener and a connection that it has accepted end, to epoll and to calls, as one line.
 *
 *     ends PORT
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
    perror(what);
    exit(1);
}

int main(int count, char **arguments)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    struct epoll_event event = {.events = EPOLLIN};
    char byte;
    if (count < 2)
        die("port");
    at.sin_port = htons(atoi(arguments[1]));
    int listener = sw_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || sw_bind(listener, (struct sockaddr *)&at, sizeof at) < 0 ||
        sw_listen(listener, 16) < 0)
        die("listen");
    printf("listens\n");
    fflush(stdout);
    int fd = sw_accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    int set = sw_epoll_create1(EPOLL_CLOEXEC);
    if (fd < 0 || set < 0 || sw_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
        die("accept");
    printf("accepted\n");
    fflush(stdout);
    if (sw_epoll_wait(set, &event, 1, -1) != 1)
        die("epoll_wait");
    ssize_t len = sw_recv(fd, &byte, 1, 0);
    int received = len < 0 ? errno : 0;
    int accepted = sw_accept4(listener, NULL, NULL, SOCK_CLOEXEC) < 0 ? errno : 0;
    printf("ended %s %s %s\n", event.events & EPOLLHUP ? "EPOLLHUP" : "no hang-up",
           received == ECONNRESET ? "ECONNRESET" : strerror(received),
           accepted == ECONNRESET ? "ECONNRESET" : strerror(accepted));
    return 0;
}
