/* What programs of this folder have in common. */
#ifndef PROGRAMS_H
#define PROGRAMS_H

#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static inline int check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(errno));
        exit(1);
    }
    return result;
}

static inline int stream(void)
{
    return check(socket(AF_INET, SOCK_STREAM, 0), "socket");
}

/* Waits until a thread sleeps: its number is 0 until it has begun. */
static inline void await_sleep(atomic_int *started)
{
    char name[64], state = 0;
    int thread;
    while ((thread = atomic_load(started)) == 0)
        sched_yield();
    snprintf(name, sizeof name, "/proc/self/task/%d/stat", thread);
    while (state != 'S') {
        FILE *file = fopen(name, "r");
        if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
            check(-1, name);
        fclose(file);
        sched_yield();
    }
}

#endif
