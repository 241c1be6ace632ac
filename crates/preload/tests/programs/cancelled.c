/* Threads that wait for what is the kernel's are cancelled, though the program has a split socket:
 *
 *   cancelled PORT
 */
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

enum way { READ, READV, RECV, RECVMSG, ACCEPT, POLL, PPOLL, SELECT, PSELECT, EPOLL, WAYS };

static int ends[2], pair[2], kernels, epoll;
static pid_t waits;
static int cleaned;

static void clean(void *unused) {
    (void)unused;
    cleaned++;
}

static void *wait_for(void *way) {
    char byte;
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    struct pollfd polled = {.fd = ends[0], .events = POLLIN};
    struct epoll_event event;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(ends[0], &set);
    pthread_cleanup_push(clean, NULL);
    __atomic_store_n(&waits, syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    switch ((enum way)(long)way) {
    case READ: (void)!read(ends[0], &byte, 1); break;
    case READV: (void)!readv(ends[0], &vector, 1); break;
    case RECV: recv(pair[0], &byte, 1, 0); break;
    case RECVMSG: recvmsg(pair[0], &message, 0); break;
    case ACCEPT: accept(kernels, NULL, NULL); break;
    case POLL: poll(&polled, 1, -1); break;
    case PPOLL: ppoll(&polled, 1, NULL, NULL); break;
    case SELECT: select(ends[0] + 1, &set, NULL, NULL, NULL); break;
    case PSELECT: pselect(ends[0] + 1, &set, NULL, NULL, NULL, NULL); break;
    case EPOLL: epoll_wait(epoll, &event, 1, -1); break;
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

int main(int count, char **arguments) {
    CHECK(count == 2);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    int split = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(split, (struct sockaddr *)&at, sizeof at) == 0 && listen(split, 1) == 0);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = 0;
    kernels = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(kernels, (struct sockaddr *)&at, sizeof at) == 0 && listen(kernels, 1) == 0);
    epoll = epoll_create1(0);
    CHECK(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && epoll >= 0);

    for (long way = 0; way < WAYS; way++) {
        pthread_t thread;
        void *result;
        waits = cleaned = 0;
        CHECK(pthread_create(&thread, NULL, wait_for, (void *)way) == 0);
        while (__atomic_load_n(&waits, __ATOMIC_SEQ_CST) == 0)
            sched_yield();
        await_sleep(waits);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
        CHECK(result == PTHREAD_CANCELED && cleaned == 1);
    }

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
