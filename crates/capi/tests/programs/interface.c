/* The C interface, call by call, against a host stack that connects this program with itself. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

#include <splitway.h>

#define CHECK(it)                                                                  \
    do {                                                                           \
        if (!(it)) {                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #it,            \
                    strerror(errno));                                              \
            exit(1);                                                               \
        }                                                                          \
    } while (0)

#define FAILS(it, why) CHECK((it) == -1 && errno == (why))

static struct sockaddr_in at(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(0x0a000001);
    return at;
}

static int number(int fd, int level, int name)
{
    int value = -1;
    socklen_t len = sizeof value;
    CHECK(sw_getsockopt(fd, level, name, &value, &len) == 0 && len == sizeof value);
    return value;
}

static void sockets(int *opened, int *accepted)
{
    struct sockaddr_in where = at(80), found;
    socklen_t len = sizeof found;
    FAILS(sw_socket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
    FAILS(sw_socket(AF_INET, SOCK_DGRAM, 0), ESOCKTNOSUPPORT);
    FAILS(sw_socket(AF_INET, SOCK_STREAM, IPPROTO_UDP), EPROTONOSUPPORT);
    int listener = sw_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    CHECK(listener >= 0);
    CHECK(fcntl(listener, F_GETFD) == FD_CLOEXEC);
    FAILS(sw_bind(listener, NULL, sizeof where), EFAULT);
    FAILS(sw_bind(listener, (struct sockaddr *)&where, 4), EINVAL);
    FAILS(sw_bind(-1, (struct sockaddr *)&where, sizeof where), EBADF);
    FAILS(sw_bind(0, (struct sockaddr *)&where, sizeof where), ENOTSOCK);
    CHECK(sw_bind(listener, (struct sockaddr *)&where, sizeof where) == 0);
    CHECK(sw_getsockname(listener, (struct sockaddr *)&found, &len) == 0);
    CHECK(len == sizeof found && found.sin_port == htons(80));
    CHECK(number(listener, SOL_SOCKET, SO_ACCEPTCONN) == 0);
    CHECK(sw_listen(listener, 10) == 0 && sw_listen(listener, 20) == 0);
    CHECK(number(listener, SOL_SOCKET, SO_ACCEPTCONN) == 1);
    *opened = sw_socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fcntl(*opened, F_GETFD) == 0);
    FAILS(sw_getpeername(*opened, (struct sockaddr *)&found, &len), ENOTCONN);
    CHECK(sw_connect(*opened, (struct sockaddr *)&where, sizeof where) == 0);
    FAILS(sw_connect(*opened, (struct sockaddr *)&where, sizeof where), EISCONN);
    len = 6;
    memset(&found, 0, sizeof found);
    FAILS(sw_accept4(listener, NULL, NULL, 1), EINVAL);
    *accepted = sw_accept4(listener, (struct sockaddr *)&found, &len, SOCK_NONBLOCK);
    CHECK(*accepted >= 0);
    /* Cut off at the room, and told how long it is. */
    CHECK(len == sizeof found && found.sin_family == AF_INET);
    CHECK(ntohl(found.sin_addr.s_addr) == 0x0a000000);
    CHECK(fcntl(*accepted, F_GETFL) & O_NONBLOCK);
    len = sizeof found;
    CHECK(sw_getpeername(*opened, (struct sockaddr *)&found, &len) == 0);
    CHECK(found.sin_port == htons(80) && found.sin_addr.s_addr == where.sin_addr.s_addr);
    CHECK(sw_close(listener) == 0);
    FAILS(sw_close(listener), EBADF);
}

