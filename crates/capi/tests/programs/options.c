/*
 * What every option and call of a TCP socket returns, in each state that a socket may be in: on the
 * kernel with the argument "kernel", with "split" on the split stack. docs/sockets.md says of each
 * whether both print the same; "== NAME" is above what belongs to a row of its tables.
 *
 * Lines of options are "get ...", "set ..." and "then ...", which is what is got after a set;
 * values are behind " = ", and lines with "illegal" are about arguments that no program should use.
 */
#include "stacks.h"

#include <limits.h>
#include <signal.h>

enum state { NEW, BOUND, LISTENING, CONNECTED, ACCEPTED, ENDED, FINISHED, RESET, REFUSED, STATES };

static const char *const state_names[] = {
    [NEW] = "new",
    [BOUND] = "bound",
    [LISTENING] = "listening",
    [CONNECTED] = "connected",
    [ACCEPTED] = "accepted",
    [ENDED] = "ended by its peer",
    [FINISHED] = "ended by both",
    [RESET] = "reset",
    [REFUSED] = "refused",
};

/* A socket, and what has brought it into its state. */
struct made {
    int fd, peer, listener;
};

static struct sockaddr_storage loopback(int family, int port, socklen_t *len)
{
    struct sockaddr_storage all = {0};
    if (family == AF_INET6) {
        struct sockaddr_in6 *six = (void *)&all;
        *six = (struct sockaddr_in6){.sin6_family = family, .sin6_port = htons(port)};
        six->sin6_addr = in6addr_loopback;
        *len = sizeof *six;
    } else {
        *(struct sockaddr_in *)&all = at(port);
        *len = sizeof(struct sockaddr_in);
    }
    return all;
}

static int bind_in(int fd, int family, int port)
{
    socklen_t len;
    struct sockaddr_storage here = loopback(family, port, &len);
    return on.bind(fd, (struct sockaddr *)&here, len);
}

static int connect_in(int fd, int family, int port)
{
    socklen_t len;
    struct sockaddr_storage there = loopback(family, port, &len);
    return on.connect(fd, (struct sockaddr *)&there, len);
}

static int socket_of(int family)
{
    int fd = on.socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        die("socket");
    return fd;
}

static int listener_of(int family)
{
    int fd = socket_of(family);
    if (bind_in(fd, family, 0) < 0 || on.listen(fd, 5) < 0)
        die("listen");
    return fd;
}

/* Both families have the port at the same place. */
static int any_port_of(int fd)
{
    struct sockaddr_storage here;
    socklen_t len = sizeof here;
    if (on.getsockname(fd, (struct sockaddr *)&here, &len) < 0)
        die("getsockname");
    return ntohs(((struct sockaddr_in *)&here)->sin_port);
}

static void connect_both(struct made *made, int family)
{
    made->fd = socket_of(family);
    if (connect_in(made->fd, family, any_port_of(made->listener)) < 0)
        die("connect");
    made->peer = take(made->listener);
}

/* Waits until nothing of a connection that both have ended is under way. */
static void await_close(int fd)
{
    enum { CLOSED = 7 };
    struct tcp_info info = {0};
    for (int turn = 0; turn < 10000 && info.tcpi_state != CLOSED; turn++) {
        socklen_t len = sizeof info;
        if (turn > 0)
            poll(NULL, 0, 1);
        on.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    }
}

static struct made make(int family, enum state state)
{
    struct made made = {-1, -1, -1};
    struct linger now = {1, 0};
    if (state < CONNECTED) {
        made.fd = state == LISTENING ? listener_of(family) : socket_of(family);
        if (state == BOUND && bind_in(made.fd, family, 0) < 0)
            die("bind");
        return made;
    }
    made.listener = listener_of(family);
    if (state == REFUSED) {
        int closed = closed_port();
        made.fd = socket_of(family);
        if (connect_in(made.fd, family, closed) == 0)
            die("a closed port");
        return made;
    }
    connect_both(&made, family);
    if (state == ACCEPTED) {
        int client = made.fd;
        made.fd = made.peer;
        made.peer = client;
    }
    if (state == ENDED || state == FINISHED) {
        on.shutdown(made.peer, SHUT_WR);
        wait_for(made.fd, POLLIN);
    }
    if (state == FINISHED) {
        on.shutdown(made.fd, SHUT_WR);
        await_close(made.fd);
    }
    if (state == RESET) {
        on.setsockopt(made.peer, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        on.close(made.peer);
        made.peer = -1;
        while (!(wait_for(made.fd, 0) & POLLHUP))
            ;
    }
    return made;
}

static void undo(struct made made)
{
    struct linger now = {1, 0};
    int fds[] = {made.fd, made.peer, made.listener};
    for (int at = 0; at < 3; at++) {
        if (fds[at] < 0)
            continue;
        on.setsockopt(fds[at], SOL_SOCKET, SO_LINGER, &now, sizeof now);
        on.close(fds[at]);
    }
}

/* Addresses where nothing is: at the start, in the kernel's half, and where no program maps any. */
enum { ILLEGALS = 3 };

static void *illegal(int which)
{
    static const unsigned long at[ILLEGALS] = {8, -4096, 1ul << 40};
    return (void *)at[which];
}

/* Options. */

enum kind { SWITCH, NUMBER, LINGER, TIME, NAME, INFO, LONG };

static const struct option {
    const char *name;
    int level, number;
    enum kind kind;
    /* What a listener has, and its connections inherit. */
    int inherited;
} options[] = {
#define OPTION(level, name, ...) {#name, level, name, __VA_ARGS__}
    OPTION(SOL_SOCKET, SO_REUSEADDR, SWITCH, 1),
    OPTION(SOL_SOCKET, SO_REUSEPORT, SWITCH, 1),
    OPTION(SOL_SOCKET, SO_OOBINLINE, SWITCH, 1),
    OPTION(SOL_SOCKET, SO_KEEPALIVE, SWITCH, 1),
    OPTION(SOL_SOCKET, SO_LINGER, LINGER, 9),
    OPTION(SOL_SOCKET, SO_RCVBUF, NUMBER, 50000),
    OPTION(SOL_SOCKET, SO_SNDBUF, NUMBER, 50000),
    OPTION(SOL_SOCKET, SO_RCVLOWAT, NUMBER, 9),
    OPTION(SOL_SOCKET, SO_PRIORITY, NUMBER, 5),
    OPTION(SOL_SOCKET, SO_COOKIE, LONG, 0),
    OPTION(SOL_SOCKET, SO_RCVTIMEO, TIME, 9),
    OPTION(SOL_SOCKET, SO_SNDTIMEO, TIME, 9),
    OPTION(SOL_SOCKET, SO_ERROR, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_TYPE, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_DOMAIN, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_PROTOCOL, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_ACCEPTCONN, NUMBER, 0),
    OPTION(IPPROTO_TCP, TCP_NODELAY, SWITCH, 1),
    OPTION(IPPROTO_TCP, TCP_CORK, SWITCH, 1),
    OPTION(IPPROTO_TCP, TCP_KEEPIDLE, NUMBER, 77),
    OPTION(IPPROTO_TCP, TCP_KEEPINTVL, NUMBER, 77),
    OPTION(IPPROTO_TCP, TCP_KEEPCNT, NUMBER, 77),
    OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT, NUMBER, 77000),
    OPTION(IPPROTO_TCP, TCP_QUICKACK, SWITCH, 0),
    OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT, NUMBER, 0),
    OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT, NUMBER, 77000),
    OPTION(IPPROTO_TCP, TCP_CONGESTION, NAME, 0),
    OPTION(IPPROTO_TCP, TCP_MAXSEG, NUMBER, 1000),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN, NUMBER, 77),
    OPTION(IPPROTO_TCP, TCP_INFO, INFO, 0),
    OPTION(IPPROTO_IP, IP_TOS, NUMBER, 0x28),
    OPTION(IPPROTO_IPV6, IPV6_TCLASS, NUMBER, 0x28),
    OPTION(IPPROTO_IPV6, IPV6_V6ONLY, SWITCH, 1),
};

