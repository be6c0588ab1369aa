/* Bundles, endpoints, tags, tables, handlers: every function, and every error of each. */
#include "check.h"

#include <weft.h>

static void none(void *token) { (void)token; }

static void init_counts(void) {
    eb_t bundle;
    IS(AM_ERR_NOT_INIT, AM_Terminate());
    IS(AM_ERR_NOT_INIT, AM_AllocateBundle(AM_SEQ, &bundle));
    IS(AM_ERR_NOT_INIT, AM_Poll(NULL));
    OK(AM_Init());
    OK(AM_Init());
    OK(AM_AllocateBundle(AM_SEQ, &bundle));
    OK(AM_Terminate());
    OK(AM_Poll(bundle));
    OK(AM_Terminate());
    IS(AM_ERR_NOT_INIT, AM_Poll(bundle));
    IS(AM_ERR_NOT_INIT, AM_Terminate());
    /* And again. */
    OK(AM_Init());
    IS(AM_ERR_BAD_ARG, AM_Poll(bundle));
    OK(AM_AllocateBundle(AM_PAR, &bundle));
    OK(AM_Poll(bundle));
    OK(AM_Terminate());
}

static void version_and_limits(void) {
    uintptr_t most = 0;
    int count = 0;
    CHECK(strlen(am_version()) >= 5);
    OK(am_check_version(AM_VERSION));
    IS(AM_ERR_RESOURCE, am_check_version(AM_VERSION + 1));
    CHECK(am_has("parallel") && am_has("move") && am_has("returned"));
    CHECK(!am_has("magic") && !am_has(NULL) && !am_has(""));
    OK(AM_Init());
    OK(AM_MaxSegLength(&most));
    CHECK(most == (uintptr_t)-1);
    IS(AM_ERR_BAD_ARG, AM_MaxSegLength(NULL));
    CHECK(AM_MaxShort() == 16 && AM_MaxMedium() == 65536 && AM_MaxLong() + 100 > AM_MaxMedium());
    OK(AM_MaxNumTranslations(&count));
    CHECK(count == 1 << 20);
    CHECK(AM_MaxNumHandlers() == 256);
    for (int error = AM_OK; error <= AM_ERR_NOT_TERM; error++) CHECK(strncmp(am_error_text(error), "AM_", 3) == 0);
    CHECK(strncmp(am_error_text(AM_ERR_IN_USE), "AM_ERR_IN_USE: ", 15) == 0);
    CHECK(am_error_text(-1) != NULL && strstr(am_error_text(7), "no code of am.h") != NULL);
    CHECK(strncmp(am_status_text(EBADTAG), "EBADTAG", 7) == 0 && am_status_text(99) != NULL);
    OK(AM_Terminate());
}

static void bundles(void) {
    eb_t bundle = NULL;
    OK(AM_Init());
    IS(AM_ERR_BAD_ARG, AM_AllocateBundle(2, &bundle));
    IS(AM_ERR_BAD_ARG, AM_AllocateBundle(-1, &bundle));
    IS(AM_ERR_BAD_ARG, AM_AllocateBundle(AM_SEQ, NULL));
    for (int mode = AM_SEQ; mode <= AM_PAR; mode++) {
        ep_t endpoint;
        en_t name;
        OK(AM_AllocateBundle(mode, &bundle));
        OK(AM_AllocateEndpoint(bundle, &endpoint, &name));
        OK(AM_Poll(bundle));
        OK(AM_FreeBundle(bundle));
        /* The handles of the bundle and its endpoint are stale now, even when other objects take their places. */
        eb_t other;
        OK(AM_AllocateBundle(mode, &other));
        CHECK(other != bundle);
        IS(AM_ERR_BAD_ARG, AM_Poll(bundle));
        IS(AM_ERR_BAD_ARG, AM_FreeBundle(bundle));
        IS(AM_ERR_BAD_ARG, AM_SetTag(endpoint, 5));
        IS(AM_ERR_BAD_ARG, AM_FreeEndpoint(endpoint));
        IS(AM_ERR_BAD_ARG, AM_Request0(endpoint, 0, 1));
        CHECK(strstr(weft_last_error(), "stale handle") != NULL);
        IS(AM_ERR_BAD_ARG, AM_MaxSegLength(NULL));
        CHECK(strstr(weft_last_error(), "AM_ERR_BAD_ARG") != NULL);
        OK(AM_AllocateEndpoint(other, &endpoint, &name));
        IS(AM_ERR_BAD_ARG, AM_Request0(endpoint, 5, 1));
        CHECK(strstr(weft_last_error(), "nothing is mapped at index 5") != NULL);
        OK(AM_FreeBundle(other));
    }
    OK(AM_Terminate());
}