static void bytes(int opened, int accepted)
{
    char a[4] = "", b[4] = "";
    struct iovec vectors[2] = {{a, 3}, {b, 3}};
    struct msghdr message = {.msg_iov = vectors, .msg_iovlen = 2};
    struct pollfd readable = {.fd = accepted, .events = POLLIN};
    int queued;
    FAILS(sw_recv(accepted, a, 3, 0), EAGAIN);
    FAILS(sw_recv(accepted, NULL, 3, 0), EFAULT);
    FAILS(sw_recv(accepted, a, 3, MSG_OOB), EOPNOTSUPP);
    CHECK(sw_send(opened, "abc", 3, MSG_MORE | MSG_NOSIGNAL) == 3);
    CHECK(sw_write(opened, "def", 3) == 3);
    while (sw_ioctl(accepted, FIONREAD, &queued) == 0 && queued < 6)
        CHECK(sw_poll(&readable, 1, -1) == 1 && readable.revents == POLLIN);
    CHECK(sw_recv(accepted, a, 3, MSG_PEEK) == 3 && strcmp(a, "abc") == 0);
    CHECK(sw_recvmsg(accepted, &message, 0) == 6);
    CHECK(strcmp(a, "abc") == 0 && strcmp(b, "def") == 0 && message.msg_flags == 0);
    CHECK(sw_writev(opened, vectors, 2) == 6);
    CHECK(sw_fcntl(accepted, F_SETFL, fcntl(accepted, F_GETFL) & ~O_NONBLOCK) == 0);
    CHECK(sw_recv(accepted, a, 3, MSG_WAITALL) == 3);
    CHECK(sw_recv(accepted, NULL, 2, MSG_TRUNC) == 2);
    CHECK(sw_read(accepted, a, 3) == 1 && a[0] == 'f');
    CHECK(sw_sendto(opened, "x", 1, 0, NULL, 0) == 1);
    CHECK(sw_recvfrom(accepted, a, 3, 0, NULL, NULL) == 1 && a[0] == 'x');
    message.msg_iovlen = 1;
    CHECK(sw_sendmsg(opened, &message, 0) == 3);
    CHECK(sw_readv(accepted, vectors, 2) == 3);
    FAILS(sw_ioctl(accepted, TIOCGWINSZ, a), ENOTTY);
    while (sw_ioctl(opened, TIOCOUTQ, &queued) == 0 && queued > 0)
        sched_yield();
    CHECK(queued == 0);
    int copy = sw_fcntl(opened, F_DUPFD_CLOEXEC, 100);
    CHECK(copy >= 100 && sw_send(copy, "y", 1, 0) == 1 && sw_close(copy) == 0);
    CHECK(sw_read(accepted, a, 3) == 1 && a[0] == 'y');
}

static void completions(int opened, int accepted)
{
    struct sw_zc_completion done[2] = {{0}};
    char bytes[8];
    FAILS(sw_send_zc(opened, NULL, 3, 0, 1), EFAULT);
    FAILS(sw_send_zc(opened, "abc", 3, MSG_OOB, 1), EOPNOTSUPP);
    FAILS(sw_send_zc(0, "abc", 3, 0, 1), ENOTSOCK);
    FAILS(sw_zc_complete(opened, NULL, 1, 0), EFAULT);
    FAILS(sw_zc_complete(opened, done, 0, 0), EINVAL);
    FAILS(sw_zc_complete(-1, done, 1, 0), EBADF);
    CHECK(sw_zc_complete(opened, done, 2, -1) == 0);
    CHECK(sw_send_zc(opened, "abc", 3, MSG_NOSIGNAL, UINT64_MAX) == 3);
    CHECK(sw_zc_complete(opened, done, 2, -1) == 1);
    CHECK(done[0].cookie == UINT64_MAX && done[0].error == 0 && done[0].flags == SW_ZC_COPIED);
    CHECK(sw_recv(accepted, bytes, sizeof bytes, 0) == 3 && memcmp(bytes, "abc", 3) == 0);
}