static const int count_of_options = sizeof options / sizeof *options;

static const socklen_t size_of_kind[] = {
    [SWITCH] = sizeof(int),          [NUMBER] = sizeof(int), [LINGER] = sizeof(struct linger),
    [TIME] = sizeof(struct timeval), [NAME] = 16,            [INFO] = 232,
    [LONG] = sizeof(long),
};

/* Options that split sockets do not have, of those that programs set on TCP sockets. */
static const struct option refused[] = {
    OPTION(SOL_SOCKET, SO_TIMESTAMP, SWITCH, 0),
    OPTION(SOL_SOCKET, SO_TIMESTAMPNS, SWITCH, 0),
    OPTION(SOL_SOCKET, SO_TIMESTAMPING, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_BINDTODEVICE, NAME, 0),
    OPTION(SOL_SOCKET, SO_MARK, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_INCOMING_CPU, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_PEEK_OFF, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_BUSY_POLL, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_MAX_PACING_RATE, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_ZEROCOPY, SWITCH, 0),
    OPTION(SOL_SOCKET, SO_ATTACH_FILTER, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_SNDLOWAT, NUMBER, 0),
    OPTION(SOL_SOCKET, SO_BROADCAST, SWITCH, 0),
    OPTION(SOL_SOCKET, SO_DONTROUTE, SWITCH, 0),
    OPTION(SOL_SOCKET, SO_DEBUG, SWITCH, 0),
    OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP, NUMBER, 0),
    OPTION(IPPROTO_TCP, TCP_SYNCNT, NUMBER, 0),
    OPTION(IPPROTO_TCP, TCP_LINGER2, NUMBER, 0),
    OPTION(IPPROTO_TCP, TCP_MD5SIG, NUMBER, 0),
    OPTION(IPPROTO_TCP, TCP_ULP, NAME, 0),
    OPTION(IPPROTO_TCP, TCP_FASTOPEN_CONNECT, SWITCH, 0),
    OPTION(IPPROTO_TCP, TCP_SAVE_SYN, SWITCH, 0),
    OPTION(IPPROTO_TCP, TCP_INQ, SWITCH, 0),
    OPTION(IPPROTO_IP, IP_FREEBIND, SWITCH, 0),
    OPTION(IPPROTO_IP, IP_TRANSPARENT, SWITCH, 0),
    OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, SWITCH, 0),
    OPTION(IPPROTO_IP, IP_TTL, NUMBER, 0),
    OPTION(IPPROTO_IP, IP_MTU_DISCOVER, NUMBER, 0),
    OPTION(IPPROTO_IP, IP_RECVERR, SWITCH, 0),
    OPTION(IPPROTO_IPV6, IPV6_RECVPKTINFO, SWITCH, 0),
    OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS, NUMBER, 0),
    OPTION(IPPROTO_IPV6, IPV6_MTU_DISCOVER, NUMBER, 0),
};
static const int count_of_refused = sizeof refused / sizeof *refused;

static void say_value(const struct option *option, const unsigned char *bytes, socklen_t len)
{
    printf(" (%d) =", (int)len);
    if (option->kind == INFO) {
        /* The state. */
        printf(len > 0 ? " %d" : "", bytes[0]);
    } else if (option->kind == NAME) {
        printf(" %.*s", (int)len, bytes);
    } else if (option->kind == TIME && len == sizeof(struct timeval)) {
        struct timeval time;
        memcpy(&time, bytes, sizeof time);
        printf(" %ld.%06ld", (long)time.tv_sec, (long)time.tv_usec);
    } else if (len % sizeof(int) == 0) {
        for (socklen_t from = 0; from < len; from += sizeof(int)) {
            int number;
            memcpy(&number, bytes + from, sizeof number);
            printf(" %d", number);
        }
    } else {
        for (socklen_t from = 0; from < len; from++)
            printf(" %02x", bytes[from]);
    }
}

static void get(const char *what, int fd, const struct option *option, socklen_t len)
{
    unsigned char bytes[512] = {0};
    socklen_t got = len;
    int result = on.getsockopt(fd, option->level, option->number, bytes, &got);
    printf("%s: %s", what, name_of(result < 0 ? errno : 0));
    if (result == 0)
        say_value(option, bytes, got);
    printf("\n");
}

static void get_all(int fd, const struct option *option)
{
    /* The one of a new socket is the host's choice. */
    if (option->kind == NAME)
        on.setsockopt(fd, option->level, option->number, "reno", 4);
    socklen_t size = size_of_kind[option->kind], len;
    char what[40];
    get("get", fd, option, size);
    const socklen_t lens[] = {0, 1, size - 1, size + 1};
    for (int at = 0; at < 4; at++) {
        /* More of TCP_INFO is there on newer kernels. */
        if (option->kind == INFO && lens[at] > size)
            continue;
        snprintf(what, sizeof what, "get of length %d", (int)lens[at]);
        get(what, fd, option, lens[at]);
    }
    get("get of illegal length -1", fd, option, -1);
    len = size;
    say("get to illegal address", on.getsockopt(fd, option->level, option->number, NULL, &len));
    len = 0;
    say("get of nothing to illegal address",
        on.getsockopt(fd, option->level, option->number, NULL, &len));
    char bytes[256];
    say("get with illegal address of length",
        on.getsockopt(fd, option->level, option->number, bytes, NULL));
    for (int at = 0; at < ILLEGALS; at++) {
        len = size;
        say("get to illegal address",
            on.getsockopt(fd, option->level, option->number, illegal(at), &len));
        say("get with illegal address of length",
            on.getsockopt(fd, option->level, option->number, bytes, illegal(at)));
    }
}

