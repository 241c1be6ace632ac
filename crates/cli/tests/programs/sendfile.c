/*
 * Serves files below a directory that it opens itself: `sendfile PORT DIR`. A file below DIR/once
 * loses its name before any of it is sent. One connection at a time, and one request on each.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <splitway.h>

static void serve(int fd, const char *directory)
{
    char request[4096], name[2048], path[4096], header[128];
    struct stat about;
    size_t len = 0;
    ssize_t got;
    do {
        got = sw_recv(fd, request + len, sizeof request - 1 - len, 0);
        len += got > 0 ? got : 0;
        request[len] = 0;
    } while (got > 0 && !strstr(request, "\r\n\r\n") && len < sizeof request - 1);
    if (sscanf(request, "GET %2047s HTTP/", name) != 1)
        return;
    snprintf(path, sizeof path, "%s%s", directory, name);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0 || fstat(file, &about) < 0) {
        perror(path);
        return;
    }
    if (!strncmp(name, "/once/", 6))
        unlink(path);
    snprintf(header, sizeof header,
             "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %lld\r\n\r\n",
             (long long)about.st_size);
    sw_send(fd, header, strlen(header), MSG_NOSIGNAL);
    while ((got = sw_sendfile(fd, file, NULL, about.st_size)) > 0)
        ;
    if (got < 0)
        perror("sw_sendfile");
    /* What is queued still goes. */
    close(file);
}

int main(int count, char **arguments)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    if (count < 3)
        return 2;
    at.sin_port = htons(atoi(arguments[1]));
    int listener = sw_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || sw_bind(listener, (struct sockaddr *)&at, sizeof at) < 0 ||
        sw_listen(listener, 1024) < 0) {
        perror("listen");
        return 1;
    }
    for (;;) {
        int fd = sw_accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        serve(fd, arguments[2]);
        sw_close(fd);
    }
}
