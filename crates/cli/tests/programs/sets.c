/*
 * Says what sets of epoll report in ways that programs seldom use them, a line for each: of split
 * sockets the same as of those of the kernel.
 */
#include "sets.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WAITING 8
#define EVENTS 8

static int waited_for;
static atomic_int started[WAITING];
static struct epoll_event found_by[WAITING];

static void *wait_in_set(void *place)
{
    int own = (int)(long)place;
    atomic_store(&started[own], gettid());
    int count = epoll_wait(waited_for, &found_by[own], 1, -1);
    return (void *)(long)count;
}

/* Threads wait in a set before its first socket comes, by a duplicate. Each gets one connection. */
static void waiting_before(void)
{
    int listener = stream(), clients[WAITING], accepted[WAITING];
    unsigned long sum = 0, counts = 0;
    pthread_t threads[WAITING];
    waited_for = new_set();
    int other = check(fcntl(waited_for, F_DUPFD_CLOEXEC, 3), "F_DUPFD_CLOEXEC");
    for (long place = 0; place < WAITING; place++) {
        pthread_create(&threads[place], NULL, wait_in_set, (void *)place);
        await_sleep(&started[place]);
    }
    struct sockaddr_in at = listen_on(listener);
    for (int place = 0; place < WAITING; place++) {
        clients[place] = connected_to(at);
        accepted[place] = check(accept(listener, NULL, NULL), "accept");
        add(other, accepted[place], EPOLLIN | EPOLLONESHOT, 1ul << (8 * place));
    }
    for (int place = 0; place < WAITING; place++)
        check(send(clients[place], "x", 1, 0), "send");
    for (int place = 0; place < WAITING; place++) {
        void *count = NULL;
        pthread_join(threads[place], &count);
        counts += (unsigned long)count;
        sum += found_by[place].data.u64;
    }
    printf("threads that have waited before: %lu, %#lx\n", counts, sum);
    for (int place = 0; place < WAITING; place++) {
        close(clients[place]);
        close(accepted[place]);
    }
    close(other);
    close(waited_for);
    close(listener);
}

/* All descriptors of a set are that set, until the last is closed. */
static void duplicates(void)
{
    int listener = stream(), set = new_set();
    int by_fcntl = check(fcntl(set, F_DUPFD_CLOEXEC, 3), "F_DUPFD_CLOEXEC");
    int by_dup = check(dup(by_fcntl), "dup"), by_dup2 = check(dup2(set, by_dup + 1), "dup2");
    struct sockaddr_in at = listen_on(listener);
    add(by_fcntl, listener, EPOLLIN, 0x1122334455667788);
    int client = connected_to(at);
    say_next("the first", set);
    say_next("by fcntl", by_fcntl);
    close(set);
    close(by_fcntl);
    say_next("by dup", by_dup);
    close(by_dup);
    say_next("by dup2", by_dup2);
    int later = check(dup(by_dup2), "dup");
    close(by_dup2);
    printf("there already: %d\n", change(later, EPOLL_CTL_ADD, listener, EPOLLIN, 5));
    printf("changed: %d\n", change(later, EPOLL_CTL_MOD, listener, EPOLLIN, 6));
    say_next("by a duplicate of it", later);
    close(client);
    close(later);
    close(listener);
}

/* None of the events of eight is lost, however few a call has room for. */
static void room_for(int max, unsigned flag, int is_ready)
{
    int set = new_set(), listener = stream(), events[EVENTS], client = -1;
    int seen[EVENTS + 1] = {0}, lost = 0;
    struct sockaddr_in at = listen_on(listener);
    add(set, listener, EPOLLIN, EVENTS);
    if (is_ready) {
        client = connected_to(at);
        say_next("a listener", set);
    }
    for (int place = 0; place < EVENTS; place++) {
        events[place] = check(eventfd(0, EFD_NONBLOCK), "eventfd");
        add(set, events[place], EPOLLIN | flag, place);
    }
    for (int place = 0; place < EVENTS; place++)
        check(eventfd_write(events[place], 1), "eventfd_write");
    for (int turn = 0; turn < 1000; turn++) {
        struct epoll_event found[EVENTS];
        int count = epoll_wait(set, found, max, 0);
        for (int place = 0; place < count; place++)
            seen[found[place].data.u64]++;
    }
    for (int place = 0; place < EVENTS; place++) {
        lost += seen[place] != 1;
        close(events[place]);
    }
    printf("room for %d: %d not reported once, listener %d\n", max, lost, seen[EVENTS] > 0);
    if (client >= 0)
        close(client);
    close(listener);
    close(set);
}