static void set(int fd, const struct option *option, const char *what, const void *value,
                socklen_t len)
{
    char line[60];
    snprintf(line, sizeof line, "set %s", what);
    say(line, on.setsockopt(fd, option->level, option->number, value, len));
    /* An error that waits is not to be taken. */
    get("then", fd, option, size_of_kind[option->kind]);
}

static void set_number(int fd, const struct option *option, int value)
{
    char what[30];
    snprintf(what, sizeof what, "%d", value);
    set(fd, option, what, &value, sizeof value);
}

static void set_linger(int fd, const struct option *option, int onoff, int seconds)
{
    struct linger value = {onoff, seconds};
    char what[40];
    snprintf(what, sizeof what, "%d %d", onoff, seconds);
    set(fd, option, what, &value, sizeof value);
}

static void set_time(int fd, const struct option *option, time_t seconds, suseconds_t us)
{
    struct timeval value = {seconds, us};
    char what[60];
    snprintf(what, sizeof what, "%ld s %ld us", (long)seconds, (long)us);
    set(fd, option, what, &value, sizeof value);
}

static void set_name(int fd, const struct option *option, const char *name)
{
    set(fd, option, name, name, strlen(name));
}

static void set_legal(int fd, const struct option *option)
{
    static const int numbers[] = {1,     0,     2,     3,       -1,       5,        127,    128,
                                  255,   256,   1000,  4096,    32767,    32768,    65535,  65536,
                                  70000, 90000, 1 << 20, INT_MAX, INT_MIN, 30, 1};
    switch (option->kind) {
    case SWITCH:
    case NUMBER:
    case INFO:
    case LONG:
        for (unsigned at = 0; at < sizeof numbers / sizeof *numbers; at++)
            set_number(fd, option, numbers[at]);
        break;
    case LINGER:
        set_linger(fd, option, 1, 5);
        set_linger(fd, option, 0, 7);
        set_linger(fd, option, 0, 0);
        set_linger(fd, option, -3, 70000);
        set_linger(fd, option, 1, 0);
        break;
    case TIME:
        set_time(fd, option, 3, 0);
        set_time(fd, option, 0, 500000);
        set_time(fd, option, 0, 1000000);
        set_time(fd, option, 0, -1);
        set_time(fd, option, 60, 0);
        set_time(fd, option, -1, 0);
        set_time(fd, option, 1, 999999999);
        set_time(fd, option, 0, 0);
        break;
    case NAME:
        set_name(fd, option, "reno");
        set_name(fd, option, "bbr");
        set_name(fd, option, "cubic");
        set_name(fd, option, "Reno");
        set_name(fd, option, "nothing");
        set_name(fd, option, "a name that is longer than any");
        set(fd, option, "reno with a zero", "reno\0 and more", 13);
        break;
    }
}

static void set_illegal(int fd, const struct option *option)
{
    static const char bytes[64];
    socklen_t size = size_of_kind[option->kind];
    const socklen_t lens[] = {0, 1, 3, size - 1, size + 1};
    char what[40];
    for (int at = 0; at < 5; at++) {
        snprintf(what, sizeof what, "of illegal length %d", (int)lens[at]);
        set(fd, option, what, bytes, lens[at]);
    }
    set(fd, option, "of illegal length -1", bytes, -1);
    set(fd, option, "from illegal address", NULL, size);
    for (int at = 0; at < ILLEGALS; at++)
        set(fd, option, "from illegal address", illegal(at), size);
    set(fd, option, "nothing from illegal address", NULL, 0);
}

/* What a listener has is in its connections. */
static void inherit(int family, const struct option *option)
{
    struct made made = {.listener = listener_of(family)};
    int number = option->inherited;
    struct linger linger = {1, number};
    struct timeval time = {number, 0};
    const void *value = option->kind == LINGER ? (void *)&linger
                        : option->kind == TIME ? (void *)&time
                        : option->kind == NAME ? (void *)"bbr"
                                               : (void *)&number;
    socklen_t len = option->kind == NAME ? 3 : size_of_kind[option->kind];
    if (option->kind == INFO)
        len = sizeof number;
    say("set of a listener",
        on.setsockopt(made.listener, option->level, option->number, value, len));
    connect_both(&made, family);
    get("then", made.peer, option, size_of_kind[option->kind]);
    undo(made);
}

static void check_option(const struct option *option)
{
    printf("== %s\n", option->name);
    for (int family = 0; family < 2; family++) {
        int is_six = family == 1;
        if (is_six && option->level == IPPROTO_TCP)
            continue;
        for (enum state state = 0; state < STATES; state++) {
            struct made made = make(is_six ? AF_INET6 : AF_INET, state);
            printf("-- %s, %s\n", is_six ? "IPv6" : "IPv4", state_names[state]);
            get_all(made.fd, option);
            set_legal(made.fd, option);
            set_illegal(made.fd, option);
            undo(made);
        }
        printf("-- %s, inherited\n", is_six ? "IPv6" : "IPv4");
        inherit(is_six ? AF_INET6 : AF_INET, option);
    }
    int file = open("/dev/null", O_RDWR | O_CLOEXEC);
    printf("-- no socket\n");
    get("get", -1, option, size_of_kind[option->kind]);
    get("get", 1000, option, size_of_kind[option->kind]);
    get("get", file, option, size_of_kind[option->kind]);
    static const char value[256];
    set(-1, option, "-1", value, size_of_kind[option->kind]);
    set(1000, option, "1000", value, size_of_kind[option->kind]);
    set(file, option, "a file", value, size_of_kind[option->kind]);
    close(file);
}

