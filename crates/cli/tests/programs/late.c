/*
 * Says what becomes of sockets that programs use in several ways before they have an address, and
 * of waits that began before, a line for each: of split sockets the same as of those of the kernel.
 */
#include "sets.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <unistd.h>

/* A socket is a member of three sets before it is bound. */
static void several_sets(void)
{
    int one = new_set(), two = new_set(), gone = new_set(), listener = stream();
    add(one, listener, EPOLLIN, 1);
    add(gone, listener, EPOLLIN, 3);
    add(two, listener, EPOLLIN | EPOLLET, 2);
    check(change(gone, EPOLL_CTL_DEL, listener, 0, 0), "EPOLL_CTL_DEL");
    int copy = check(dup(one), "dup");
    struct sockaddr_in at = listen_on(listener);
    int client = connected_to(at);
    say_next("the first set", one);
    say_next("the first set by a duplicate", copy);
    say_next("the second set", two);
    struct epoll_event found;
    printf("the second set again: %d\n", epoll_wait(two, &found, 1, 0));
    printf("one that it has left: %d\n", epoll_wait(gone, &found, 1, 0));
    printf("removed: %d, again %d\n", change(two, EPOLL_CTL_DEL, listener, 0, 0),
           change(gone, EPOLL_CTL_DEL, listener, 0, 0));
    close(client);
    close(copy);
    close(listener);
    close(one);
    close(two);
    close(gone);
}

/* What a socket reports before it has an address, it does not report again when it gets one. */
static void reported_before(void)
{
    struct epoll_event found;
    int edge = new_set(), once = new_set(), spent = new_set(), listener = stream(), own = stream();
    add(edge, listener, EPOLLIN | EPOLLET, 1);
    add(once, listener, EPOLLIN | EPOLLONESHOT, 2);
    add(spent, own, EPOLLOUT | EPOLLONESHOT, 3);
    say_next("an edge", edge);
    say_next("once", once);
    say_next("once, alone", spent);
    check(change(once, EPOLL_CTL_MOD, listener, EPOLLIN | EPOLLONESHOT, 4), "EPOLL_CTL_MOD");
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t len = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(listener, (struct sockaddr *)&at, sizeof at), "bind");
    printf("bound: %d", epoll_wait(edge, &found, 1, 0));
    check(listen(listener, 8), "listen");
    check(getsockname(listener, (struct sockaddr *)&at, &len), "getsockname");
    printf(", listening: %d\n", epoll_wait(edge, &found, 1, 0));
    check(connect(own, (struct sockaddr *)&at, sizeof at), "connect");
    say_next("an edge", edge);
    printf("the edge again: %d\n", epoll_wait(edge, &found, 1, 0));
    say_next("changed, and not reported", once);
    printf("reported: %d\n", epoll_wait(once, &found, 1, 0));
    printf("connected: %d", epoll_wait(spent, &found, 1, 0));
    printf(", changed: %d\n", change(spent, EPOLL_CTL_MOD, own, EPOLLOUT | EPOLLONESHOT, 5));
    say_next("connected and changed", spent);
    close(own);
    close(listener);
    close(edge);
    close(once);
    close(spent);
}

/* A socket has two descriptors before it is bound, each in a set. */
static void duplicated(void)
{
    struct sockaddr_in at = {0};
    socklen_t len = sizeof at;
    int set = new_set(), one = stream(), accepts = 0;
    int two = check(fcntl(one, F_DUPFD_CLOEXEC, 50), "F_DUPFD_CLOEXEC");
    int other = check(dup(two), "dup"), unrelated = stream(), its = check(dup(unrelated), "dup");
    add(set, two, EPOLLIN, 22);
    listen_on(one);
    check(getsockname(two, (struct sockaddr *)&at, &len), "getsockname");
    len = sizeof accepts;
    check(getsockopt(other, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &len), "SO_ACCEPTCONN");
    printf("a duplicate listens: %d, closes on exec: %d\n", accepts,
           fcntl(two, F_GETFD) & FD_CLOEXEC);
    check(getsockopt(its, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &len), "SO_ACCEPTCONN");
    printf("another socket listens: %d\n", accepts);
    close(one);
    int client = connected_to(at);
    say_next("by a duplicate", set);
    int accepted = check(accept(other, NULL, NULL), "accept");
    check((int)send(accepted, "x", 1, 0), "send");
    char byte = 0;
    printf("received: %zd", recv(client, &byte, 1, 0));
    printf(" '%c'\n", byte);
    close(accepted);
    close(client);
    close(two);
    close(other);
    close(unrelated);
    close(its);
    close(set);
}

static int waited_for, event_beside;
static atomic_int started;
static char answer[200];

/* Whether the set has no event: a wait for it may end early, as poll(2) allows. */
static int is_early(void)
{
    struct epoll_event found;
    return epoll_wait(waited_for, &found, 1, 0) == 0;
}

static void *wait_by_poll(void *none)
{
    struct pollfd polled[] = {{.fd = event_beside, .events = POLLIN},
                              {.fd = waited_for, .events = POLLIN}};
    atomic_store(&started, gettid());
    int count;
    do
        count = poll(polled, 2, 20000);
    while (count > 0 && is_early());
    snprintf(answer, sizeof answer, "%d, %#x %#x", count, (unsigned)polled[0].revents,
             (unsigned)polled[1].revents);
    return none;
}