static void options(int fd)
{
    int one = 1, odd = 70000;
    struct linger linger = {1, 5}, found;
    struct timeval time = {2, 500000}, back;
    struct tcp_info info;
    char name[16];
    socklen_t len = sizeof found;
    CHECK(number(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM);
    CHECK(number(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET);
    CHECK(number(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP);
    CHECK(number(fd, SOL_SOCKET, SO_ERROR) == 0);
    CHECK(number(fd, IPPROTO_TCP, TCP_MAXSEG) == 1448);
    static const int switches[][2] = {
        {SOL_SOCKET, SO_REUSEADDR},   {SOL_SOCKET, SO_REUSEPORT}, {SOL_SOCKET, SO_KEEPALIVE},
        {SOL_SOCKET, SO_OOBINLINE},   {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_TCP, TCP_CORK},
        {IPPROTO_TCP, TCP_QUICKACK},  {SOL_SPLITWAY, SW_SETUP_OFFLOAD},
        {SOL_SPLITWAY, SW_TEARDOWN_OFFLOAD},
    };
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        int level = switches[i][0], option = switches[i][1];
        CHECK(number(fd, level, option) == 0);
        CHECK(sw_setsockopt(fd, level, option, &one, sizeof one) == 0);
        CHECK(number(fd, level, option) == 1);
    }
    static const int numbers[] = {TCP_KEEPIDLE,     TCP_KEEPINTVL,    TCP_KEEPCNT,
                                  TCP_USER_TIMEOUT, TCP_DEFER_ACCEPT, TCP_NOTSENT_LOWAT};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        /* A time at which a SYN-ACK would be sent again. */
        int value = numbers[i] == TCP_DEFER_ACCEPT ? 15 : 10 + i;
        CHECK(sw_setsockopt(fd, IPPROTO_TCP, numbers[i], &value, sizeof value) == 0);
        CHECK(number(fd, IPPROTO_TCP, numbers[i]) == value);
    }
    FAILS(sw_setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &odd, sizeof odd), EINVAL);
    CHECK(sw_setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &odd, sizeof odd) == 0);
    CHECK(number(fd, SOL_SOCKET, SO_SNDBUF) == 2 * odd);
    CHECK(sw_setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &odd, sizeof odd) == 0);
    CHECK(number(fd, SOL_SOCKET, SO_RCVBUF) == 2 * odd);
    CHECK(sw_setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    CHECK(sw_getsockopt(fd, SOL_SOCKET, SO_LINGER, &found, &len) == 0);
    CHECK(found.l_onoff == 1 && found.l_linger == 5);
    CHECK(sw_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    len = sizeof back;
    CHECK(sw_getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &back, &len) == 0);
    CHECK(back.tv_sec == 2 && back.tv_usec == 500000);
    time.tv_usec = 2000000;
    FAILS(sw_setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time), EDOM);
    CHECK(sw_setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "bbr", 3) == 0);
    len = sizeof name;
    CHECK(sw_getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len) == 0);
    CHECK(len == sizeof name && strcmp(name, "bbr") == 0);
    FAILS(sw_setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "none", 4), ENOENT);
    len = sizeof info;
    memset(&info, 0, sizeof info);
    CHECK(sw_getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0);
    CHECK(info.tcpi_state == 1 && info.tcpi_rtt == 1234 && info.tcpi_snd_cwnd == 10);
    CHECK(len >= offsetof(struct tcp_info, tcpi_snd_wnd) + 4 && info.tcpi_bytes_acked == 0);
    CHECK(info.tcpi_max_pacing_rate == UINT64_MAX);
    FAILS(sw_setsockopt(fd, SOL_SOCKET, 9999, &one, sizeof one), ENOPROTOOPT);
    FAILS(sw_setsockopt(fd, SOL_SOCKET, SO_TYPE, &one, sizeof one), ENOPROTOOPT);
    FAILS(sw_getsockopt(fd, 9999, 1, &one, &len), ENOPROTOOPT);
    FAILS(sw_setsockopt(fd, SOL_SPLITWAY, 9999, &one, sizeof one), ENOPROTOOPT);
    FAILS(sw_setsockopt(fd, IPPROTO_IPV6, 26, &one, sizeof one), ENOPROTOOPT);
    FAILS(sw_setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, 1), EINVAL);
    FAILS(sw_setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, NULL, sizeof one), EFAULT);
    int v6 = sw_socket(AF_INET6, SOCK_STREAM, 0);
    CHECK(number(v6, SOL_SOCKET, SO_DOMAIN) == AF_INET6);
    CHECK(sw_setsockopt(v6, IPPROTO_IPV6, 26, &one, sizeof one) == 0);
    CHECK(number(v6, IPPROTO_IPV6, 26) == 1);
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    CHECK(sw_bind(v6, (struct sockaddr *)&any, sizeof any) == 0);
    len = sizeof any;
    CHECK(sw_getsockname(v6, (struct sockaddr *)&any, &len) == 0);
    CHECK(len == sizeof any && any.sin6_family == AF_INET6 && any.sin6_port != 0);
    CHECK(sw_close(v6) == 0);
}