/* One that split sockets do not have, in a few states. */
static void check_refused(const struct option *option)
{
    static const enum state states[] = {BOUND, LISTENING, CONNECTED};
    static const char bytes[16];
    printf("== %s\n", option->name);
    for (unsigned state = 0; state < sizeof states / sizeof *states; state++) {
        struct made made = make(AF_INET6, states[state]);
        printf("-- IPv6, %s\n", state_names[states[state]]);
        char got[16];
        socklen_t len = sizeof got;
        say("get", on.getsockopt(made.fd, option->level, option->number, got, &len));
        say("set", on.setsockopt(made.fd, option->level, option->number, bytes,
                                 size_of_kind[option->kind]));
        undo(made);
    }
}

/* Every other number of an option, in a few states: only the split stack refuses all of them. */
static void check_others(void)
{
    static const struct {
        int level, numbers;
    } levels[] = {{SOL_SOCKET, 128}, {IPPROTO_TCP, 64}, {IPPROTO_IP, 64}, {IPPROTO_IPV6, 96},
                  {IPPROTO_UDP, 8},  {77, 8}};
    static const enum state states[] = {NEW, LISTENING, CONNECTED};
    printf("== all others\n");
    for (unsigned state = 0; state < sizeof states / sizeof *states; state++) {
        struct made made = make(AF_INET6, states[state]);
        for (unsigned at = 0; at < sizeof levels / sizeof *levels; at++) {
            for (int number = 0; number < levels[at].numbers; number++) {
                struct option option = {"", levels[at].level, number, INFO, 0};
                int is_known = 0;
                for (int known = 0; known < count_of_options; known++)
                    is_known |= options[known].level == option.level
                                && options[known].number == number;
                for (int known = 0; known < count_of_refused; known++)
                    is_known |= refused[known].level == option.level
                                && refused[known].number == number;
                if (is_known)
                    continue;
                char line[60], bytes[232] = {1};
                socklen_t len = sizeof bytes;
                snprintf(line, sizeof line, "get %d %d", option.level, number);
                say(line, on.getsockopt(made.fd, option.level, number, bytes, &len));
                if (!on.is_kernel) {
                    snprintf(line, sizeof line, "set %d %d", option.level, number);
                    say(line, on.setsockopt(made.fd, option.level, number, bytes, sizeof bytes));
                }
            }
        }
        undo(made);
    }
}

/* Calls. */

static int signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

/* What a call returned that may raise SIGPIPE. */
static void say_signalled(const char *what, long result)
{
    int error = errno;
    printf("%s", signals ? "SIGPIPE, " : "");
    signals = 0;
    errno = error;
    say(what, result);
}

/* Runs a check on a socket in each state. */
static void in_each_state(void check(int fd))
{
    for (int family = 0; family < 2; family++) {
        for (enum state state = 0; state < STATES; state++) {
            struct made made = make(family ? AF_INET6 : AF_INET, state);
            printf("-- %s, %s\n", family ? "IPv6" : "IPv4", state_names[state]);
            on_fcntl(made.fd, F_SETFL, O_RDWR | O_NONBLOCK);
            check(made.fd);
            undo(made);
        }
    }
}

/* Runs a check on what is no socket. */
static void on_no_socket(void check(int fd))
{
    int file = open("/dev/null", O_RDWR | O_CLOEXEC), closed = dup(file);
    close(closed);
    printf("-- -1\n");
    check(-1);
    printf("-- closed\n");
    check(closed);
    printf("-- a file\n");
    check(file);
    close(file);
}

static void say_socket(int domain, int kind, int protocol)
{
    char what[60];
    snprintf(what, sizeof what, "%d %x %d", domain, kind, protocol);
    int fd = on.socket(domain, kind, protocol);
    say(what, fd < 0 ? fd : 0);
    if (fd < 0)
        return;
    printf("  nonblocking %d\n", on_fcntl(fd, F_GETFL, 0) & O_NONBLOCK ? 1 : 0);
    printf("  close on exec %d\n", on_fcntl(fd, F_GETFD, 0));
    on.close(fd);
}

static void check_socket(void)
{
    static const int domains[] = {AF_INET, AF_INET6, 99, -1};
    static const int kinds[] = {SOCK_STREAM,
                                SOCK_STREAM | SOCK_NONBLOCK,
                                SOCK_STREAM | SOCK_CLOEXEC,
                                SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC,
                                SOCK_STREAM | 0x10000,
                                SOCK_SEQPACKET,
                                0,
                                9,
                                15,
                                -1};
    static const int protocols[] = {0, IPPROTO_TCP, IPPROTO_UDP, 255, 300, -1};
    for (int domain = 0; domain < 4; domain++)
        for (int kind = 0; kind < 10; kind++)
            for (int protocol = 0; protocol < 6; protocol++)
                say_socket(domains[domain], kinds[kind], protocols[protocol]);
}

/* Addresses that a call takes or refuses. */
static void with_addresses(const char *name, int fd,
                           int call(int, const struct sockaddr *, socklen_t))
{
    static const socklen_t lens[] = {0, 1, 2, 8, 15, 23, 24, 27, 129, -1};
    struct sockaddr_storage storage[2];
    char what[60];
    for (int family = 0; family < 2; family++) {
        socklen_t len;
        storage[0] = loopback(family ? AF_INET6 : AF_INET, 0, &len);
        for (unsigned at = 0; at < sizeof lens / sizeof *lens; at++) {
            /* No address that could be the right one. */
            if (lens[at] >= len && lens[at] < 129)
                continue;
            snprintf(what, sizeof what, "%s of length %d", name, (int)lens[at]);
            say(what, call(fd, (struct sockaddr *)storage, lens[at]));
        }
        say("illegal address", call(fd, NULL, len));
        storage[0].ss_family = 99;
        say("of no family", call(fd, (struct sockaddr *)storage, len));
    }
    say("no address", call(fd, NULL, 0));
}

static void bind_states(int fd)
{
    with_addresses("bind", fd, on.bind);
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(40000)};
    four.sin_addr.s_addr = htonl(0xc0000201);
    say("bind elsewhere", on.bind(fd, (struct sockaddr *)&four, sizeof four));
    four.sin_family = AF_UNSPEC;
    say("bind to none", on.bind(fd, (struct sockaddr *)&four, sizeof four));
    four.sin_family = AF_INET;
    four.sin_port = 0;
    four.sin_addr.s_addr = 0;
    say("bind", on.bind(fd, (struct sockaddr *)&four, sizeof four));
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    say("bind", on.bind(fd, (struct sockaddr *)&six, sizeof six));
}

