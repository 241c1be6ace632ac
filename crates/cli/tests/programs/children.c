/*
 * Says what children do with the sockets of their parent, however they were made, a line for each:
 * with split sockets the same as with those of the kernel.
 */
#include "programs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <mqueue.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS 4
#define FORKS 200
#define FILES 20

extern char **environ;

static int listener(struct sockaddr_in *at)
{
    socklen_t len = sizeof *at;
    int fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
    *at = (struct sockaddr_in){.sin_family = AF_INET};
    at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(bind(fd, (struct sockaddr *)at, sizeof *at), "bind");
    check(listen(fd, 128), "listen");
    check(getsockname(fd, (struct sockaddr *)at, &len), "getsockname");
    return fd;
}

static void connect_by(int by, const struct sockaddr_in *at, int ends[2])
{
    ends[0] = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
    check(connect(ends[0], (const struct sockaddr *)at, sizeof *at), "connect");
    ends[1] = check(accept(by, NULL, NULL), "accept");
}

static int greet(void *to)
{
    return write(*(int *)to, "hello\n", 6) != 6;
}

static pid_t by_fork(int *to)
{
    pid_t child = fork();
    if (child == 0)
        _exit(greet(to));
    return child;
}

static pid_t by_vfork(int *to)
{
    pid_t child = vfork();
    if (child == 0)
        _exit(greet(to));
    return child;
}

static pid_t by_bare_fork(int *to)
{
    pid_t child = _Fork();
    if (child == 0)
        _exit(greet(to));
    return child;
}

static pid_t by_number(int *to)
{
    pid_t child = syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
    if (child == 0)
        _exit(greet(to));
    return child;
}

static pid_t by_clone(int *to)
{
    enum { STACK = 256 << 10 };
    char *stack = malloc(STACK);
    return clone(greet, stack + STACK, SIGCHLD, to);
}

static pid_t by_daemon(int *to)
{
    pid_t child = fork();
    if (child == 0)
        _exit(daemon(1, 1) < 0 || greet(to));
    return child;
}

static pid_t by_spawn(int *to)
{
    char *const arguments[] = {"echo", "hello", NULL};
    posix_spawn_file_actions_t actions;
    pid_t child = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, *to, 1);
    errno = posix_spawn(&child, "/bin/echo", &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    return child;
}

/* A child of each kind writes to a connection; its parent goes on with all that it has. */
static void children_write(void)
{
    static const struct {
        const char *name;
        pid_t (*make)(int *);
    } ways[] = {{"fork", by_fork},   {"vfork", by_vfork},   {"_Fork", by_bare_fork},
                {"number", by_number}, {"clone", by_clone}, {"daemon", by_daemon},
                {"posix_spawn", by_spawn}};
    struct sockaddr_in at;
    int by = listener(&at), ends[2];
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        char got[13] = "";
        int status = -1;
        connect_by(by, &at, ends);
        pid_t child = check(ways[way].make(&ends[1]), ways[way].name);
        check(waitpid(child, &status, 0), "waitpid");
        ssize_t first = recv(ends[0], got, 6, MSG_WAITALL);
        check(send(ends[1], "again\n", 6, MSG_NOSIGNAL), "send");
        ssize_t second = recv(ends[0], got + 6, 6, MSG_WAITALL);
        close(ends[1]);
        printf("%s: %d, %zd, %zd, end %zd: %s", ways[way].name, status, first, second,
               recv(ends[0], got, 1, 0), got);
        close(ends[0]);
    }
    close(by);
}

/*
 * The kernel copies descriptors before memory: a child may lack a socket that its memory knows, and
 * get the number for something else. mq_close(3) is close(2) within the C library, which no other
 * library notices.
 */
