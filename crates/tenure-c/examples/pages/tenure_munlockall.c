#include <sys/mman.h>
#include <tenure.h>

int main(void)
{
    static char table[64 << 10] __attribute__((aligned(64 << 10)));

    if (tenure_mlock(table, sizeof(table), TENURE_LOCK_NOW) < 0)
        return 1;
    /* Ends all locks on fault; the table stays locked. */
    if (tenure_munlockall(TENURE_LOCK_ONFAULT) < 0)
        return 1;
    return tenure_munlockall(TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT) < 0;
}
