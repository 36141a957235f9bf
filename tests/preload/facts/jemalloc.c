/* Has options for a jemalloc of its own, and prints those of the environment. */
#include "../../basics.h"

const char *_rjem_malloc_conf = "abort_conf:true,prof:true";

int main(void)
{
    const char *value = getenv("_RJEM_MALLOC_CONF");
    CHECK(value != NULL);
    fputs(value, stdout);
    return 0;
}