static void numbers_that_a_child_has_not(void)
{
    struct sockaddr_in at;
    int by = listener(&at), ends[2], other[2], status;
    connect_by(by, &at, ends);
    connect_by(by, &at, other);
    fflush(stdout);
    pid_t child = check(fork(), "fork");
    if (child == 0) {
        struct stat file;
        int fd = memfd_create("file", 0);
        mq_close(ends[1]);
        fd = fcntl(fd, F_DUPFD, ends[1]);
        printf("a file: the number %s, ", fd == ends[1] ? "of a socket" : "of none");
        printf("written %zd, ", write(fd, "content", 7));
        printf("has %d bytes, ", fstat(fd, &file) < 0 ? -1 : (int)file.st_size);
        printf("closed %d, ", close(fd));
        printf("and again %d\n", close(fd));
        fd = socket(AF_INET, SOCK_STREAM, 0);
        mq_close(other[1]);
        fd = fcntl(fd, F_DUPFD, other[1]);
        printf("a socket: the number %s, ", fd == other[1] ? "of another" : "of none");
        printf("connected %d\n", connect(fd, (struct sockaddr *)&at, sizeof at));
        printf("sent %zd\n", send(fd, "from the child", 14, MSG_NOSIGNAL));
        fflush(stdout);
        _exit(0);
    }
    check(waitpid(child, &status, 0), "waitpid");
    char got[20] = "";
    int third = check(accept(by, NULL, NULL), "accept");
    printf("received %zd bytes\n", recv(third, got, sizeof got, 0));
    for (int place = 0; place < 2; place++) {
        int *const pair = place ? other : ends;
        printf("others: %zd, ", recv(pair[0], got, 1, MSG_DONTWAIT));
        check(send(pair[1], "x", 1, MSG_NOSIGNAL), "send");
        printf("%zd\n", recv(pair[0], got, 1, 0));
        close(pair[0]);
        close(pair[1]);
    }
    close(third);
    close(by);
}

static struct sockaddr_in server;
static atomic_int is_over;
static atomic_long strange;

static void *serve(void *by)
{
    for (int fd; (fd = accept((int)(long)by, NULL, NULL)) >= 0;) {
        char bytes[64];
        for (ssize_t len; (len = recv(fd, bytes, sizeof bytes, 0)) > 0;)
            for (ssize_t place = 0; place < len; place++)
                strange += bytes[place] != 'x';
        close(fd);
    }
    return NULL;
}

static void *exchange(void *unused)
{
    while (!is_over) {
        int fd = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
        if (connect(fd, (struct sockaddr *)&server, sizeof server) == 0)
            send(fd, "xxxx", 4, MSG_NOSIGNAL);
        close(fd);
    }
    return unused;
}

/* Children of a program whose threads make and close sockets write to files of their own. */
static void children_of_threads(void)
{
    int by = listener(&server), lost = 0;
    pthread_t threads[THREADS], servers[2];
    for (int place = 0; place < 2; place++)
        pthread_create(&servers[place], NULL, serve, (void *)(long)by);
    for (int place = 0; place < THREADS; place++)
        pthread_create(&threads[place], NULL, exchange, NULL);
    for (int turn = 0; turn < FORKS; turn++) {
        int status = -1;
        pid_t child = check(fork(), "fork");
        if (child == 0) {
            int wrong = 0;
            for (int place = 0; place < FILES; place++) {
                struct stat file;
                int fd = memfd_create("file", 0);
                wrong += write(fd, "content", 7) != 7 || fstat(fd, &file) < 0 || file.st_size != 7;
            }
            _exit(wrong);
        }
        check(waitpid(child, &status, 0), "waitpid");
        lost += status != 0;
    }
    is_over = 1;
    for (int place = 0; place < THREADS; place++)
        pthread_join(threads[place], NULL);
    shutdown(by, SHUT_RDWR);
    for (int place = 0; place < 2; place++)
        pthread_join(servers[place], NULL);
    close(by);
    printf("%d of %d children lost bytes, %ld bytes went elsewhere\n", lost, FORKS, (long)strange);
}

int main(void)
{
    children_write();
    numbers_that_a_child_has_not();
    children_of_threads();
    return 0;
}