static void strange_handles(void) {
    make_pair();
    int garbage = 7;
    void *strange[] = {NULL, &garbage, (void *)(uintptr_t)1, (void *)(uintptr_t)-1, (void *)(uintptr_t)0x3000000000f00000};
    for (size_t at = 0; at < sizeof strange / sizeof *strange; at++) {
        eb_t bundle = (eb_t)strange[at];
        ep_t endpoint = (ep_t)strange[at];
        void *token = strange[at];
        int number;
        tag_t tag;
        en_t name = a.name;
        handler_t handler;
        uintptr_t size;
        void *address;
        ep_t made;
        am_returned_t returned;
        IS(AM_ERR_BAD_ARG, AM_FreeBundle(bundle));
        IS(AM_ERR_BAD_ARG, AM_Poll(bundle));
        IS(AM_ERR_BAD_ARG, AM_Wait(bundle));
        IS(AM_ERR_BAD_ARG, AM_WaitSema(bundle));
        IS(AM_ERR_BAD_ARG, AM_GetEventMask(bundle, &number));
        IS(AM_ERR_BAD_ARG, AM_SetEventMask(bundle, AM_NOTEMPTY));
        IS(AM_ERR_BAD_ARG, AM_AllocateEndpoint(bundle, &made, &name));
        IS(AM_ERR_BAD_ARG, AM_FreeEndpoint(endpoint));
        IS(AM_ERR_BAD_ARG, AM_MoveEndpoint(endpoint, a.bundle, b.bundle));
        IS(AM_ERR_BAD_ARG, AM_MoveEndpoint(a.endpoint, bundle, b.bundle));
        IS(AM_ERR_BAD_ARG, AM_MoveEndpoint(a.endpoint, a.bundle, bundle));
        IS(AM_ERR_BAD_ARG, AM_GetSeg(endpoint, &address, &size));
        IS(AM_ERR_BAD_ARG, AM_SetSeg(endpoint, NULL, 0));
        IS(AM_ERR_BAD_ARG, AM_GetTag(endpoint, &tag));
        IS(AM_ERR_BAD_ARG, AM_SetTag(endpoint, 1));
        IS(AM_ERR_BAD_ARG, AM_Map(endpoint, 0, a.name, 1));
        IS(AM_ERR_BAD_ARG, AM_MapAny(endpoint, &number, a.name, 1));
        IS(AM_ERR_BAD_ARG, AM_UnMap(endpoint, 0));
        IS(AM_ERR_BAD_ARG, AM_GetTranslationInuse(endpoint, 0));
        IS(AM_ERR_BAD_ARG, AM_GetTranslationTag(endpoint, 0, &tag));
        IS(AM_ERR_BAD_ARG, AM_GetTranslationName(endpoint, 0, &name));
        IS(AM_ERR_BAD_ARG, AM_GetNumTranslations(endpoint, &number));
        IS(AM_ERR_BAD_ARG, AM_SetNumTranslations(endpoint, 300));
        IS(AM_ERR_BAD_ARG, AM_SetExpectedResources(endpoint, 1, 1));
        IS(AM_ERR_BAD_ARG, am_set_translation_tag(endpoint, 0, 1));
        IS(AM_ERR_BAD_ARG, am_set_returns_misuse(endpoint, 1));
        IS(AM_ERR_BAD_ARG, AM_SetHandler(endpoint, 1, none));
        IS(AM_ERR_BAD_ARG, AM_SetHandlerAny(endpoint, &handler, none));
        IS(AM_ERR_BAD_ARG, AM_GetNumHandlers(endpoint, &number));
        IS(AM_ERR_BAD_ARG, AM_SetNumHandlers(endpoint, 256));
        IS(AM_ERR_BAD_ARG, AM_Request0(endpoint, 0, 1));
        IS(AM_ERR_BAD_ARG, AM_RequestI0(endpoint, 0, 1, "x", 1));
        IS(AM_ERR_BAD_ARG, AM_RequestXfer0(endpoint, 0, 0, 1, "x", 1));
        IS(AM_ERR_BAD_ARG, AM_RequestXferAsync0(endpoint, 0, 0, 1, "x", 1));
        IS(AM_ERR_BAD_ARG, AM_GetXfer4(endpoint, 0, 0, 1, 0, 1, 1, 2, 3, 4));
        IS(AM_ERR_BAD_ARG, AM_Reply0(token, 1));
        IS(AM_ERR_BAD_ARG, AM_ReplyI0(token, 1, "x", 1));
        IS(AM_ERR_BAD_ARG, AM_ReplyXfer0(token, 0, 1, "x", 1));
        IS(AM_ERR_BAD_ARG, AM_GetSourceEndpoint(token, &name));
        IS(AM_ERR_BAD_ARG, AM_GetDestEndpoint(token, &made));
        IS(AM_ERR_BAD_ARG, AM_GetMsgTag(token, &tag));
        IS(AM_ERR_BAD_ARG, am_get_source_index(token, &number));
        IS(AM_ERR_BAD_ARG, am_get_token_info(token, &handler, &number, &number));
        IS(AM_ERR_BAD_ARG, am_get_returned(token, &returned));
    }
    /* The handle of a bundle is not valid for an endpoint, nor the other way round, and neither is a token. */
    IS(AM_ERR_BAD_ARG, AM_Poll((eb_t)(void *)a.endpoint));
    IS(AM_ERR_BAD_ARG, AM_SetTag((ep_t)(void *)a.bundle, 1));
    IS(AM_ERR_BAD_ARG, AM_Reply0(a.endpoint, 1));
    IS(AM_ERR_BAD_ARG, AM_Reply0(a.bundle, 1));
    OK(AM_Terminate());
}

