/* Options: progress is told and can end the call, and structures of other versions are
 * read or refused. */
#include "check.h"

#define LEN ((size_t)16 << 20)

struct heard {
    size_t calls, done_bytes, total_bytes;
    int answer;
};

static int hear(size_t done_bytes, size_t total_bytes, void *data)
{
    struct heard *heard = data;
    heard->calls++;
    CHECK(done_bytes >= heard->done_bytes);
    heard->done_bytes = done_bytes;
    heard->total_bytes = total_bytes;
    return heard->answer;
}

static struct tenure_populate_options fresh(void)
{
    struct tenure_populate_options options;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    return options;
}

static void progress_is_told(void)
{
    char *memory = map(LEN);
    struct heard heard = {0, 0, 0, 0};
    struct tenure_populate_options options = fresh();
    options.threads = 2;
    options.chunk_bytes = 64 << 10;
    options.progress = hear;
    options.data = &heard;
    CHECK_IS(tenure_populate_with(memory, LEN, TENURE_POPULATE_WRITE, &options), 0);
    CHECK(heard.calls >= 1);
    CHECK_IS(heard.done_bytes, LEN);
    CHECK_IS(heard.total_bytes, LEN);
    CHECK_IS(resident(memory, LEN), LEN / page());
    CHECK_IS(munmap(memory, LEN), 0);
}

static void without_options(void)
{
    char *memory = map(LEN);
    CHECK_IS(tenure_populate_with(memory, LEN, TENURE_POPULATE_WRITE, NULL), 0);
    CHECK_IS(resident(memory, LEN), LEN / page());
    CHECK_IS(munmap(memory, LEN), 0);
}

/* A chunk at a time takes longer than the 50 ms after which progress is told. */
static void the_answer_ends_it(void)
{
    size_t len = (size_t)1 << 30;
    char *memory = map(len);
    struct heard heard = {0, 0, 0, 1};
    struct tenure_populate_options options = fresh();
    options.threads = 1;
    options.chunk_bytes = page();
    options.progress = hear;
    options.data = &heard;
    int answer = tenure_populate_with(
        memory, len, TENURE_POPULATE_WRITE | TENURE_POPULATE_FORCE, &options);
    CHECK_IS(answer, -ECANCELED);
    CHECK(heard.done_bytes < len);
    CHECK_IS(munmap(memory, len), 0);
}

static void other_versions(void)
{
    char *memory = map(page());
    struct {
        struct tenure_populate_options known;
        size_t later;
    } options;
    memset(&options, 0, sizeof(options));
    options.known.size = sizeof(options.known) - 1;
    CHECK_IS(tenure_populate_with(memory, page(), TENURE_POPULATE_WRITE,
                                  &options.known),
             -EINVAL);
    options.known.size = 0;
    CHECK_IS(tenure_populate_with(memory, page(), TENURE_POPULATE_WRITE,
                                  &options.known),
             -EINVAL);
    options.known.size = sizeof(options);
    options.later = 1;
    CHECK_IS(tenure_populate_with(memory, page(), TENURE_POPULATE_WRITE,
                                  &options.known),
             -E2BIG);
    CHECK_IS(resident(memory, page()), 0);
    options.later = 0;
    CHECK_IS(tenure_populate_with(memory, page(), TENURE_POPULATE_WRITE,
                                  &options.known),
             0);
    CHECK_IS(munmap(memory, page()), 0);
}

int main(void)
{
    progress_is_told();
    without_options();
    the_answer_ends_it();
    other_versions();
    return 0;
}
