/* A server that sends back what it receives, line by line, and goes about it in a way of its own:
 *
 *   server WAY PORT
 *
 *   numbers       makes its calls by their numbers, with syscall(2)
 *   streams       reads and writes by streams of the C library
 *   close         closes all that it has not opened, one descriptor after the other
 *   close_range   the same in one call
 *   closefrom     the same from a descriptor on
 *   dup2          the same by putting others in their place
 *
 * It ends with its input. Each way checks that what it closes is closed, and no more than that.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
    do { if (!(condition)) errx(1, "line %d: %s", __LINE__, #condition); } while (0)

static int listener;

/* A descriptor of this number is of no socket any more. */
static void check_forgotten(int fd) {
    CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
    int ends[2];
    char byte = 1;
    CHECK(pipe(ends) == 0);
    int in = ends[0], out = ends[1];
    if (in != fd && out != fd) {
        CHECK(dup2(out, fd) == fd);
        close(out);
        out = fd;
    }
    CHECK(write(out, &byte, 1) == 1 && read(in, &byte, 1) == 1);
    close(in);
    close(out);
}

static void serve_by_numbers(void) {
    int fd = syscall(SYS_accept4, listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fd >= 0);
    char bytes[1000];
    ssize_t len;
    while ((len = syscall(SYS_read, fd, bytes, sizeof bytes)) > 0)
        for (ssize_t done = 0, now; done < len; done += now) {
            now = syscall(SYS_sendto, fd, bytes + done, len - done, MSG_NOSIGNAL, NULL, 0);
            CHECK(now > 0);
        }
    CHECK(len == 0);
    int other = syscall(SYS_dup, fd);
    CHECK(other >= 0);
    CHECK(syscall(SYS_close, fd) == 0);
    check_forgotten(fd);
    CHECK(syscall(SYS_shutdown, other, SHUT_WR) == 0);
    CHECK(syscall(SYS_close, other) == 0);
    check_forgotten(other);
    /* What is the kernel's stays the kernel's, with its errors. */
    errno = 0;
    CHECK(syscall(SYS_read, fd, bytes, sizeof bytes) == -1 && errno == EBADF);
    CHECK(syscall(SYS_getpid) == getpid());
    /* A ring takes descriptors past the functions of the library. */
    errno = 0;
    CHECK(syscall(SYS_io_uring_setup, 1, NULL) == -1 && errno == ENOSYS);
}

static void serve_by_streams(void) {
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    int other = dup(fd);
    FILE *in = fdopen(fd, "r"), *out = fdopen(other, "w");
    CHECK(in && out && fileno(in) == fd && fileno(out) == other);
    char *line = NULL;
    size_t size = 0;
    while (getline(&line, &size, in) > 0)
        CHECK(fputs(line, out) >= 0);
    free(line);
    CHECK(feof(in) && !ferror(in));
    CHECK(fclose(out) == 0);
    check_forgotten(other);
    CHECK(fclose(in) == 0);
    check_forgotten(fd);
    FILE *usual = fopen("/dev/null", "w");
    CHECK(usual && fileno(usual) > 2 && fprintf(usual, "it") == 2 && fclose(usual) == 0);
}

static void serve(void) {
    int fd = accept(listener, NULL, NULL);
    CHECK(fd >= 0);
    char bytes[1000];
    ssize_t len;
    while ((len = read(fd, bytes, sizeof bytes)) > 0)
        for (ssize_t done = 0, now; done < len; done += now)
            CHECK((now = write(fd, bytes + done, len - done)) > 0);
    CHECK(len == 0);
    close(fd);
}

static void close_others(const char *way) {
    int last = 1023;
    if (strcmp(way, "close_range") == 0) {
        CHECK(listener < 4 || close_range(3, listener - 1, 0) == 0);
        CHECK(close_range(listener + 1, ~0U, 0) == 0);
    } else if (strcmp(way, "closefrom") == 0) {
        closefrom(listener + 1);
    } else if (strcmp(way, "dup2") == 0) {
        int null = open("/dev/null", O_RDWR);
        for (int fd = 3; fd <= last; fd++)
            if (fd != listener && fd != null && dup2(null, fd) == fd)
                close(fd);
        close(null);
    } else {
        for (int fd = 3; fd <= last; fd++)
            if (fd != listener)
                close(fd);
    }
    /* The numbers are there for others. */
    int fd = open("/dev/null", O_RDONLY);
    CHECK(strcmp(way, "closefrom") == 0 ? fd <= listener + 1 : fd == (listener == 3 ? 4 : 3));
    close(fd);
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    const char *way = arguments[1];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(arguments[2]))};
    listener = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 16) == 0);
    struct pollfd polled[] = {{.fd = 0, .events = POLLIN}, {.fd = listener, .events = POLLIN}};
    for (;;) {
        CHECK(poll(polled, 2, -1) > 0);
        if (polled[0].revents)
            return 0;
        if (strcmp(way, "numbers") == 0) {
            serve_by_numbers();
        } else if (strcmp(way, "streams") == 0) {
            serve_by_streams();
        } else {
            serve();
            close_others(way);
        }
    }
}