static void endpoints(void) {
    OK(AM_Init());
    eb_t bundle;
    ep_t endpoint, other;
    en_t name, other_name;
    tag_t tag = 99;
    void *address = &tag;
    uintptr_t size = 99;
    OK(AM_AllocateBundle(AM_SEQ, &bundle));
    IS(AM_ERR_BAD_ARG, AM_AllocateEndpoint(bundle, NULL, &name));
    IS(AM_ERR_BAD_ARG, AM_AllocateEndpoint(bundle, &endpoint, NULL));
    OK(AM_AllocateEndpoint(bundle, &endpoint, &name));
    OK(AM_GetTag(endpoint, &tag));
    CHECK(tag == AM_NONE);
    OK(AM_GetSeg(endpoint, &address, &size));
    CHECK(address == NULL && size == 0);
    IS(AM_ERR_BAD_ARG, AM_GetSeg(endpoint, NULL, &size));
    IS(AM_ERR_BAD_ARG, AM_GetSeg(endpoint, &address, NULL));
    IS(AM_ERR_BAD_ARG, AM_GetTag(endpoint, NULL));
    OK(AM_SetTag(endpoint, 12345));
    OK(AM_GetTag(endpoint, &tag));
    CHECK(tag == 12345);
    OK(AM_AllocateEndpoint(bundle, &other, &other_name));
    CHECK(endpoint != other && !am_same_name(name, other_name) && am_same_name(name, name));
    OK(AM_FreeEndpoint(endpoint));
    IS(AM_ERR_BAD_ARG, AM_FreeEndpoint(endpoint));
    IS(AM_ERR_BAD_ARG, AM_GetTag(endpoint, &tag));
    OK(AM_Terminate());
}

