/*
 * Relays connections to a backend: `relay PORT ADDRESS BACKEND_PORT LOG [BACK_BYTES]`. Each pair is
 * spliced as soon as both are open. With BACK_BYTES, it is taken back whenever so many bytes have
 * passed, as many are copied, and it is spliced again. LOG gets a line for the end of each pair:
 * bytes from the client, bytes to it, how often it was joined, and the error of the client's
 * connection.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <splitway.h>

enum { EVENTS = 64, BUFFER = 65536, TURN_MS = 5 };

struct flow {
    char bytes[BUFFER];
    size_t at, len;
    int has_ended, is_shut;
};

struct pair {
    int fds[2], is_spliced, is_going_back, joins, error;
    struct flow flows[2];
    /* Altogether, when it was last returned, and when it was last taken back. */
    uint64_t bytes[2], copied;
    struct pair *next;
};

static struct pair *pairs;
static uint64_t back_bytes;
static FILE *record;
static int set;

static void watch(int fd, struct pair *pair)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLPRI | EPOLLET};
    event.data.ptr = pair;
    if (sw_epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0)
        perror("sw_epoll_ctl");
}

static int is_over(struct pair *pair)
{
    return pair->error || (pair->flows[0].is_shut && pair->flows[1].is_shut);
}

/* Copies what there is from one to the other. */
static void copy(struct pair *pair, int from)
{
    struct flow *flow = &pair->flows[from];
    int source = pair->fds[from], target = pair->fds[1 - from];
    while (!flow->is_shut) {
        while (flow->len > 0) {
            ssize_t sent = sw_send(target, flow->bytes + flow->at, flow->len, MSG_NOSIGNAL);
            if (sent < 0 && errno == EAGAIN)
                return;
            if (sent < 0) {
                pair->error = errno;
                return;
            }
            flow->at += sent;
            flow->len -= sent;
            pair->bytes[from] += sent;
            pair->copied += sent;
        }
        if (flow->has_ended) {
            sw_shutdown(target, SHUT_WR);
            flow->is_shut = 1;
            return;
        }
        ssize_t got = sw_recv(source, flow->bytes, sizeof flow->bytes, 0);
        if (got < 0 && errno != EAGAIN)
            pair->error = errno;
        if (got < 0)
            return;
        flow->at = 0;
        flow->len = got;
        flow->has_ended = got == 0;
    }
}

static void splice_if_clear(struct pair *pair)
{
    for (int side = 0; side < 2; side++)
        if (pair->flows[side].len > 0 || pair->flows[side].has_ended)
            return;
    struct sw_splice_limits limits = {.idle_ms = 60000};
    pair->is_spliced = sw_splice(pair->fds[0], pair->fds[1], &limits) == 0;
    pair->is_going_back = 0;
}

/* Looks at what has become of a splice; true if the pair is ours. */
static int look(struct pair *pair)
{
    struct sw_splice_status status;
    if (!pair->is_spliced)
        return 1;
    if (sw_splice_status(pair->fds[0], &status) < 0) {
        pair->error = errno;
        return 0;
    }
    switch (status.stage) {
    case SW_SPLICE_JOINED:
        /* The first time only. */
        if (back_bytes && !pair->is_going_back && pair->joins == 0)
            pair->is_going_back = sw_unsplice(pair->fds[0]) == 0;
        return 0;
    case SW_SPLICE_RETURNED:
        pair->joins += status.error == 0;
        break;
    case SW_SPLICE_ENDED:
        pair->joins++;
        pair->error = status.error;
        pair->flows[0].is_shut = pair->flows[1].is_shut = 1;
        break;
    default:
        return 0;
    }
    pair->bytes[0] += status.in_bytes;
    pair->bytes[1] += status.out_bytes;
    pair->is_spliced = 0;
    pair->copied = 0;
    return status.stage == SW_SPLICE_RETURNED;
}

static void serve(struct pair *pair)
{
    if (is_over(pair) || !look(pair))
        return;
    copy(pair, 0);
    copy(pair, 1);
    if (!is_over(pair) && pair->copied >= (pair->joins ? back_bytes : 0))
        splice_if_clear(pair);
}

static void forget_what_is_over(void)
{
    for (struct pair **place = &pairs; *place;) {
        struct pair *pair = *place;
        if (!is_over(pair)) {
            place = &pair->next;
            continue;
        }
        *place = pair->next;
        fprintf(record, "%llu %llu %d %d\n", (unsigned long long)pair->bytes[0],
                (unsigned long long)pair->bytes[1], pair->joins, pair->error);
        fflush(record);
        sw_close(pair->fds[0]);
        sw_close(pair->fds[1]);
        free(pair);
    }
}

static void accept_all(int listener, const struct sockaddr_in *backend)
{
    int client;
    while ((client = sw_accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        int other = sw_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (sw_connect(other, (const struct sockaddr *)backend, sizeof *backend) < 0) {
            perror("sw_connect");
            sw_close(client);
            sw_close(other);
            continue;
        }
        sw_fcntl(other, F_SETFL, O_NONBLOCK);
        struct pair *pair = calloc(1, sizeof *pair);
        pair->fds[0] = client;
        pair->fds[1] = other;
        pair->next = pairs;
        pairs = pair;
        watch(client, pair);
        watch(other, pair);
        serve(pair);
    }
}

int main(int count, char **arguments)
{
    struct sockaddr_in here = {.sin_family = AF_INET}, backend = {.sin_family = AF_INET};
    struct epoll_event listening = {.events = EPOLLIN}, found[EVENTS];
    if (count < 5 || inet_pton(AF_INET, arguments[2], &backend.sin_addr) != 1)
        return 2;
    here.sin_port = htons(atoi(arguments[1]));
    backend.sin_port = htons(atoi(arguments[3]));
    record = fopen(arguments[4], "a");
    back_bytes = count > 5 ? strtoull(arguments[5], NULL, 10) : 0;
    int listener = sw_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    set = sw_epoll_create1(EPOLL_CLOEXEC);
    if (!record || sw_bind(listener, (struct sockaddr *)&here, sizeof here) < 0 ||
        sw_listen(listener, 1024) < 0 ||
        sw_epoll_ctl(set, EPOLL_CTL_ADD, listener, &listening) < 0) {
        perror("listen");
        return 1;
    }
    for (;;) {
        int ready = sw_epoll_wait(set, found, EVENTS, back_bytes ? TURN_MS : -1);
        for (int i = 0; i < ready; i++)
            if (found[i].data.ptr)
                serve(found[i].data.ptr);
            else
                accept_all(listener, &backend);
        if (back_bytes)
            for (struct pair *pair = pairs; pair; pair = pair->next)
                serve(pair);
        forget_what_is_over();
    }
}
