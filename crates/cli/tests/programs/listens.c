/*
 * Listens at a port of its choice until it is ended; with arguments, executes those without an
 * environment.
 */
#include <stdio.h>
#include <sys/socket.h>
#include <netinet/in.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    static char *const none[] = {NULL};
    if (count > 1) {
        execve(arguments[1], arguments + 1, none);
        perror(arguments[1]);
        return 1;
    }
    struct sockaddr_in at = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 8) < 0) {
        perror("listen");
        return 1;
    }
    pause();
    return 0;
}