static void bind_used(void)
{
    static const char *const names[] = {"neither", "first", "second", "both"};
    for (int option = 0; option < 2; option++) {
        for (int which = 0; which < 4; which++) {
            for (int listens = 0; listens < 2; listens++) {
                int first = socket_of(AF_INET), second = socket_of(AF_INET), one = 1;
                int name = option ? SO_REUSEPORT : SO_REUSEADDR;
                if (which & 1)
                    on.setsockopt(first, SOL_SOCKET, name, &one, sizeof one);
                if (which & 2)
                    on.setsockopt(second, SOL_SOCKET, name, &one, sizeof one);
                printf("-- %s has %s, %s\n", names[which],
                       option ? "SO_REUSEPORT" : "SO_REUSEADDR", listens ? "listens" : "bound");
                say("bind", bind_to(first, 0));
                if (listens)
                    say("listen", on.listen(first, 1));
                say("bind", bind_to(second, port_of(first)));
                say("listen", on.listen(second, 1));
                on.close(first);
                on.close(second);
            }
        }
    }
}

static void check_bind(void)
{
    in_each_state(bind_states);
    on_no_socket(bind_states);
    bind_used();
}

static void listen_states(int fd)
{
    say("listen", on.listen(fd, -1));
    say("listen", on.listen(fd, 0));
    say("listen", on.listen(fd, 1));
}

static void check_listen(void)
{
    in_each_state(listen_states);
    on_no_socket(listen_states);
}

/* Connects; what is begun is over before it returns, as it is on the kernel's loopback. */
static int connect_to_the_end(int fd, const struct sockaddr *to, socklen_t len)
{
    int result = on.connect(fd, to, len), error = errno;
    if (result < 0 && error == EINPROGRESS)
        wait_for(fd, POLLOUT);
    errno = error;
    return result;
}

static void connect_states(int fd)
{
    struct sockaddr_in four = at(9);
    with_addresses("connect", fd, connect_to_the_end);
    four.sin_addr.s_addr = htonl(0xe0000001);
    say("connect to a group", on.connect(fd, (struct sockaddr *)&four, sizeof four));
    four.sin_addr.s_addr = 0xffffffff;
    say("connect to all", on.connect(fd, (struct sockaddr *)&four, sizeof four));
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(9)};
    six.sin6_addr.s6_addr[0] = 0xff;
    six.sin6_addr.s6_addr[1] = 0x0e;
    six.sin6_addr.s6_addr[15] = 1;
    say("connect to a group", on.connect(fd, (struct sockaddr *)&six, sizeof six));
}

static void check_connect(void)
{
    in_each_state(connect_states);
    on_no_socket(connect_states);
    int fd = new_socket(0);
    say("connect to port 0", connect_to(fd, 0));
    say("connect to a closed port", connect_to(fd, closed_port()));
    on.close(fd);
}

static int with_flags;

static int accept_of(int fd, struct sockaddr *at, socklen_t *len)
{
    if (!with_flags)
        return on.accept(fd, at, len);
    return on.accept4(fd, at, len, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

/* A call that writes an address where there is room for `len` bytes. */
static void write_address(const char *name, int fd,
                          int call(int, struct sockaddr *, socklen_t *), socklen_t len)
{
    char what[60];
    struct sockaddr_storage found = {0};
    snprintf(what, sizeof what, "%s of length %d", name, (int)len);
    int result = call(fd, (struct sockaddr *)&found, &len);
    say(what, result < 0 ? result : 0);
    if (result >= 0) {
        int port = ntohs(((struct sockaddr_in *)&found)->sin_port);
        printf("  (%d) family %d port %s\n", (int)len, found.ss_family, port ? "some" : "0");
    }
    if (result > 0) {
        printf("  nonblocking %d\n", on_fcntl(result, F_GETFL, 0) & O_NONBLOCK ? 1 : 0);
        printf("  close on exec %d\n", on_fcntl(result, F_GETFD, 0));
        on.close(result);
    }
}

static const socklen_t rooms[] = {0, 1, 4, 16, 28, 128, -1};

static void write_addresses(const char *name, int fd,
                            int call(int, struct sockaddr *, socklen_t *))
{
    for (unsigned at = 0; at < sizeof rooms / sizeof *rooms; at++)
        write_address(name, fd, call, rooms[at]);
}

static void check_accept_of(int flags)
{
    with_flags = flags;
    for (int family = 0; family < 2; family++) {
        int all = family ? AF_INET6 : AF_INET, listener = listener_of(all);
        printf("-- %s\n", family ? "IPv6" : "IPv4");
        if (flags)
            say("illegal flags", on.accept4(listener, NULL, NULL, 0x10000));
        for (unsigned at = 0; at < sizeof rooms / sizeof *rooms; at++) {
            int client = socket_of(all);
            connect_in(client, all, any_port_of(listener));
            write_address("accept", listener, accept_of, rooms[at]);
            on.close(client);
        }
        on.close(listener);
    }
}

static void accept_states(int fd)
{
    struct sockaddr_storage found;
    socklen_t len = sizeof found;
    say("accept", accept_of(fd, NULL, NULL));
    say("accept", accept_of(fd, (struct sockaddr *)&found, &len));
    say("accept to illegal length", accept_of(fd, (struct sockaddr *)&found, NULL));
}

static void check_accept(void)
{
    check_accept_of(0);
    in_each_state(accept_states);
    on_no_socket(accept_states);
}

static void check_accept4(void)
{
    check_accept_of(1);
    in_each_state(accept_states);
    on_no_socket(accept_states);
}

static void shutdown_states(int fd)
{
    say("shutdown", on.shutdown(fd, -1));
    say("shutdown", on.shutdown(fd, 3));
    say("shutdown for writing", on.shutdown(fd, SHUT_WR));
    struct pollfd entry = {.fd = fd, .events = POLLRDHUP};
    on.poll(&entry, 1, 0);
    if (entry.revents & POLLRDHUP)
        await_close(fd);
    say("shutdown for writing", on.shutdown(fd, SHUT_WR));
    say("shutdown for reading", on.shutdown(fd, SHUT_RD));
    say("shutdown for both", on.shutdown(fd, SHUT_RDWR));
}

static void check_shutdown(void)
{
    in_each_state(shutdown_states);
    on_no_socket(shutdown_states);
}

static void getsockname_states(int fd)
{
    write_addresses("getsockname", fd, on.getsockname);
    socklen_t len = 16;
    say("illegal address", on.getsockname(fd, NULL, &len));
    len = 0;
    say("illegal address of length 0", on.getsockname(fd, NULL, &len));
    struct sockaddr_storage found;
    say("illegal length", on.getsockname(fd, (struct sockaddr *)&found, NULL));
}

static void check_getsockname(void)
{
    in_each_state(getsockname_states);
    on_no_socket(getsockname_states);
}

static void getpeername_states(int fd)
{
    write_addresses("getpeername", fd, on.getpeername);
    socklen_t len = 16;
    say("illegal address", on.getpeername(fd, NULL, &len));
    len = 0;
    say("illegal address of length 0", on.getpeername(fd, NULL, &len));
    struct sockaddr_storage found;
    say("illegal length", on.getpeername(fd, (struct sockaddr *)&found, NULL));
}

static void check_getpeername(void)
{
    in_each_state(getpeername_states);
    on_no_socket(getpeername_states);
}

/* The four calls that send. */
static struct iovec pieces[2000];

static void vectors(ssize_t call(int, const struct iovec *, int), int fd)
{
    char bytes[8] = "bytes";
    for (int at = 0; at < 2000; at++)
        pieces[at] = (struct iovec){bytes, 0};
    say_signalled("none", call(fd, pieces, 0));
    say_signalled("less than none", call(fd, pieces, -1));
    say_signalled("too many", call(fd, pieces, 1025));
    say_signalled("1024 of nothing", call(fd, pieces, 1024));
    say_signalled("no vectors", call(fd, NULL, 0));
    say_signalled("illegal vectors", call(fd, NULL, 1));
    for (int at = 0; at < ILLEGALS; at++)
        say_signalled("illegal vectors", call(fd, illegal(at), 1));
    pieces[0].iov_len = 3;
    pieces[2].iov_len = 2;
    say_signalled("some", call(fd, pieces, 3));
    pieces[0] = (struct iovec){NULL, 1};
    say_signalled("illegal bytes", call(fd, pieces, 1));
    pieces[0] = (struct iovec){bytes, (size_t)-1};
    say_signalled("illegal length", call(fd, pieces, 1));
}

static void send_states(int fd)
{
    say_signalled("nothing", on.send(fd, "", 0, 0));
    say_signalled("nothing from illegal address", on.send(fd, NULL, 0, 0));
    say_signalled("illegal address", on.send(fd, NULL, 1, 0));
    say_signalled("illegal address", on.send(fd, illegal(0), 1, 0));
    say_signalled("bytes", on.send(fd, "bytes", 5, 0));
    say_signalled("bytes, no signal", on.send(fd, "bytes", 5, MSG_NOSIGNAL));
    say_signalled("bytes, and more", on.send(fd, "bytes", 5, MSG_NOSIGNAL | MSG_MORE));
}

static void sendto_states(int fd)
{
    struct sockaddr_in to = at(9);
    say_signalled("to none", on.sendto(fd, "bytes", 5, MSG_NOSIGNAL, NULL, 0));
    say_signalled("to an address",
                  on.sendto(fd, "bytes", 5, MSG_NOSIGNAL, (struct sockaddr *)&to, sizeof to));
    say_signalled("to an illegal address", on.sendto(fd, "bytes", 5, MSG_NOSIGNAL, NULL, 16));
    say_signalled("to an illegal length",
                  on.sendto(fd, "bytes", 5, MSG_NOSIGNAL, (struct sockaddr *)&to, -1));
    say_signalled("to a length", on.sendto(fd, "bytes", 5, 0, (struct sockaddr *)&to, 129));
}

static ssize_t sendmsg_vectors(int fd, const struct iovec *vectors, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)vectors, .msg_iovlen = count};
    return on.sendmsg(fd, &message, 0);
}

