/* A parallel sum: each rank adds up its part of 1 to 1,000,000 and sends it to rank 0, which prints the sum.
 *
 *     weft run -n 4 ./ranks
 */
#include <am_spmd.h>
#include <stdio.h>

enum { PART = 1, LAST = 1000000 };

static uint64_t sum;
static int parts;

/* Runs at rank 0: a part came, in two halves. */
static void on_part(void *token, int low, int high)
{
    (void)token;
    sum += (uint64_t)(uint32_t)high << 32 | (uint32_t)low;
    parts++;
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, am_spmd_error());
    am_spmd_exit(1);
}

int main(void)
{
    eb_t bundle;
    ep_t endpoint;
    if (am_spmd_begin(&bundle, &endpoint) != AM_OK)
        return failed("am_spmd_begin");
    AM_SetHandler(endpoint, PART, on_part);
    if (am_spmd_barrier() != AM_OK) /* now all ranks have their handlers */
        return failed("am_spmd_barrier");

    uint64_t part = 0;
    for (int number = 1 + am_spmd_rank(); number <= LAST; number += am_spmd_size())
        part += (uint64_t)number;
    if (AM_Request2(endpoint, 0, PART, (uint32_t)part, part >> 32) != AM_OK)
        am_spmd_exit(1);

    while (am_spmd_rank() == 0 && parts < am_spmd_size())
        AM_Poll(bundle);
    if (am_spmd_rank() == 0)
        printf("%d ranks: the sum is %llu\n", am_spmd_size(), (unsigned long long)sum);
    return am_spmd_end() == AM_OK ? 0 : failed("am_spmd_end");
}
