/* Adds up the numbers from 1 to LAST in N processes.
 *
 *     sum N LAST      each process adds a part, and a tree adds the parts: a process sends its parent its sum with its children's
 *
 * Messages carry 32-bit arguments, so a sum of 64 bits goes as two.
 */
#include "common.h"

#include <inttypes.h>

enum { PART = 1 };

static uint64_t sum;
static int heard;

static void part(void *token, int low, int high) {
    (void)token;
    sum += (uint32_t)low | (uint64_t)(uint32_t)high << 32;
    heard++;
}

int main(int argc, char **argv) {
    struct job job = start_job(argc > 1 ? atoi(argv[1]) : 4);
    uint64_t last = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000000;
    OK(AM_SetHandler(job.endpoint, PART, part));
    OK(AM_SetEventMask(job.bundle, AM_NOTEMPTY));

    for (uint64_t number = (uint64_t)job.rank + 1; number <= last; number += (uint64_t)job.size) sum += number;
    int children = (2 * job.rank + 1 < job.size) + (2 * job.rank + 2 < job.size);
    while (heard < children) OK(AM_WaitSema(job.bundle));
    if (job.rank > 0)
        OK(AM_Request2(job.endpoint, (unsigned)(job.rank - 1) / 2, PART, (uint32_t)sum, (uint32_t)(sum >> 32)));
    else
        printf("the sum is %" PRIu64 "\n", sum);
    return end_job(&job);
}
