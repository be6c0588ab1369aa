/* am_spmd.h: programs of many processes on Active Messages II.
 *
 * A program that is started by `weft run -n N`, `mpirun` or `mpiexec` gets a rank, the number of ranks, and an endpoint whose
 * translation table has the endpoint of each rank, its own too, at the rank's index. A program that none of them started is a job of one.
 * docs/jobs.md says how programs are started. This interface is weft's own: the report on AM-II does not cover starting programs.
 *
 * All functions return AM_OK or an AM_ERR_ code, unless said otherwise. All ranks make the same calls in the same order. One thread
 * at a time makes them, and no handler. But a handler may ask for rank and size, and call am_spmd_exit with another status than 0.
 */
#ifndef WEFT_AM_SPMD_H
#define WEFT_AM_SPMD_H

#include "am.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Begins the job: opens Active Messages and makes a bundle (AM_SEQ) and an endpoint with a random tag. Then set the
 * handlers, and call am_spmd_barrier before the first request, so that all ranks have theirs. Waits until all ranks have called it.
 * AM_ERR_RESOURCE if the launcher cannot be reached or the job has begun; am_spmd_error says which. */
int am_spmd_begin(eb_t *bundle, ep_t *endpoint);

/* This process's rank, from 0 on, and the number of ranks. -1 before am_spmd_begin. */
int am_spmd_rank(void);
int am_spmd_size(void);

/* Waits until all ranks have called it. Polls the bundle, so handlers run. AM_ERR_NOT_SENT if a rank does not answer or makes another
 * call. */
int am_spmd_barrier(void);

/* Gives `nbytes` bytes to all ranks. `to` gets those of each rank, in the order of ranks: size times as many. Polls the bundle, so
 * handlers run.
 * AM_ERR_BAD_ARG if `nbytes` is more than 64 MiB divided by the size, or not the same at all ranks. */
int am_spmd_all_gather(const void *from, void *to, size_t nbytes);

/* Ends the job in order: waits for all ranks, and then at most 10 s for their messages to end; frees the bundle and closes Active Messages.
 * Polls the bundle, so handlers run. */
int am_spmd_end(void);

/* Ends the job at once, everywhere, with this exit status. Does not return. */
void am_spmd_exit(int status)
#if defined(__GNUC__)
    __attribute__((noreturn))
#endif
    ;

/* Why this thread's last failed call of this interface failed, as text. Valid until the next one fails. "" if none has failed. */
const char *am_spmd_error(void);

#ifdef __cplusplus
}
#endif
#endif
