/* Includes that the test programs of the C interface share. */
#ifndef CHECK_H
#define CHECK_H

#include "../basics.h"

#include <tenure.h>

#endif
