/* The options of the limit programs: all take the same, and each leaves those aside that are not its own. */
#ifndef LIMITS_OPTIONS_H
#define LIMITS_OPTIONS_H

#include "common.h"

/* Reads what stands before the name of a program, and behind it; prints `help` and ends if that is asked for. `optind` is then
 * that of the first argument which is no option. */
struct options options_read(int argc, char **argv, const char *help);
/* What was not said: the usual size, and the first two CPUs. */
void options_settle(struct options *o, size_t usual_size);

#endif
