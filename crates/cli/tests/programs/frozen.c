/*
 * Waits with timeouts while the program's own clock stands still, as a library for tests makes it:
 * says how each ends, with split sockets the same as with those of the kernel.
 */
#include "programs.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define TIMEOUT_MS 20

/* In the place of the C library's, for all libraries of the program. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    (void)clock;
    *now = (struct timespec){.tv_sec = 1000000000};
    return 0;
}

int main(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {.tv_usec = TIMEOUT_MS * 1000};
    struct timespec limit_ns = {.tv_nsec = TIMEOUT_MS * 1000000};
    socklen_t len = sizeof at;
    char byte;
    int by = stream(), to, fd;
    check(bind(by, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(by, 8), "listen");
    check(getsockname(by, (struct sockaddr *)&at, &len), "getsockname");

    int set = check(epoll_create1(0), "epoll_create1");
    struct epoll_event event = {.events = EPOLLIN};
    check(epoll_ctl(set, EPOLL_CTL_ADD, by, &event), "epoll_ctl");
    printf("epoll_wait: %d\n", epoll_wait(set, &event, 1, TIMEOUT_MS));
    printf("epoll_pwait2: %d\n", epoll_pwait2(set, &event, 1, &limit_ns, NULL));

    struct pollfd polled = {.fd = by, .events = POLLIN};
    printf("poll: %d\n", poll(&polled, 1, TIMEOUT_MS));
    printf("ppoll: %d\n", ppoll(&polled, 1, &limit_ns, NULL));

    fd_set read_set;
    FD_ZERO(&read_set);
    FD_SET(by, &read_set);
    printf("select: %d\n", select(by + 1, &read_set, NULL, NULL, &limit));
    FD_SET(by, &read_set);
    printf("pselect: %d\n", pselect(by + 1, &read_set, NULL, NULL, &limit_ns, NULL));

    to = stream();
    check(connect(to, (struct sockaddr *)&at, sizeof at), "connect");
    fd = check(accept(by, NULL, NULL), "accept");
    limit.tv_usec = TIMEOUT_MS * 1000;
    check(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "SO_RCVTIMEO");
    int received = recv(fd, &byte, 1, 0);
    printf("recv: %d, %s\n", received, strerror(errno));
    check(setsockopt(by, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "SO_RCVTIMEO");
    int accepted = accept(by, NULL, NULL);
    printf("accept: %d, %s\n", accepted, strerror(errno));
    return 0;
}