static void resources(void) {
    make_pair();
    IS(AM_ERR_BAD_ARG, AM_SetExpectedResources(a.endpoint, -1, 1));
    IS(AM_ERR_BAD_ARG, AM_SetExpectedResources(a.endpoint, 1, 0));
    IS(AM_ERR_BAD_ARG, AM_SetExpectedResources(a.endpoint, 1, 1025));
    OK(AM_SetExpectedResources(a.endpoint, 2, 32));
    IS(AM_ERR_RESOURCE, AM_SetExpectedResources(a.endpoint, 2, 32));
    /* Entries may be changed afterwards. */
    OK(AM_Map(a.endpoint, 1, b.name, TAG_B));
    OK(AM_UnMap(a.endpoint, 1));
    OK(AM_Terminate());
}

static void table(void) {
    make_pair();
    int index = -1, count = 0;
    tag_t tag;
    en_t name, broken;
    OK(AM_GetTranslationInuse(a.endpoint, 0));
    IS(AM_ERR_RESOURCE, AM_GetTranslationInuse(a.endpoint, 1));
    IS(AM_ERR_BAD_ARG, AM_GetTranslationInuse(a.endpoint, 256));
    IS(AM_ERR_BAD_ARG, AM_GetTranslationInuse(a.endpoint, -1));
    IS(AM_ERR_RESOURCE, AM_Map(a.endpoint, 0, b.name, 1));
    IS(AM_ERR_BAD_ARG, AM_Map(a.endpoint, 256, b.name, 1));
    IS(AM_ERR_BAD_ARG, AM_Map(a.endpoint, -1, b.name, 1));
    memset(&broken, 0xff, sizeof broken);
    IS(AM_ERR_BAD_ARG, AM_Map(a.endpoint, 1, broken, 1));
    IS(AM_ERR_BAD_ARG, AM_MapAny(a.endpoint, &index, broken, 1));
    IS(AM_ERR_BAD_ARG, AM_MapAny(a.endpoint, NULL, b.name, 1));
    OK(AM_Map(a.endpoint, 2, a.name, 7));
    OK(AM_MapAny(a.endpoint, &index, b.name, 8));
    CHECK(index == 1);
    OK(AM_MapAny(a.endpoint, &index, b.name, 8));
    CHECK(index == 3);
    OK(AM_GetTranslationTag(a.endpoint, 2, &tag));
    CHECK(tag == 7);
    OK(AM_GetTranslationName(a.endpoint, 2, &name));
    CHECK(am_same_name(name, a.name));
    IS(AM_ERR_RESOURCE, AM_GetTranslationTag(a.endpoint, 9, &tag));
    IS(AM_ERR_RESOURCE, AM_GetTranslationName(a.endpoint, 9, &name));
    IS(AM_ERR_BAD_ARG, AM_GetTranslationTag(a.endpoint, 0, NULL));
    IS(AM_ERR_BAD_ARG, AM_GetTranslationName(a.endpoint, 0, NULL));
    IS(AM_ERR_BAD_ARG, AM_GetTranslationName(a.endpoint, 999, &name));
    OK(AM_UnMap(a.endpoint, 2));
    IS(AM_ERR_RESOURCE, AM_UnMap(a.endpoint, 2));
    IS(AM_ERR_BAD_ARG, AM_UnMap(a.endpoint, 999));
    OK(am_set_translation_tag(a.endpoint, 3, 77));
    OK(AM_GetTranslationTag(a.endpoint, 3, &tag));
    CHECK(tag == 77);
    IS(AM_ERR_RESOURCE, am_set_translation_tag(a.endpoint, 2, 77));
    /* Its size. */
    OK(AM_GetNumTranslations(a.endpoint, &count));
    CHECK(count == 256);
    IS(AM_ERR_BAD_ARG, AM_GetNumTranslations(a.endpoint, NULL));
    IS(AM_ERR_RESOURCE, AM_SetNumTranslations(a.endpoint, 255));
    IS(AM_ERR_BAD_ARG, AM_SetNumTranslations(a.endpoint, -1));
    IS(AM_ERR_RESOURCE, AM_SetNumTranslations(a.endpoint, (1 << 20) + 1));
    OK(AM_SetNumTranslations(a.endpoint, 1 << 20));
    OK(AM_Map(a.endpoint, (1 << 20) - 1, b.name, TAG_B));
    IS(AM_ERR_RESOURCE, AM_SetNumTranslations(a.endpoint, 1000));
    OK(AM_UnMap(a.endpoint, (1 << 20) - 1));
    OK(AM_SetNumTranslations(a.endpoint, 1000));
    IS(AM_ERR_BAD_ARG, AM_Map(a.endpoint, 1000, b.name, 1));
    OK(AM_SetNumTranslations(a.endpoint, 256));
    /* A full table. */
    while (AM_MapAny(a.endpoint, &index, b.name, 8) == AM_OK) count = index;
    CHECK(count == 255);
    IS(AM_ERR_RESOURCE, AM_MapAny(a.endpoint, &index, b.name, 8));
    OK(AM_Terminate());
}

