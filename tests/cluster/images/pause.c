/* The process of a pod's sandbox: waits, reaps what is left to it, leaves on SIGINT and SIGTERM. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal)
{
    (void)signal;
    _exit(0);
}

static void reap(int signal)
{
    (void)signal;
    while (waitpid(-1, 0, WNOHANG) > 0)
        ;
}

int main(void)
{
    signal(SIGINT, leave);
    signal(SIGTERM, leave);
    signal(SIGCHLD, reap);
    for (;;)
        pause();
}
