/* What programs about sets of epoll have in common. */
#ifndef SETS_H
#define SETS_H

#include "programs.h"

#include <arpa/inet.h>
#include <sys/epoll.h>

static inline struct sockaddr_in listen_on(int fd)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(fd, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(fd, 8), "listen");
    check(getsockname(fd, (struct sockaddr *)&at, &len), "getsockname");
    return at;
}

static inline int connected_to(struct sockaddr_in at)
{
    int fd = stream();
    check(connect(fd, (struct sockaddr *)&at, sizeof at), "connect");
    return fd;
}

static inline int change(int set, int how, int fd, unsigned events, unsigned long data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, how, fd, &event);
}

static inline void add(int set, int fd, unsigned events, unsigned long data)
{
    check(change(set, EPOLL_CTL_ADD, fd, events, data), "epoll_ctl");
}

static inline int new_set(void)
{
    return check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
}

/* Says what a set reports next. */
static inline void say_next(const char *what, int set)
{
    struct epoll_event found[4];
    int count = epoll_wait(set, found, 4, 20000);
    printf("%s: %d,", what, count);
    for (int place = 0; place < count; place++)
        printf(" %#lx", (unsigned long)found[place].data.u64);
    printf("\n");
}

#endif