static void sendmsg_states(int fd)
{
    struct sockaddr_in to = at(9);
    struct iovec piece = {"bytes", 5};
    struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = &piece,
                             .msg_iovlen = 1};
    vectors(sendmsg_vectors, fd);
    say_signalled("to an address", on.sendmsg(fd, &message, MSG_NOSIGNAL));
    say_signalled("no message", on.sendmsg(fd, NULL, MSG_NOSIGNAL));
    for (int at = 0; at < ILLEGALS; at++)
        say_signalled("illegal message", on.sendmsg(fd, illegal(at), MSG_NOSIGNAL));
}

static void write_states(int fd)
{
    say_signalled("nothing", on.write(fd, "", 0));
    say_signalled("illegal address", on.write(fd, NULL, 1));
    say_signalled("bytes", on.write(fd, "bytes", 5));
}

static void writev_states(int fd)
{
    vectors(on.writev, fd);
}

static void recv_states(int fd)
{
    char bytes[8];
    say("nothing", on.recv(fd, bytes, 0, 0));
    say("nothing to illegal address", on.recv(fd, NULL, 0, 0));
    say("nothing, peek", on.recv(fd, bytes, 0, MSG_PEEK));
    say("peek", on.recv(fd, bytes, 1, MSG_PEEK));
    say("bytes", on.recv(fd, bytes, 8, 0));
    say("bytes", on.recv(fd, bytes, 8, MSG_WAITALL | MSG_DONTWAIT));
    say("thrown away", on.recv(fd, NULL, 8, MSG_TRUNC));
}

static void recvfrom_states(int fd)
{
    char bytes[8];
    struct sockaddr_storage from;
    socklen_t len = sizeof from;
    say("bytes", on.recvfrom(fd, bytes, 8, 0, NULL, NULL));
    say("bytes", on.recvfrom(fd, bytes, 8, 0, (struct sockaddr *)&from, &len));
    printf("  length %d\n", (int)len);
    say("illegal address of length", on.recvfrom(fd, bytes, 8, 0, (struct sockaddr *)&from, NULL));
}

static ssize_t recvmsg_vectors(int fd, const struct iovec *vectors, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)vectors, .msg_iovlen = count};
    return on.recvmsg(fd, &message, 0);
}

static void recvmsg_states(int fd)
{
    char bytes[8], control[64];
    struct sockaddr_storage from;
    struct iovec piece = {bytes, sizeof bytes};
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &piece,
                             .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control, .msg_flags = 77};
    vectors(recvmsg_vectors, fd);
    say("bytes", on.recvmsg(fd, &message, 0));
    printf("  name %d control %d flags %x\n", (int)message.msg_namelen,
           (int)message.msg_controllen, message.msg_flags);
    say("no message", on.recvmsg(fd, NULL, 0));
    for (int at = 0; at < ILLEGALS; at++)
        say("illegal message", on.recvmsg(fd, illegal(at), 0));
}

static void read_states(int fd)
{
    char bytes[8];
    say("nothing", on.read(fd, bytes, 0));
    say("nothing to illegal address", on.read(fd, NULL, 0));
    say("bytes", on.read(fd, bytes, 8));
}