static void *wait_by_ppoll(void *none)
{
    struct timespec timeout = {.tv_sec = 20};
    struct pollfd polled = {.fd = waited_for, .events = POLLIN};
    atomic_store(&started, gettid());
    int count;
    do
        count = ppoll(&polled, 1, &timeout, NULL);
    while (count > 0 && is_early());
    snprintf(answer, sizeof answer, "%d, %#x", count, (unsigned)polled.revents);
    return none;
}

static fd_set of_both(void)
{
    fd_set both;
    FD_ZERO(&both);
    FD_SET(event_beside, &both);
    FD_SET(waited_for, &both);
    return both;
}

static void *wait_by_select(void *none)
{
    struct timeval timeout = {.tv_sec = 20};
    fd_set readable;
    int count;
    atomic_store(&started, gettid());
    do {
        readable = of_both();
        count = select(FD_SETSIZE, &readable, NULL, NULL, &timeout);
    } while (count > 0 && is_early());
    snprintf(answer, sizeof answer, "%d, %d %d", count, FD_ISSET(event_beside, &readable) != 0,
             FD_ISSET(waited_for, &readable) != 0);
    return none;
}

static void *wait_by_pselect(void *none)
{
    struct timespec timeout = {.tv_sec = 20};
    fd_set readable, writable;
    int count;
    atomic_store(&started, gettid());
    do {
        readable = writable = of_both();
        FD_CLR(event_beside, &writable);
        count = pselect(FD_SETSIZE, &readable, &writable, NULL, &timeout, NULL);
    } while (count > 0 && is_early());
    snprintf(answer, sizeof answer, "%d, %d %d, %d", count, FD_ISSET(event_beside, &readable) != 0,
             FD_ISSET(waited_for, &readable) != 0, FD_ISSET(waited_for, &writable) != 0);
    return none;
}

/* A thread waits for a set, by another call, before the set's first socket comes. */
static void waited_before(const char *what, void *(*wait)(void *))
{
    pthread_t thread;
    int set = new_set(), listener = stream();
    waited_for = set;
    event_beside = check(eventfd(0, 0), "eventfd");
    atomic_store(&started, 0);
    pthread_create(&thread, NULL, wait, NULL);
    await_sleep(&started);
    struct sockaddr_in at = listen_on(listener);
    add(set, listener, EPOLLIN, 7);
    /* The wait goes on: there is no connection yet. */
    await_sleep(&started);
    int client = connected_to(at);
    pthread_join(thread, NULL);
    printf("%s: %s\n", what, answer);
    say_next("the set", set);
    close(client);
    close(listener);
    close(set);
    close(event_beside);
}

static void *wait_for_exceptions(void *none)
{
    struct timeval timeout = {.tv_sec = 20};
    fd_set readable, except;
    FD_ZERO(&readable);
    FD_SET(event_beside, &readable);
    except = of_both();
    atomic_store(&started, gettid());
    int count = select(FD_SETSIZE, &readable, NULL, &except, &timeout);
    snprintf(answer, sizeof answer, "%d, %d %d", count, FD_ISSET(event_beside, &readable) != 0,
             FD_ISSET(waited_for, &except) != 0);
    return none;
}

/* A thread waits for a socket before that has an address. Only for exceptions does the call wait. */
static void waited_for_socket(void)
{
    pthread_t thread;
    int listener = stream();
    waited_for = listener;
    event_beside = check(eventfd(0, 0), "eventfd");
    struct pollfd polled = {.fd = listener, .events = POLLIN};
    printf("without an address: %d", poll(&polled, 1, 20000));
    printf(", %#x\n", (unsigned)polled.revents);
    atomic_store(&started, 0);
    pthread_create(&thread, NULL, wait_for_exceptions, NULL);
    await_sleep(&started);
    struct sockaddr_in at = listen_on(listener);
    int client = connected_to(at);
    check(eventfd_write(event_beside, 1), "eventfd_write");
    pthread_join(thread, NULL);
    printf("a socket, for exceptions: %s\n", answer);
    close(client);
    close(listener);
    close(event_beside);
}

static int listener_of_thread;

static void *accept_one(void *none)
{
    atomic_store(&started, gettid());
    int fd = accept(listener_of_thread, NULL, NULL);
    snprintf(answer, sizeof answer, "%s", fd < 0 ? strerror(errno) : "accepted");
    if (fd >= 0) {
        check((int)send(fd, "x", 1, 0), "send");
        close(fd);
    }
    return none;
}

/* A thread waits for a connection to a listener that another closes. */
static void closed_listener(void)
{
    char byte = 0;
    pthread_t thread;
    listener_of_thread = stream();
    struct sockaddr_in at = listen_on(listener_of_thread);
    atomic_store(&started, 0);
    pthread_create(&thread, NULL, accept_one, NULL);
    await_sleep(&started);
    close(listener_of_thread);
    int client = connected_to(at);
    pthread_join(thread, NULL);
    printf("a closed listener: %s", answer);
    printf(", received %zd\n", recv(client, &byte, 1, 0));
    close(client);
    int refused = stream();
    int connected = connect(refused, (struct sockaddr *)&at, sizeof at);
    printf("after it: %s\n", connected < 0 ? strerror(errno) : "connected");
    close(refused);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    several_sets();
    reported_before();
    duplicated();
    waited_before("by poll", wait_by_poll);
    waited_before("by ppoll", wait_by_ppoll);
    waited_before("by select", wait_by_select);
    waited_before("by pselect", wait_by_pselect);
    waited_for_socket();
    closed_listener();
    return 0;
}
