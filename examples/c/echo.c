/* Sends text to another process, which sends it back.
 *
 *     echo            prints the name of its endpoint and answers, until its input ends
 *     echo NAME TEXT  sends TEXT there and prints the answer
 */
#include "common.h"

#include <poll.h>
#include <string.h>
#include <weft.h>

enum { ECHO = 1, ANSWER = 2 };
#define TAG ((tag_t)2024)

static int is_answered;

static void echo(void *token, void *text, size_t bytes) { OK(AM_ReplyI0(token, ANSWER, text, bytes)); }

static void answer(void *token, void *text, size_t bytes) {
    (void)token;
    printf("%.*s\n", (int)bytes, (char *)text);
    is_answered = 1;
}

int main(int argc, char **argv) {
    eb_t bundle;
    ep_t endpoint;
    en_t name;
    OK(AM_Init());
    OK(AM_AllocateBundle(AM_SEQ, &bundle));
    OK(AM_AllocateEndpoint(bundle, &endpoint, &name));
    OK(AM_SetTag(endpoint, TAG));
    OK(AM_SetHandler(endpoint, ECHO, echo));
    OK(AM_SetHandler(endpoint, ANSWER, answer));
    OK(AM_SetEventMask(bundle, AM_NOTEMPTY));

    if (argc == 3) {
        weft_name there;
        if (weft_name_parse(argv[1], &there) != WEFT_OK) return fprintf(stderr, "no name: %s\n", weft_last_error()), 2;
        memcpy(&name, &there, sizeof name);
        OK(AM_Map(endpoint, 0, name, TAG));
        OK(AM_RequestI0(endpoint, 0, ECHO, argv[2], strlen(argv[2])));
        while (!is_answered) OK(AM_WaitSema(bundle));
    } else {
        char text[WEFT_NAME_TEXT];
        weft_name here;
        memcpy(&here, &name, sizeof here);
        weft_name_print(&here, text, sizeof text);
        printf("%s\n", text);
        fflush(stdout);
        struct pollfd input = {.fd = 0, .events = POLLIN};
        char rest[64];
        /* A server with nothing else to do would only wait: while (1) AM_WaitSema(bundle). */
        while (poll(&input, 1, 1) == 0 || read(0, rest, sizeof rest) > 0) OK(AM_Poll(bundle));
    }
    OK(AM_Terminate());
    return 0;
}