static void readv_states(int fd)
{
    vectors(on.readv, fd);
}

/* Runs a check of receiving: with nothing to receive, and on a connection with bytes. */
static void check_receiving(void check(int fd))
{
    in_each_state(check);
    on_no_socket(check);
    struct made made = make(AF_INET, CONNECTED);
    on_fcntl(made.fd, F_SETFL, O_RDWR | O_NONBLOCK);
    on.send(made.peer, "some bytes to be received, more than a call takes", 49, 0);
    int there = 0;
    while (there < 49)
        on_ioctl(made.fd, FIONREAD, &there);
    printf("-- with bytes\n");
    check(made.fd);
    undo(made);
}

static void check_sending(void check(int fd))
{
    in_each_state(check);
    on_no_socket(check);
    struct made made = make(AF_INET, CONNECTED);
    printf("-- shut down\n");
    on.shutdown(made.fd, SHUT_WR);
    check(made.fd);
    undo(made);
}

static void check_send(void) { check_sending(send_states); }
static void check_sendto(void) { check_sending(sendto_states); }
static void check_sendmsg(void) { check_sending(sendmsg_states); }
static void check_write(void) { check_sending(write_states); }
static void check_writev(void) { check_sending(writev_states); }
static void check_recv(void) { check_receiving(recv_states); }
static void check_recvfrom(void) { check_receiving(recvfrom_states); }
static void check_recvmsg(void) { check_receiving(recvmsg_states); }
static void check_read(void) { check_receiving(read_states); }
static void check_readv(void) { check_receiving(readv_states); }

static void sendfile_states(int fd)
{
    char path[] = "/tmp/optionsXXXXXX";
    int file = mkstemp(path), pipes[2];
    off_t from = 0;
    if (file < 0 || write(file, "0123456789", 10) != 10 || pipe(pipes) < 0)
        die(path);
    int writes = open(path, O_WRONLY), folder = open("/", O_RDONLY | O_DIRECTORY);
    unlink(path);
    say_signalled("4 from the start", on.sendfile(fd, file, &from, 4));
    printf("  at %ld\n", (long)from);
    from = 8;
    say_signalled("to the end", on.sendfile(fd, file, &from, 4));
    printf("  at %ld\n", (long)from);
    from = 10;
    say_signalled("at the end", on.sendfile(fd, file, &from, 4));
    from = 100;
    say_signalled("behind the end", on.sendfile(fd, file, &from, 4));
    printf("  at %ld\n", (long)from);
    from = -1;
    say_signalled("before the start", on.sendfile(fd, file, &from, 4));
    from = LONG_MAX;
    say_signalled("at no place", on.sendfile(fd, file, &from, 4));
    from = 0;
    say_signalled("nothing", on.sendfile(fd, file, &from, 0));
    lseek(file, 2, SEEK_SET);
    say_signalled("from its position", on.sendfile(fd, file, NULL, 4));
    printf("  at %ld\n", (long)lseek(file, 0, SEEK_CUR));
    say_signalled("from a file for writing", on.sendfile(fd, writes, &from, 4));
    say_signalled("from a folder", on.sendfile(fd, folder, &from, 4));
    say_signalled("from an empty pipe with a place", on.sendfile(fd, pipes[0], &from, 4));
    say_signalled("from what is not open", on.sendfile(fd, -1, &from, 4));
    say_signalled("from what is closed", on.sendfile(fd, 1000, &from, 4));
    close(file);
    close(writes);
    close(folder);
    close(pipes[0]);
    close(pipes[1]);
}

static void check_sendfile(void)
{
    in_each_state(sendfile_states);
    on_no_socket(sendfile_states);
}

static void fcntl_states(int fd)
{
    say("F_GETFL", on_fcntl(fd, F_GETFL, 0) & O_NONBLOCK);
    say("F_SETFL", on_fcntl(fd, F_SETFL, O_RDWR));
    say("F_GETFL", on_fcntl(fd, F_GETFL, 0) & O_NONBLOCK);
    say("F_SETFD", on_fcntl(fd, F_SETFD, 0));
    say("F_GETFD", on_fcntl(fd, F_GETFD, 0));
    say("F_DUPFD to no number", on_fcntl(fd, F_DUPFD, -1));
    say("F_DUPFD to a large number", on_fcntl(fd, F_DUPFD_CLOEXEC, INT_MAX));
    say("of no command", on_fcntl(fd, 99, 0));
    int copy = on_fcntl(fd, F_DUPFD_CLOEXEC, 500);
    say("F_DUPFD_CLOEXEC", copy);
    if (copy >= 0) {
        struct sockaddr_storage here;
        socklen_t len = sizeof here;
        say("F_GETFD", on_fcntl(copy, F_GETFD, 0));
        say("getsockname", on.getsockname(copy, (struct sockaddr *)&here, &len));
        say("close", on.close(copy));
        say("getsockname", on.getsockname(copy, (struct sockaddr *)&here, &len));
    }
}

static void check_fcntl(void)
{
    in_each_state(fcntl_states);
    on_no_socket(fcntl_states);
}

static void ioctl_states(int fd)
{
    int number = 1;
    say("FIONBIO", on_ioctl(fd, FIONBIO, &number));
    printf("  nonblocking %d\n", on_fcntl(fd, F_GETFL, 0) & O_NONBLOCK ? 1 : 0);
    say("FIOCLEX", on_ioctl(fd, FIOCLEX, NULL));
    say("FIONCLEX", on_ioctl(fd, FIONCLEX, NULL));
    number = -1;
    say("FIONREAD", on_ioctl(fd, FIONREAD, &number));
    printf("unread: %d\n", number);
    say("FIONREAD to illegal address", on_ioctl(fd, FIONREAD, NULL));
    number = -1;
    say("TIOCOUTQ", on_ioctl(fd, TIOCOUTQ, &number));
    printf("unsent: %d\n", number);
    say("TIOCOUTQ to illegal address", on_ioctl(fd, TIOCOUTQ, NULL));
    number = -1;
    say("SIOCOUTQNSD", on_ioctl(fd, SIOCOUTQNSD, &number));
    printf("not sent: %d\n", number);
    for (int at = 0; at < ILLEGALS; at++) {
        say("FIONREAD to illegal address", on_ioctl(fd, FIONREAD, illegal(at)));
        say("SIOCOUTQNSD to illegal address", on_ioctl(fd, SIOCOUTQNSD, illegal(at)));
    }
    say("of no request", on_ioctl(fd, 99, &number));
}

static void check_ioctl(void)
{
    in_each_state(ioctl_states);
    on_no_socket(ioctl_states);
}

