/* Only a process with one thread can make a user namespace. A program that has given
 * tenure's threads nothing to do can, and so can a child; while such a thread exists, the
 * kernel refuses it as in any program with threads. */
#include "../basics.h"

#include <sched.h>

enum { MADE, THREADS, REFUSED };

static int make(void *data)
{
    (void)data;
    if (unshare(CLONE_NEWUSER) == 0)
        return MADE;
    return errno == EINVAL ? THREADS : REFUSED;
}

static void use(void)
{
    size_t len = (size_t)64 << 20;
    char *memory = map(len);
    memset(memory, 1, len);
    CHECK_IS(munmap(memory, len), 0);
    memory = malloc(len);
    CHECK(memory != NULL);
    memset(memory, 1, len);
    free(memory);
}

int main(void)
{
    int status = in_child(make, NULL);
    if (status == REFUSED)
        skip("this user cannot make user namespaces here");
    CHECK_IS(status, MADE);
    use();
    CHECK_IS(in_child(make, NULL), MADE);
    status = make(NULL);
    CHECK(status == MADE || status == THREADS);
    use();
    return 0;
}
