#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <tenure.h>

int main(void)
{
    /* From now on no page that was touched is swapped out. */
    int err = tenure_mlockall(TENURE_LOCK_CURRENT | TENURE_LOCK_FUTURE |
                              TENURE_LOCK_ONFAULT);
    if (err == -ENOMEM || err == -EPERM) {
        puts("RLIMIT_MEMLOCK is too low: going on without locks");
        return 0;
    }
    if (err < 0) {
        fprintf(stderr, "mlockall: %s\n", strerror(-err));
        return 1;
    }
    return tenure_munlockall(TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT) < 0;
}
