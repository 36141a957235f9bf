/* What the test programs of the C interface need. */
#ifndef CHECK_H
#define CHECK_H

#include "../basics.h"

#include <tenure.h>

#endif
