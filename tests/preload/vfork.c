/* vfork and exec, posix_spawn, system and popen, with large blocks in use: the parent's
 * memory stays as it is, and the programs have theirs. */
#include "../basics.h"

#include <spawn.h>

extern char **environ;

static int status_of(pid_t child)
{
    int status;
    CHECK_IS(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

int main(void)
{
    size_t len = (size_t)32 << 20;
    unsigned char *block = malloc(len);
    CHECK(block != NULL);
    memset(block, 9, len);
    for (int round = 0; round < 20; round++) {
        char *arguments[] = { "sh", "-c", "exit 5", NULL };
        pid_t child = vfork();
        if (child == 0) {
            execvp("sh", arguments);
            _exit(1);
        }
        CHECK_IS(status_of(child), 5);
        child = vfork();
        if (child == 0) {
            execl("/no/such/program", "x", (char *)NULL);
            _exit(6);
        }
        CHECK_IS(status_of(child), 6);
        CHECK_IS(posix_spawnp(&child, "sh", NULL, NULL, arguments, environ), 0);
        CHECK_IS(status_of(child), 5);
        CHECK_IS(WEXITSTATUS(system("exit 7")), 7);
        FILE *pipe = popen("echo hello", "r");
        char line[16] = "";
        CHECK(pipe != NULL && fgets(line, sizeof(line), pipe) != NULL);
        CHECK(strcmp(line, "hello\n") == 0);
        CHECK_IS(pclose(pipe), 0);
        for (size_t at = 0; at < len; at += 4096)
            CHECK_IS(block[at], 9);
        block = realloc(block, len + ((size_t)round << 20));
        CHECK(block != NULL);
    }
    free(block);
    return 0;
}
