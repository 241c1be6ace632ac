/* Threads that wait are cancelled: for what is the kernel's, and for split sockets.
 *
 *   cancelled PORT
 */
#include <arpa/inet.h>
#include <err.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHECK(condition) \
    do { if (!(condition)) errx(1, "line %d: %s", __LINE__, #condition); } while (0)

enum way {
    READ, READV, RECV, RECVMSG, ACCEPT, POLL, PPOLL, SELECT, PSELECT, EPOLL, EPOLL_MASK,
    WRITE, SENDMSG, WAYS
};

#define ADDRESS(at) (struct sockaddr *)&at, sizeof at

/* Where nothing comes from: a pipe or a split socket, a pair of sockets or a split one. */
static int ends[2], pair[2], listener, epoll, full;
static pid_t waits;
static int cleaned;

static void clean(void *unused) {
    (void)unused;
    cleaned++;
}

static void *wait_for(void *way) {
    static char bytes[1 << 16];
    char byte;
    sigset_t no_signals;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    struct pollfd polled = {.fd = ends[0], .events = POLLIN};
    struct epoll_event event;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    sigemptyset(&no_signals);
    pthread_cleanup_push(clean, NULL);
    __atomic_store_n(&waits, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    switch ((enum way)(long)way) {
    case READ: (void)!read(ends[0], &byte, 1); break;
    case READV: (void)!readv(ends[0], &vector, 1); break;
    case RECV: recv(pair[0], &byte, 1, 0); break;
    case RECVMSG: recvmsg(pair[0], &message, 0); break;
    case ACCEPT: accept(listener, NULL, NULL); break;
    case POLL: poll(&polled, 1, -1); break;
    case PPOLL: ppoll(&polled, 1, NULL, NULL); break;
    case SELECT: select(ends[0] + 1, &set, NULL, NULL, NULL); break;
    case PSELECT: pselect(ends[0] + 1, &set, NULL, NULL, NULL, NULL); break;
    case EPOLL: epoll_wait(epoll, &event, 1, -1); break;
    case EPOLL_MASK: epoll_pwait(epoll, &event, 1, -1, &no_signals); break;
    case WRITE: while (write(full, bytes, sizeof bytes) > 0); break;
    case SENDMSG: message.msg_iov = &(struct iovec){bytes, sizeof bytes};
        while (sendmsg(full, &message, 0) > 0);
        break;
    case WAYS: break;
    }
    pthread_cleanup_pop(0);
    return NULL;
}

/* Waits until a thread sleeps in the kernel. */
static void await_sleep(pid_t thread) {
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    while (state != 'S') {
        FILE *stat = fopen(path, "r");
        CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
        fclose(stat);
        sched_yield();
    }
}

static pthread_t started(void *(*run)(void *), long way) {
    pthread_t thread;
    waits = cleaned = 0;
    CHECK(pthread_create(&thread, NULL, run, (void *)way) == 0);
    while (__atomic_load_n(&waits, __ATOMIC_SEQ_CST) == 0)
        sched_yield();
    await_sleep(waits);
    return thread;
}

static void cancel_each(void) {
    for (long way = 0; way < WAYS; way++) {
        void *result;
        pthread_t thread = started(wait_for, way);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED && cleaned == 1);
    }
}

/* A thread that puts off its end goes on with its call, and ends when it no longer does. */
static void *put_off(void *unused) {
    char byte;
    (void)unused;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    __atomic_store_n(&waits, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    CHECK(recv(ends[0], &byte, 1, 0) == 1 && byte == 'x');
    cleaned++;
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    recv(ends[0], &byte, 1, 0);
    return NULL;
}

static void cancel_later(int peer) {
    void *result;
    pthread_t thread = started(put_off, 0);
    CHECK(pthread_cancel(thread) == 0);
    CHECK(send(peer, "x", 1, 0) == 1 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned == 1);
}

/* A thread is not taken for an earlier one of its name, which was cancelled. */
static void *receive(void *unused) {
    static char byte;
    (void)unused;
    __atomic_store_n(&waits, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    return recv(ends[0], &byte, 1, 0) == 1 ? &byte : NULL;
}

static void take_no_other(int peer) {
    for (int count = 0; count < 4; count++) {
        void *result;
        pthread_t thread = started(receive, 0);
        CHECK(send(peer, "y", 1, 0) == 1 && pthread_join(thread, &result) == 0);
        CHECK(result != NULL && result != PTHREAD_CANCELED && *(char *)result == 'y');
    }
}

/* ... and its calls are not cut short by that. */
static void *write_much(void *unused) {
    static char much[1 << 20];
    (void)unused;
    __atomic_store_n(&waits, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    return write(full, much, sizeof much) == sizeof much ? much : NULL;
}

static void cut_nothing_short(int peer) {
    static char bytes[1 << 16];
    void *result;
    pthread_t thread = started(receive, 0);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    /* It is full. */
    CHECK(pthread_create(&thread, NULL, write_much, NULL) == 0);
    struct timeval soon = {0, 200000};
    CHECK(setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    while (recv(peer, bytes, sizeof bytes, 0) > 0 || pthread_tryjoin_np(thread, &result) != 0);
    CHECK(result != NULL);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[2]))};
    CHECK(inet_pton(AF_INET, arguments[1], &at.sin_addr) == 1);
    int split = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(split, ADDRESS(at)) == 0 && listen(split, 1) == 0);

    struct sockaddr_in kernels = {.sin_family = AF_INET};
    kernels.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, ADDRESS(kernels)) == 0 && listen(listener, 1) == 0);
    epoll = epoll_create1(0);
    CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && epoll >= 0);
    full = pair[1];
    int pipes = ends[0], writes = ends[1];
    cancel_each();

    int out = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(out, ADDRESS(at)) == 0);
    listener = split;
    full = ends[0] = pair[0] = accept(split, NULL, NULL);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(ends[0] >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event) == 0);
    cancel_each();
    cancel_later(out);
    take_no_other(out);
    cut_nothing_short(out);
    ends[0] = pipes;
    ends[1] = writes;

    /* Microseconds of more than a second are taken by the C library's select. */
    struct timeval timeout = {0, 1000001};
    fd_set set;
    char byte = 1;
    CHECK(write(ends[1], &byte, 1) == 1);
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    CHECK(select(ends[0] + 1, &set, NULL, NULL, &timeout) == 1);
    FD_SET(split, &set);
    timeout = (struct timeval){0, 1000001};
    int end = split > ends[0] ? split : ends[0];
    CHECK(select(end + 1, &set, NULL, NULL, &timeout) == 1 && FD_ISSET(ends[0], &set));
    puts("cancelled");
    return 0;
}