static void events(int opened, int accepted)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77}, found[4];
    sigset_t none;
    char byte;
    sigemptyset(&none);
    FAILS(sw_epoll_create1(1), EINVAL);
    int set = sw_epoll_create1(EPOLL_CLOEXEC);
    CHECK(set >= 0 && fcntl(set, F_GETFD) == FD_CLOEXEC);
    FAILS(sw_epoll_ctl(set, EPOLL_CTL_ADD, accepted, NULL), EFAULT);
    FAILS(sw_epoll_ctl(set, 9, accepted, &event), EINVAL);
    CHECK(sw_epoll_ctl(set, EPOLL_CTL_ADD, accepted, &event) == 0);
    FAILS(sw_epoll_wait(set, found, 0, 0), EINVAL);
    CHECK(sw_epoll_wait(set, found, 4, 0) == 0);
    CHECK(sw_epoll_pwait(set, found, 4, 1, &none) == 0);
    CHECK(sw_send(opened, "z", 1, 0) == 1);
    CHECK(sw_epoll_pwait(set, found, 4, -1, &none) == 1);
    CHECK(found[0].events == EPOLLIN && found[0].data.u64 == 77);
    CHECK(sw_epoll_wait(set, found, 4, -1) == 1);
    CHECK(sw_recv(accepted, &byte, 1, 0) == 1);
    CHECK(sw_epoll_ctl(set, EPOLL_CTL_DEL, accepted, NULL) == 0);
    CHECK(sw_close(set) == 0);
}

static int pipes;

static void on_pipe(int signal)
{
    (void)signal;
    pipes++;
}

static void ends(int opened, int accepted)
{
    char byte;
    signal(SIGPIPE, on_pipe);
    FAILS(sw_shutdown(opened, 9), EINVAL);
    CHECK(sw_shutdown(opened, SHUT_WR) == 0);
    CHECK(sw_recv(accepted, &byte, 1, 0) == 0);
    FAILS(sw_send(opened, "x", 1, MSG_NOSIGNAL), EPIPE);
    CHECK(pipes == 0);
    FAILS(sw_send(opened, "x", 1, 0), EPIPE);
    CHECK(pipes == 1);
    FAILS(sw_send_zc(opened, "x", 1, 0, 1), EPIPE);
    CHECK(pipes == 2);
    CHECK(sw_close(opened) == 0 && sw_close(accepted) == 0);
}

static void files(void)
{
    struct pollfd opened = {.events = POLLIN};
    struct stat found;
    FAILS(offload_open(NULL, O_RDONLY), EFAULT);
    FAILS(offload_open("/film.mp4", O_RDWR), EINVAL);
    int fid = offload_open("/film.mp4", O_RDONLY | O_CLOEXEC);
    CHECK(fid >= 0);
    opened.fd = fid;
    CHECK(sw_poll(&opened, 1, -1) == 1 && opened.revents == POLLIN);
    CHECK(offload_fstat(fid, &found) == 0);
    CHECK(S_ISREG(found.st_mode) && found.st_size == 1000000 && found.st_ino == 42);
    CHECK(found.st_mtim.tv_sec == 1700000000 && found.st_mtim.tv_nsec == 123456789);
    FAILS(offload_fstat(fid, NULL), EFAULT);
    FAILS(offload_write(fid, fid, -1, 1), EINVAL);
    FAILS(offload_write(fid, fid, 0, 1), ENOTSOCK);
    CHECK(offload_close(fid) == 0);
    FAILS(offload_close(0), EBADF);
    FAILS(offload_fstat(fid, &found), EBADF);
}

int main(void)
{
    int opened, accepted;
    struct sw_options options_of = {.modes = 1 << 20};
    char why[8];
    FAILS(sw_init(&options_of), EINVAL);
    CHECK(sw_init_error(why, sizeof why) > sizeof why && strlen(why) == sizeof why - 1);
    options_of.modes = SW_MODE_DEFAULT;
    CHECK(sw_init(&options_of) == 0);
    FAILS(sw_init(NULL), EALREADY);
    CHECK(sw_modes() == SW_MODE_DEFAULT);
    sockets(&opened, &accepted);
    bytes(opened, accepted);
    completions(opened, accepted);
    options(accepted);
    events(opened, accepted);
    ends(opened, accepted);
    files();
    puts("done");
    return 0;
}
