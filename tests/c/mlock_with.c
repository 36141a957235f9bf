/* The options of tenure_mlock_with(): the callback reports progress and can end the call,
 * and wrong options are refused before anything is locked. */
#include "check.h"

#define LEN ((size_t)4 << 20)

struct reports {
    size_t done_bytes, total_bytes;
    int result;
};

static int report(size_t done_bytes, size_t total_bytes, void *data)
{
    struct reports *reports = data;
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

static void lock_with_callback_reports_total(void)
{
    char *memory = map(LEN);
    struct reports reports = {0, 0, 0};
    struct tenure_populate_options options = default_options();
    options.progress = report;
    options.data = &reports;
    CHECK_IS(tenure_mlock_with(memory, LEN, TENURE_POPULATE_FORCE, &options), 0);
    CHECK_IS(reports.done_bytes, LEN);
    CHECK_IS(reports.total_bytes, LEN);
    CHECK_IS(resident(memory, LEN), LEN / page());
    CHECK_IS(madvise(memory, LEN, MADV_DONTNEED), -1);
    CHECK_IS(tenure_munlock(memory, LEN, TENURE_LOCK_ONFAULT), 0);
    CHECK_IS(madvise(memory, LEN, MADV_DONTNEED), -1);
    CHECK_IS(munmap(memory, LEN), 0);
}

/* With chunks of one page, populating takes longer than the 50 ms between two reports. */
static void lock_with_nonzero_return_is_undone(void)
{
    size_t len = (size_t)1 << 30;
    char *memory = map(len);
    if (tenure_mlock(memory, len, TENURE_LOCK_ONFAULT) < 0)
        skip("RLIMIT_MEMLOCK does not allow locking 1 GiB");
    CHECK_IS(tenure_munlock(memory, len, TENURE_LOCK_ONFAULT), 0);
    struct reports reports = {0, 0, 1};
    struct tenure_populate_options options = default_options();
    options.threads = 1;
    options.chunk_bytes = page();
    options.progress = report;
    options.data = &reports;
    CHECK_IS(tenure_mlock_with(memory, len, 0, &options), -ECANCELED);
    CHECK(reports.done_bytes < len);
    CHECK_IS(madvise(memory, len, MADV_DONTNEED), 0);
    CHECK_IS(munmap(memory, len), 0);
}

static void lock_with_wrong_options_is_refused(void)
{
    char *memory = map(LEN);
    struct tenure_populate_options options = default_options();
    options.size--;
    CHECK_IS(tenure_mlock_with(memory, LEN, 0, &options), -EINVAL);
    CHECK_IS(tenure_mlock_with(memory, LEN, TENURE_LOCK_NOW, NULL), -EINVAL);
    CHECK_IS(resident(memory, LEN), 0);
    CHECK_IS(munmap(memory, LEN), 0);
}

int main(void)
{
    lock_with_callback_reports_total();
    lock_with_wrong_options_is_refused();
    lock_with_nonzero_return_is_undone();
    return 0;
}
