/* The options of tenure_populate_with(): the callback reports progress and can end the
 * call, and structures of other versions are accepted or refused. */
#include "check.h"

#define LEN ((size_t)16 << 20)

struct reports {
    size_t calls, done_bytes, total_bytes;
    int result;
};

static int report(size_t done_bytes, size_t total_bytes, void *data)
{
    struct reports *reports = data;
    reports->calls++;
    CHECK(done_bytes >= reports->done_bytes);
    reports->done_bytes = done_bytes;
    reports->total_bytes = total_bytes;
    return reports->result;
}

static struct tenure_populate_options default_options(void)
{
    struct tenure_populate_options options;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    return options;
}

static void progress_callback_reports_total(void)
{
    char *memory = map(LEN);
    struct reports reports = {0, 0, 0, 0};
    struct tenure_populate_options options = default_options();
    options.threads = 2;
    options.chunk_bytes = 64 << 10;
    options.progress = report;
    options.data = &reports;
    CHECK_IS(tenure_populate_with(memory, LEN, TENURE_POPULATE_WRITE, &options), 0);
    CHECK(reports.calls >= 1);
    CHECK_IS(reports.done_bytes, LEN);
    CHECK_IS(reports.total_bytes, LEN);
    CHECK_IS(resident(memory, LEN), LEN / page());
    CHECK_IS(munmap(memory, LEN), 0);
}

static void options_null_uses_defaults(void)
{
    char *memory = map(LEN);
    CHECK_IS(tenure_populate_with(memory, LEN, TENURE_POPULATE_WRITE, NULL), 0);
    CHECK_IS(resident(memory, LEN), LEN / page());
    CHECK_IS(munmap(memory, LEN), 0);
}

/* With chunks of one page, populating takes longer than the 50 ms between two reports. */
static void progress_nonzero_return_cancels(void)
{
    size_t len = (size_t)1 << 30;
    char *memory = map(len);
    struct reports reports = {0, 0, 0, 1};
    struct tenure_populate_options options = default_options();
    options.threads = 1;
    options.chunk_bytes = page();
    options.progress = report;
    options.data = &reports;
    int answer = tenure_populate_with(
        memory, len, TENURE_POPULATE_WRITE | TENURE_POPULATE_FORCE, &options);
    CHECK_IS(answer, -ECANCELED);
    CHECK(reports.done_bytes < len);
    CHECK_IS(munmap(memory, len), 0);
}

static void options_of_other_version_are_accepted_or_refused(void)
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
    progress_callback_reports_total();
    options_null_uses_defaults();
    progress_nonzero_return_cancels();
    options_of_other_version_are_accepted_or_refused();
    return 0;
}
