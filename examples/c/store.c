/* A store of words under numbers, kept by one process and used by the others.
 *
 *     store N         N processes: the first keeps the store, the others put, get and check
 *
 * A request says where its answer goes, so a caller may have many under way.
 */
#include "common.h"

#include <string.h>

enum { PUT = 1, GET = 2, DONE = 3, FOUND = 4, QUIT = 5 };
enum { PLACES = 4096, WORD = 32, EACH = 1000 };

static char words[PLACES][WORD];
static int answers, wrong, quits;
static int me;

static void put(void *token, void *word, size_t bytes, int place) {
    if (place < 0 || place >= PLACES || bytes >= WORD) return; /* no reply from here: weft sends an empty one */
    memcpy(words[place], word, bytes);
    words[place][bytes] = 0;
    OK(AM_Reply1(token, DONE, place));
}

static void get(void *token, int place, int expected) {
    if (place < 0 || place >= PLACES) return;
    OK(AM_ReplyI1(token, FOUND, words[place], strlen(words[place]), expected));
}

static void done(void *token, int place) {
    (void)token;
    (void)place;
    answers++;
}

static void found(void *token, void *word, size_t bytes, int expected) {
    char text[WORD];
    (void)token;
    answers++;
    int length = snprintf(text, sizeof text, "%d of %d", expected, me);
    wrong += (size_t)length != bytes || memcmp(word, text, bytes) != 0;
}

static void quit(void *token) {
    (void)token;
    quits++;
}

int main(int argc, char **argv) {
    struct job job = start_job(argc > 1 ? atoi(argv[1]) : 3);
    me = job.rank;
    OK(AM_SetHandler(job.endpoint, PUT, put));
    OK(AM_SetHandler(job.endpoint, GET, get));
    OK(AM_SetHandler(job.endpoint, DONE, done));
    OK(AM_SetHandler(job.endpoint, FOUND, found));
    OK(AM_SetHandler(job.endpoint, QUIT, quit));

    if (me == 0) {
        while (quits < job.size - 1) OK(AM_Poll(job.bundle));
        printf("%d processes used the store\n", quits);
    } else {
        char text[WORD];
        for (int at = 0; at < EACH; at++) {
            int length = snprintf(text, sizeof text, "%d of %d", at, me);
            OK(AM_RequestI1(job.endpoint, 0, PUT, text, (size_t)length, (at * job.size + me) % PLACES));
        }
        while (answers < EACH) OK(AM_Poll(job.bundle));
        /* The last words of this process are still there, unless another process shares its places. */
        for (int at = EACH - PLACES / job.size / 2; at < EACH; at++)
            if (at >= 0) OK(AM_Request2(job.endpoint, 0, GET, (at * job.size + me) % PLACES, at));
        int expected = EACH + (PLACES / job.size / 2 < EACH ? PLACES / job.size / 2 : EACH);
        while (answers < expected) OK(AM_Poll(job.bundle));
        OK(AM_Request0(job.endpoint, 0, QUIT));
        if (wrong) fprintf(stderr, "process %d: %d wrong answers\n", me, wrong);
    }
    return end_job(&job) | (wrong != 0);
}
