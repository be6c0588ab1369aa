/* Copying by loops; n is a multiple of 8. */
#ifndef LIMITS_COPY_H
#define LIMITS_COPY_H

#include "common.h"

#include <string.h>

typedef uint64_t line_of_words __attribute__((vector_size(LINE), aligned(8), may_alias));

static inline void copy_words(char *to, const char *from, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        memcpy(to + i, from + i, 8);
}

static inline void copy_lines(char *to, const char *from, size_t n)
{
    size_t i = 0;
    for (; i + LINE <= n; i += LINE)
        *(line_of_words *)(to + i) = *(const line_of_words *)(from + i);
    copy_words(to + i, from + i, n - i);
}

#endif
