/* A program closes every descriptor that it does not know, and opens others: tenure
 * neither writes to nor closes those, and does not take the first free number. */
#include "../basics.h"

#include <fcntl.h>

int main(void)
{
    int first = open("/dev/null", O_RDONLY);
    CHECK_IS(first, 3);
    CHECK_IS(close(first), 0);
    char *memory = map((size_t)8 << 20);
    memset(memory, 1, (size_t)8 << 20);
    closefrom(3);
    /* One file under every number that was in use. */
    FILE *file = tmpfile();
    CHECK(file != NULL);
    int fd = fileno(file);
    for (int number = fd + 1; number < 1010; number++)
        CHECK(dup2(fd, number) == number || errno == EBADF);
    CHECK_IS(munmap(memory, (size_t)8 << 20), 0);
    free(malloc((size_t)8 << 20));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* The child has all of them. */
        CHECK(fcntl(1000, F_GETFD) >= 0 || fcntl(900, F_GETFD) >= 0 || errno == EBADF);
        for (int number = fd; number < 250; number++)
            CHECK(fcntl(number, F_GETFD) >= 0);
        exit(0);
    }
    int status;
    CHECK_IS(waitpid(child, &status, 0), child);
    CHECK_IS(status, 0);
    CHECK_IS(lseek(fd, 0, SEEK_END), 0);
    return 0;
}
