/*
 * Says what a thread finds that waits for a set of epoll, which holds another, before that has its
 * first socket, a line for each way: of split sockets the same as of those of the kernel.
 */
#include "sets.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <unistd.h>

#define WAIT_MS 20000

/* The set that the thread waits for, one that may be between, and the one that gets the socket. */
static int outer, between, inner;
static unsigned long found_within;
static atomic_int started;
static char answer[200];

/*
 * Whether the inner set has no event, though one that holds it is readable: as programs do, it asks
 * each in turn.
 */
static int is_early(void)
{
    struct epoll_event found = {0};
    epoll_wait(outer, &found, 1, 0);
    epoll_wait(between, &found, 1, 0);
    int count = epoll_wait(inner, &found, 1, 0);
    found_within = found.data.u64;
    return count == 0;
}

static void by_epoll_wait(void)
{
    struct epoll_event found = {0};
    int count;
    do
        count = epoll_wait(outer, &found, 1, WAIT_MS);
    while (count > 0 && is_early());
    snprintf(answer, sizeof answer, "%d, %#x, %#lx", count, found.events,
             (unsigned long)found.data.u64);
}

static void by_poll(void)
{
    struct pollfd polled = {.fd = outer, .events = POLLIN};
    int count;
    do
        count = poll(&polled, 1, WAIT_MS);
    while (count > 0 && is_early());
    snprintf(answer, sizeof answer, "%d, %#x", count, (unsigned)polled.revents);
}

static void by_select(void)
{
    struct timeval timeout = {.tv_sec = WAIT_MS / 1000};
    fd_set readable;
    int count;
    do {
        FD_ZERO(&readable);
        FD_SET(outer, &readable);
        count = select(outer + 1, &readable, NULL, NULL, &timeout);
    } while (count > 0 && is_early());
    snprintf(answer, sizeof answer, "%d, %d", count, FD_ISSET(outer, &readable) != 0);
}

typedef void wait_by(void);

static void *wait_outside(void *by)
{
    wait_by *const *wait = by;
    atomic_store(&started, gettid());
    (*wait)();
    return NULL;
}

/* Ways in which the inner set gets its first socket. */
enum {
    ADDED,            /* a listener is added */
    BOUND,            /* a member, edge-triggered, is bound */
    BY_DUPLICATES,    /* added by another descriptor of the set; the thread has one, too */
    BESIDE,           /* the outer set has a split socket already */
    TWO_WITHIN,       /* there is a set between the two */
    FROM_BOTH,        /* another set holds the inner one as well */
    WAYS
};

static const char *const names[WAYS] = {"added", "bound", "by duplicates", "beside another",
                                        "two within", "in two sets"};

static void waited_outside(const char *by, wait_by *wait, int way)
{
    pthread_t thread;
    int listener = stream(), other = stream(), beside = new_set();
    between = new_set();
    int of_inner = inner = new_set(), of_outer = outer = new_set(), held = inner;
    if (way == BESIDE) {
        listen_on(other);
        add(outer, other, EPOLLIN, 5);
    }
    if (way == TWO_WITHIN) {
        add(between, inner, EPOLLIN, 6);
        held = between;
    }
    add(outer, held, EPOLLIN, 7);
    if (way == FROM_BOTH)
        add(beside, inner, EPOLLIN, 8);
    if (way == BOUND) {
        add(inner, listener, EPOLLIN | EPOLLET, 9);
        /* Without an address, it is hung up. */
        say_next("before it is bound", inner);
    }
    if (way == BY_DUPLICATES) {
        of_inner = check(dup(inner), "dup");
        outer = check(fcntl(of_outer, F_DUPFD_CLOEXEC, 3), "F_DUPFD_CLOEXEC");
    }
    atomic_store(&started, 0);
    pthread_create(&thread, NULL, wait_outside, &wait);
    await_sleep(&started);
    struct sockaddr_in at = listen_on(listener);
    if (way != BOUND)
        add(of_inner, listener, EPOLLIN, 9);
    /* The wait goes on: there is no connection yet. */
    await_sleep(&started);
    int client = connected_to(at);
    pthread_join(thread, NULL);
    printf("%s, %s: %s, %#lx\n", by, names[way], answer, found_within);
    if (way != BOUND) {
        say_next("the outer set", of_outer);
        say_next("the inner set", inner);
    }
    if (way == FROM_BOTH)
        say_next("the one beside", beside);
    printf("changed: %d\n", change(of_outer, EPOLL_CTL_MOD, held, EPOLLIN, 10));
    if (way != BOUND)
        say_next("the outer set", of_outer);
    printf("there already: %d\n", change(outer, EPOLL_CTL_ADD, held, EPOLLIN, 11));
    printf("removed: %d\n", change(outer, EPOLL_CTL_DEL, held, 0, 0));
    struct epoll_event found;
    printf("without it: %d\n", epoll_wait(of_outer, &found, 1, 0));
    int fds[] = {client, listener, other, between, beside, inner, of_outer};
    for (unsigned place = 0; place < sizeof fds / sizeof *fds; place++)
        close(fds[place]);
    if (of_inner != inner)
        close(of_inner);
    if (outer != of_outer)
        close(outer);
}

int main(void)
{
    static const struct {
        const char *name;
        wait_by *wait;
    } waits[] = {{"epoll_wait", by_epoll_wait}, {"poll", by_poll}, {"select", by_select}};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int by = 0; by < 3; by++)
        for (int way = 0; way < WAYS; way++)
            waited_outside(waits[by].name, waits[by].wait, way);
    return 0;
}