static void close_states(int fd)
{
    int copy = on_fcntl(fd, F_DUPFD_CLOEXEC, 300);
    say("close", on.close(copy));
    say("close again", on.close(copy));
}

static void check_close(void)
{
    in_each_state(close_states);
    say("close -1", on.close(-1));
}

static void epoll_states(int fd)
{
    int set = on.epoll_create1(EPOLL_CLOEXEC), file = open("/proc/version", O_RDONLY);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP, .data.u64 = 7}, found[4];
    say("modify", on.epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    say("delete", on.epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    say("add illegal event", on.epoll_ctl(set, EPOLL_CTL_ADD, fd, NULL));
    for (int at = 0; at < ILLEGALS; at++)
        say("add illegal event", on.epoll_ctl(set, EPOLL_CTL_ADD, fd, illegal(at)));
    say("add", on.epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    say("add again", on.epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    int count = on.epoll_wait(set, found, 4, 0);
    say("wait", count);
    if (count == 1)
        printf("  %x %d\n", found[0].events, (int)found[0].data.u64);
    say("modify illegal event", on.epoll_ctl(set, EPOLL_CTL_MOD, fd, NULL));
    event.events = EPOLLIN | EPOLLEXCLUSIVE;
    say("modify exclusive", on.epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    event.events = 0;
    say("modify", on.epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    count = on.epoll_wait(set, found, 4, 0);
    say("wait", count);
    if (count == 1)
        printf("  %x\n", found[0].events);
    say("delete", on.epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
    say("add exclusive for one shot", on.epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    say("of no operation", on.epoll_ctl(set, 9, fd, &event));
    say("to no set", on.epoll_ctl(file, EPOLL_CTL_ADD, fd, &event));
    say("to a socket", on.epoll_ctl(fd, EPOLL_CTL_ADD, set, &event));
    say("to -1", on.epoll_ctl(-1, EPOLL_CTL_ADD, fd, &event));
    say("to itself", on.epoll_ctl(set, EPOLL_CTL_ADD, set, &event));
    say("a file", on.epoll_ctl(set, EPOLL_CTL_ADD, file, &event));
    say("wait for none", on.epoll_wait(set, found, 0, 0));
    say("wait for less", on.epoll_wait(set, found, -1, 0));
    say("wait at a socket", on.epoll_wait(fd, found, 1, 0));
    say("wait at a file", on.epoll_wait(file, found, 1, 0));
    say("close", on.close(set));
    close(file);
}

static void check_epoll(void)
{
    in_each_state(epoll_states);
    on_no_socket(epoll_states);
    say("illegal flags", on.epoll_create1(1));
}

static void poll_states(int fd)
{
    static const short events[] = {0, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, 0x7fff, -1};
    for (int at = 0; at < 7; at++) {
        struct pollfd entry = {.fd = fd, .events = events[at], .revents = 99};
        say("poll", on.poll(&entry, 1, 0));
        printf("  %x\n", entry.revents);
    }
}

static void check_poll(void)
{
    in_each_state(poll_states);
    on_no_socket(poll_states);
    say("none", on.poll(NULL, 0, 0));
    say("illegal address", on.poll(NULL, 1, 0));
    for (int at = 0; at < ILLEGALS; at++)
        say("illegal address", on.poll(illegal(at), 1, 0));
}

static const struct {
    const char *name;
    void (*check)(void);
} calls[] = {
    {"socket", check_socket},       {"bind", check_bind},
    {"listen", check_listen},       {"connect", check_connect},
    {"accept", check_accept},       {"accept4", check_accept4},
    {"shutdown", check_shutdown},   {"getsockname", check_getsockname},
    {"getpeername", check_getpeername}, {"close", check_close},
    {"send", check_send},           {"sendto", check_sendto},
    {"sendmsg", check_sendmsg},     {"write", check_write},
    {"writev", check_writev},       {"recv", check_recv},
    {"recvfrom", check_recvfrom},   {"recvmsg", check_recvmsg},
    {"read", check_read},           {"readv", check_readv},
    {"sendfile", check_sendfile},   {"fcntl", check_fcntl},
    {"ioctl", check_ioctl},         {"epoll_*", check_epoll},
    {"poll", check_poll},
};

/* Flags of calls that send and receive. */

static const struct flag {
    const char *name;
    int bit;
} flags[] = {
#define FLAG(name) {#name, name}
    FLAG(MSG_DONTWAIT), FLAG(MSG_NOSIGNAL), FLAG(MSG_MORE),    FLAG(MSG_PEEK),
    FLAG(MSG_WAITALL),  FLAG(MSG_TRUNC),    FLAG(MSG_CMSG_CLOEXEC), FLAG(MSG_OOB),
    FLAG(MSG_DONTROUTE), FLAG(MSG_CONFIRM), FLAG(MSG_EOR), FLAG(MSG_CTRUNC), FLAG(MSG_FASTOPEN),
    FLAG(MSG_ZEROCOPY), FLAG(MSG_ERRQUEUE),
};

static void check_flag(const struct flag *flag)
{
    char bytes[8];
    printf("== %s\n", flag->name);
    struct made made = make(AF_INET, CONNECTED);
    on_fcntl(made.fd, F_SETFL, O_RDWR | O_NONBLOCK);
    say_signalled("send", on.send(made.fd, "bytes", 5, flag->bit));
    say("recv of nothing", on.recv(made.fd, bytes, 8, flag->bit | MSG_DONTWAIT));
    on.send(made.peer, "bytes", 5, 0);
    wait_for(made.fd, POLLIN);
    say("recv", on.recv(made.fd, bytes, 3, flag->bit));
    int left = 0;
    on_ioctl(made.fd, FIONREAD, &left);
    printf("recv leaves: %d\n", left);
    on.shutdown(made.fd, SHUT_WR);
    say_signalled("send behind an end", on.send(made.fd, "bytes", 5, flag->bit));
    undo(made);
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 1;
    choose(strcmp(arguments[1], "kernel") == 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, count_signal);
    settle();
    for (int at = 0; at < count_of_options; at++)
        check_option(&options[at]);
    for (int at = 0; at < count_of_refused; at++)
        check_refused(&refused[at]);
    check_others();
    for (unsigned at = 0; at < sizeof calls / sizeof *calls; at++) {
        printf("== %s\n", calls[at].name);
        calls[at].check();
    }
    for (unsigned at = 0; at < sizeof flags / sizeof *flags; at++)
        check_flag(&flags[at]);
    return 0;
}
