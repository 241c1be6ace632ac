/*
 * Executes a program with an effective group that is not its real one: the loader takes nothing
 * from the environment then.
 */
#include <stdio.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    (void)count;
    if (setegid(65534) < 0) {
        perror("setegid");
        return 1;
    }
    execv(arguments[1], arguments + 1);
    perror(arguments[1]);
    return 1;
}