static void handlers(void) {
    make_pair();
    handler_t number = 0;
    int count = 0;
    IS(AM_ERR_BAD_ARG, AM_SetHandler(a.endpoint, 1, NULL));
    IS(AM_ERR_BAD_ARG, AM_SetHandlerAny(a.endpoint, NULL, none));
    IS(AM_ERR_BAD_ARG, AM_SetHandlerAny(a.endpoint, &number, NULL));
    OK(AM_SetHandlerAny(a.endpoint, &number, none));
    CHECK(number == 1);
    OK(AM_SetHandler(a.endpoint, 2, none));
    OK(AM_SetHandler(a.endpoint, 2, none)); /* again: it is replaced */
    OK(AM_SetHandlerAny(a.endpoint, &number, none));
    CHECK(number == 3);
    while (AM_SetHandlerAny(a.endpoint, &number, none) == AM_OK) count = number;
    CHECK(count == 255);
    IS(AM_ERR_RESOURCE, AM_SetHandlerAny(a.endpoint, &number, none));
    OK(AM_SetHandler(a.endpoint, 0, keep));
    OK(AM_GetNumHandlers(a.endpoint, &count));
    CHECK(count == 256);
    IS(AM_ERR_BAD_ARG, AM_GetNumHandlers(a.endpoint, NULL));
    OK(AM_SetNumHandlers(a.endpoint, 16));
    IS(AM_ERR_RESOURCE, AM_SetNumHandlers(a.endpoint, 257));
    IS(AM_ERR_BAD_ARG, AM_SetNumHandlers(a.endpoint, -1));
    OK(AM_Terminate());
}

static void masks(void) {
    make_pair();
    int mask = 99;
    OK(AM_GetEventMask(a.bundle, &mask));
    CHECK(mask == AM_NOEVENTS);
    OK(AM_SetEventMask(a.bundle, AM_NOTEMPTY));
    OK(AM_GetEventMask(a.bundle, &mask));
    CHECK(mask == AM_NOTEMPTY);
    IS(AM_ERR_BAD_ARG, AM_GetEventMask(a.bundle, NULL));
    IS(AM_ERR_BAD_ARG, AM_SetEventMask(a.bundle, 2));
    IS(AM_ERR_BAD_ARG, AM_SetEventMask(a.bundle, -1));
    OK(AM_SetEventMask(a.bundle, AM_NOEVENTS));
    OK(AM_Terminate());
}

static const struct test tests[] = {
    {"init_counts", init_counts}, {"version_and_limits", version_and_limits},
    {"bundles", bundles},         {"strange_handles", strange_handles},
    {"endpoints", endpoints},     {"resources", resources},
    {"table", table},             {"handlers", handlers},
    {"masks", masks},
};

int main(int argc, char **argv) { return run_test(tests, sizeof tests / sizeof *tests, argc, argv); }
