/* Two copies of SQLite that come to lie at the same addresses, one after the other. The arguments
 * are "1" if SQLite is to be told, and the two libraries. */

#include "copies.h"

int main(int count, char **arguments)
{
    static const char *const names[2][2] = {{"one_use", "one_initialized"},
                                            {"two_use", "two_initialized"}};
    CHECK_IS(count, 4);
    for (int i = 0; i < 40; i++) {
        void *library = open_library(arguments[2 + i % 2]);
        CHECK_IS(call(library, names[i % 2][0]), 0);
        CHECK_IS(call(library, names[i % 2][0]), 0);
        CHECK_IS(call(library, names[i % 2][1]), 2);
        CHECK_IS(dlclose(library), 0);
    }
    return 0;
}