/* Members with equal data are two. */
static void equal_data(void)
{
    int set = new_set(), listener = stream(), event = check(eventfd(0, 0), "eventfd"), total = 0;
    struct sockaddr_in at = listen_on(listener);
    add(set, listener, EPOLLIN | EPOLLET, 5);
    add(set, event, EPOLLIN | EPOLLET, 5);
    int client = connected_to(at);
    check(eventfd_write(event, 1), "eventfd_write");
    while (total < 2) {
        struct epoll_event found[4];
        int count = epoll_wait(set, found, 4, 10000);
        if (count <= 0)
            break;
        total += count;
    }
    printf("with equal data: %d\n", total);
    close(client);
    close(event);
    close(listener);
    close(set);
}

/* A socket is a member before it has an address. */
static void before_bind(void)
{
    int set = new_set(), listener = stream();
    add(set, listener, EPOLLIN, 7);
    struct sockaddr_in at = listen_on(listener);
    int client = connected_to(at);
    say_next("a member before it was bound", set);
    printf("changed: %d\n", change(set, EPOLL_CTL_MOD, listener, EPOLLIN, 8));
    say_next("changed", set);
    printf("removed: %d\n", change(set, EPOLL_CTL_DEL, listener, 0, 0));
    close(client);
    close(listener);
    close(set);
}

/* A closed member is reported as long as a duplicate of it is open. */
static void closed_members(unsigned flag)
{
    struct epoll_event found[4];
    int set = new_set(), listener = stream();
    struct sockaddr_in at = listen_on(listener);
    int client = connected_to(at);
    add(set, listener, EPOLLIN | flag, 7);
    int copy = check(dup(listener), "dup");
    close(listener);
    say_next("a closed listener", set);
    printf("changed: %d\n", change(set, EPOLL_CTL_MOD, listener, EPOLLIN, 8));
    printf("removed: %d\n", change(set, EPOLL_CTL_DEL, listener, 0, 0));
    check(dup2(copy, listener), "dup2");
    printf("added again: %d\n", change(set, EPOLL_CTL_ADD, listener, EPOLLIN, 9));
    check(dup2(copy, listener), "dup2");
    printf("changed: %d\n", change(set, EPOLL_CTL_MOD, listener, EPOLLIN, 10));
    say_next("open again", set);
    int accepted = check(accept(copy, NULL, NULL), "accept");
    close(listener);
    add(set, accepted, EPOLLIN | EPOLLRDHUP | flag, 11);
    int other = check(fcntl(accepted, F_DUPFD_CLOEXEC, 100), "F_DUPFD_CLOEXEC");
    add(set, other, EPOLLIN | flag, 12);
    close(accepted);
    check(send(client, "x", 1, 0), "send");
    int count = 0;
    unsigned long data = 0;
    while (count < 2) {
        int more = check(epoll_wait(set, found + count, 4 - count, 20000), "epoll_wait");
        for (int place = count; place < count + more; place++)
            data ^= found[place].data.u64;
        count = more > 0 ? count + more : 4;
    }
    printf("a closed connection, and its duplicate: %d, %#lx\n", count, data);
    close(copy);
    close(other);
    printf("all closed: %d\n", epoll_wait(set, found, 4, 0));
    close(client);
    close(set);
}

/* So is a closed set within another. */
static void closed_set(void)
{
    int outer = new_set(), inner = new_set(), listener = stream();
    struct sockaddr_in at = listen_on(listener);
    add(inner, listener, EPOLLIN, 7);
    add(outer, inner, EPOLLIN, 13);
    int copy = check(dup(inner), "dup"), client = connected_to(at);
    close(inner);
    say_next("a closed set", outer);
    struct epoll_event found[4];
    close(copy);
    printf("all closed: %d\n", epoll_wait(outer, found, 4, 0));
    close(client);
    close(listener);
    close(outer);
}

int main(void)
{
    waiting_before();
    duplicates();
    for (int max = 1; max <= 4; max++) {
        room_for(max, EPOLLET, 0);
        room_for(max, EPOLLONESHOT, 0);
        room_for(max, EPOLLET, 1);
        room_for(max, EPOLLONESHOT, 1);
    }
    equal_data();
    before_bind();
    closed_members(0);
    closed_members(EPOLLET);
    closed_set();
    return 0;
}
