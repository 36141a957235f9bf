/* Loads the library that the argument names. */

#include "copies.h"

int main(int count, char **arguments)
{
    CHECK_IS(count, 2);
    alarm(20);
    open_library(arguments[1]);
    return 0;
}
