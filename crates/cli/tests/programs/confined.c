/*
 * Says what sockets do in processes that give up rights before their first call on one: with split
 * sockets the same as with those of the kernel.
 */
#include "programs.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NO_ONE 65534

static int listener(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = stream();
    check(bind(fd, (struct sockaddr *)&at, sizeof at), "bind");
    check(listen(fd, 8), "listen");
    return fd;
}

static int connected_to(int by)
{
    struct sockaddr_in at = {0};
    socklen_t len = sizeof at;
    int fd = stream();
    check(getsockname(by, (struct sockaddr *)&at, &len), "getsockname");
    check(connect(fd, (struct sockaddr *)&at, sizeof at), "connect");
    return fd;
}

static void limit(int resource, rlim_t value)
{
    struct rlimit to = {value, value};
    check(setrlimit(resource, &to), "setrlimit");
}

/* An empty directory. */
static char place[] = "/tmp/confined-XXXXXX";

/* Another root directory, if this user may. */
static void leave_root(void)
{
    if (geteuid() == 0) {
        check(chroot(place), "chroot");
        check(chdir("/"), "chdir");
    }
}

static void become_no_one(void)
{
    if (geteuid() == 0) {
        check(setresgid(NO_ONE, NO_ONE, NO_ONE), "setresgid");
        check(setresuid(NO_ONE, NO_ONE, NO_ONE), "setresuid");
    }
}

#define ALLOW(call)                                                                                \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* Calls such as OpenSSH leaves to its process that speaks with the network. */
static void allow_few_calls(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(close), ALLOW(shutdown), ALLOW(ppoll), ALLOW(pselect6),
#ifdef SYS_poll
        ALLOW(poll), ALLOW(select),
#endif
        ALLOW(futex), ALLOW(clock_gettime), ALLOW(brk), ALLOW(mmap), ALLOW(mremap), ALLOW(munmap),
        ALLOW(madvise), ALLOW(getpid), ALLOW(gettid), ALLOW(getrandom),
        ALLOW(nanosleep), ALLOW(clock_nanosleep), ALLOW(exit), ALLOW(exit_group),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS");
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "PR_SET_SECCOMP");
}

/* As OpenSSH, step by step. */
static void confine(void)
{
    leave_root();
    become_no_one();
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_NOFILE, 1);
    limit(RLIMIT_NPROC, 0);
    allow_few_calls();
}

static void confine_calls(void)
{
    allow_few_calls();
}

static void confine_memory(void)
{
    limit(RLIMIT_AS, 64UL << 20);
}

/* Sends back what comes: waiting for it, and in calls that wait. */
static int echo(int fd)
{
    char bytes[4096];
    for (int turn = 0;; turn++) {
        struct pollfd polled = {.fd = fd, .events = POLLIN};
        if (turn % 2 == 0 && poll(&polled, 1, -1) != 1)
            return 2;
        ssize_t len = read(fd, bytes, sizeof bytes);
        if (len <= 0)
            return len < 0 ? 3 : 0;
        for (ssize_t sent = 0; sent < len;) {
            ssize_t done = write(fd, bytes + sent, len - sent);
            if (done < 0)
                return 4;
            sent += done;
        }
    }
}

static size_t exchanged(int fd, size_t count)
{
    size_t same = 0;
    char sent[4096], received[4096];
    for (size_t place = 0; place < sizeof sent; place++)
        sent[place] = place % 251;
    while (same < count) {
        size_t len = 0;
        check(write(fd, sent, sizeof sent), "write");
        while (len < sizeof sent) {
            ssize_t got = read(fd, received + len, sizeof sent - len);
            if (got <= 0)
                return same;
            len += got;
        }
        if (memcmp(sent, received, sizeof sent) != 0)
            return same;
        same += sizeof sent;
    }
    return same;
}

static void say_end(const char *what, pid_t child)
{
    int status = -1;
    check(waitpid(child, &status, 0), "waitpid");
    printf("%s: %s %d\n", what, WIFSIGNALED(status) ? "signal" : "exit code",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    fflush(stdout);
}

/* A child that has made no call serves a connection of its parent's. */
static void child_serves(const char *what, void (*give_up)(void))
{
    int by = listener(), to = connected_to(by), fd = check(accept(by, NULL, NULL), "accept");
    pid_t child = check(fork(), "fork");
    if (child == 0) {
        give_up();
        _exit(echo(fd));
    }
    close(fd);
    close(by);
    printf("%s: %zu bytes came back\n", what, exchanged(to, 100 << 10));
    shutdown(to, SHUT_WR);
    say_end(what, child);
    close(to);
}

/* The first socket of a program whose root is another by then. */
static void first_socket_after_chroot(void)
{
    pid_t child = check(fork(), "fork");
    if (child == 0) {
        leave_root();
        int by = listener(), to = connected_to(by), fd = check(accept(by, NULL, NULL), "accept");
        char byte;
        _exit(write(to, "x", 1) != 1 || read(fd, &byte, 1) != 1);
    }
    say_end("first socket after chroot", child);
}

int main(void)
{
    if (!mkdtemp(place))
        return 1;
    first_socket_after_chroot();
    child_serves("all rights", confine);
    child_serves("calls", confine_calls);
    child_serves("memory", confine_memory);
    child_serves("root", leave_root);
    child_serves("user", become_no_one);
    return rmdir(place);
}
