/* The cache: values are found as they were inserted, also while others go. */
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct tenure_cache *new_cache(size_t max_bytes)
{
    struct tenure_cache_options options;
    struct tenure_cache *cache = NULL;
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.max_bytes = max_bytes;
    CHECK_IS(tenure_cache_new(&cache, &options), 0);
    return cache;
}

static struct tenure_cache_stats stats_of(struct tenure_cache *cache)
{
    struct tenure_cache_stats stats;
    CHECK_IS(tenure_cache_stats(cache, &stats, sizeof(stats)), 0);
    return stats;
}

static int insert(struct tenure_cache *cache, unsigned key, size_t len)
{
    char *bytes = malloc(len + 1);
    CHECK(bytes != NULL);
    memset(bytes, (int)(key % 251), len);
    int result = tenure_cache_insert(cache, &key, sizeof(key), bytes, len, 2);
    free(bytes);
    return result;
}

/* Returns whether the key is found, with the value that insert() has made. */
static int is_found(struct tenure_cache *cache, unsigned key, size_t len)
{
    struct tenure_cache_value value;
    int found = tenure_cache_get(cache, &key, sizeof(key), &value);
    CHECK(found == 0 || found == 1);
    CHECK((found == 1) == (value.pin != NULL));
    if (found) {
        CHECK_IS(value.len, len);
        const unsigned char *bytes = value.data;
        for (size_t at = 0; at < len; at++)
            CHECK_IS(bytes[at], key % 251);
    }
    tenure_cache_unpin(&value);
    CHECK(value.pin == NULL && value.data == NULL && value.len == 0);
    /* Again, to no effect. */
    tenure_cache_unpin(&value);
    return found;
}

static void values_of_all_sizes_are_found(void)
{
    static const size_t lens[] = {0, 1, 256, 3072, 3073, 4096, 100000, 3 << 20};
    struct tenure_cache *cache = NULL;
    CHECK_IS(tenure_cache_new(&cache, NULL), 0);
    for (unsigned i = 0; i < sizeof(lens) / sizeof(*lens); i++) {
        CHECK_IS(is_found(cache, i, lens[i]), 0);
        CHECK_IS(insert(cache, i, lens[i]), 0);
        CHECK_IS(is_found(cache, i, lens[i]), 1);
        CHECK_IS(tenure_cache_remove(cache, &i, sizeof(i)), 1);
        CHECK_IS(tenure_cache_remove(cache, &i, sizeof(i)), 0);
        CHECK_IS(is_found(cache, i, lens[i]), 0);
    }
    CHECK_IS(stats_of(cache).hits, 8);
    CHECK_IS(stats_of(cache).misses, 16);
    CHECK_IS(stats_of(cache).bytes, 0);
    tenure_cache_close(cache);
}

static void limit_evicts_and_refuses(void)
{
    struct tenure_cache *cache = new_cache(1 << 20);
    for (unsigned key = 0; key < 10000; key++)
        CHECK_IS(insert(cache, key, 500), 0);
    CHECK_IS(is_found(cache, 9999, 500), 1);
    struct tenure_cache_stats stats = stats_of(cache);
    CHECK(stats.bytes <= 1 << 20 && stats.values > 1000);
    CHECK_IS(stats.insertions, 10000);
    CHECK_IS(stats.values + stats.evictions + stats.purged, 10000);
    CHECK_IS(insert(cache, 10000, 2 << 20), 0);
    CHECK_IS(is_found(cache, 10000, 0), 0);
    CHECK_IS(stats_of(cache).refused, 1);
    tenure_cache_close(cache);
}

static void wrong_calls_are_refused_with_nothing_done(void)
{
    static const char zeros[TENURE_CACHE_MAX_KEY + 1];
    struct tenure_cache_value value;
    struct tenure_cache_stats stats;
    CHECK_IS(tenure_cache_new(NULL, NULL), -EFAULT);
    struct {
        struct tenure_cache_options options;
        size_t later;
    } options = {{0, 0}, 0};
    struct tenure_cache *cache = NULL;
    options.options.size = 8;
    CHECK_IS(tenure_cache_new(&cache, &options.options), -EINVAL);
    options.options.size = sizeof(options);
    options.later = 1;
    CHECK_IS(tenure_cache_new(&cache, &options.options), -E2BIG);
    CHECK(cache == NULL);
    options.later = 0;
    CHECK_IS(tenure_cache_new(&cache, &options.options), 0);

    CHECK_IS(tenure_cache_get(NULL, "a", 1, &value), -EFAULT);
    CHECK(value.pin == NULL);
    CHECK_IS(tenure_cache_get(cache, "a", 1, NULL), -EFAULT);
    CHECK_IS(tenure_cache_get(cache, NULL, 1, &value), -EFAULT);
    CHECK_IS(tenure_cache_get(cache, zeros, sizeof(zeros), &value), -EINVAL);
    CHECK_IS(tenure_cache_insert(NULL, "a", 1, "b", 1, 0), -EFAULT);
    CHECK_IS(tenure_cache_insert(cache, NULL, 1, "b", 1, 0), -EFAULT);
    CHECK_IS(tenure_cache_insert(cache, "a", 1, NULL, 1, 0), -EFAULT);
    CHECK_IS(tenure_cache_insert(cache, "a", 1, "b", 1, 4), -EINVAL);
    CHECK_IS(tenure_cache_insert(cache, zeros, sizeof(zeros), "b", 1, 0), -EINVAL);
    CHECK_IS(tenure_cache_remove(NULL, "a", 1), -EFAULT);
    CHECK_IS(tenure_cache_remove(cache, NULL, 1), -EFAULT);
    CHECK_IS(tenure_cache_remove(cache, zeros, sizeof(zeros)), -EINVAL);
    CHECK_IS(tenure_cache_stats(NULL, &stats, sizeof(stats)), -EFAULT);
    CHECK_IS(tenure_cache_stats(cache, NULL, sizeof(stats)), -EFAULT);
    CHECK_IS(stats_of(cache).insertions, 0);
    tenure_cache_unpin(NULL);
    tenure_cache_close(NULL);

    /* NULL with a length of 0, and the longest key, are right. */
    CHECK_IS(tenure_cache_insert(cache, NULL, 0, NULL, 0, 0), 0);
    CHECK_IS(tenure_cache_insert(cache, zeros, TENURE_CACHE_MAX_KEY, "b", 1, 3), 0);
    CHECK_IS(tenure_cache_get(cache, NULL, 0, &value), 1);
    CHECK(value.len == 0 && value.data != NULL);
    tenure_cache_unpin(&value);
    CHECK_IS(tenure_cache_get(cache, zeros, TENURE_CACHE_MAX_KEY, &value), 1);
    CHECK_IS(*(const char *)value.data, 'b');
    tenure_cache_unpin(&value);

    /* Values larger than memory. */
    CHECK_IS(tenure_cache_insert(cache, "a", 1, zeros, SIZE_MAX, 3), 0);
    CHECK_IS(tenure_cache_insert(cache, "a", 1, zeros, (size_t)1 << 46, 3), 0);
    CHECK_IS(stats_of(cache).refused, 2);
    CHECK_IS(stats_of(cache).values, 2);
    tenure_cache_close(cache);
}

static void structures_of_other_versions_are_filled_as_far_as_they_go(void)
{
    struct tenure_cache *cache = new_cache(0);
    CHECK_IS(is_found(cache, 1, 0), 0);
    uint64_t counters[20];
    memset(counters, 1, sizeof(counters));
    CHECK_IS(tenure_cache_stats(cache, (struct tenure_cache_stats *)counters, 16), 0);
    CHECK_IS(counters[1], 1);
    CHECK(counters[2] != 0);
    CHECK_IS(tenure_cache_stats(cache, (struct tenure_cache_stats *)counters,
                                sizeof(counters)), 0);
    CHECK_IS(counters[2], 0);
    CHECK_IS(counters[19], 0);
    tenure_cache_close(cache);
}

static void pinned_value_outlives_its_key_and_the_cache(void)
{
    struct tenure_cache *cache = new_cache(0);
    struct tenure_cache_value small, large;
    unsigned key = 1;
    CHECK_IS(insert(cache, 1, 100), 0);
    CHECK_IS(tenure_cache_get(cache, &key, sizeof(key), &small), 1);
    CHECK_IS(tenure_cache_remove(cache, &key, sizeof(key)), 1);
    CHECK_IS(insert(cache, 1, 100000), 0);
    CHECK_IS(tenure_cache_get(cache, &key, sizeof(key), &large), 1);
    tenure_cache_close(cache);
    CHECK_IS(((const char *)small.data)[99], 1);
    CHECK_IS(((const char *)large.data)[99999], 1);
    tenure_cache_unpin(&small);
    tenure_cache_unpin(&large);
}

static void child_has_an_empty_cache(void)
{
    struct tenure_cache *cache = new_cache(0);
    struct tenure_cache_value value;
    unsigned key = 1;
    CHECK_IS(insert(cache, 1, 5000), 0);
    CHECK_IS(tenure_cache_get(cache, &key, sizeof(key), &value), 1);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK_IS(((const char *)value.data)[4999], 1);
        CHECK_IS(is_found(cache, 1, 5000), 0);
        tenure_cache_unpin(&value);
        tenure_cache_close(cache);
        cache = new_cache(0);
        CHECK_IS(insert(cache, 2, 50), 0);
        CHECK_IS(is_found(cache, 2, 50), 1);
        _exit(0);
    }
    int status;
    CHECK_IS(waitpid(child, &status, 0), child);
    CHECK_IS(status, 0);
    tenure_cache_unpin(&value);
    CHECK_IS(is_found(cache, 1, 5000), 1);
    tenure_cache_close(cache);
}

static void *work(void *cache)
{
    for (unsigned step = 0; step < 5000; step++) {
        unsigned key = step * 7919 % 400;
        size_t len = key % 2 ? 300 : 6000;
        if (!is_found(cache, key, len))
            CHECK_IS(insert(cache, key, len), 0);
        if (step % 13 == 0)
            CHECK(tenure_cache_remove(cache, &key, sizeof(key)) >= 0);
    }
    return NULL;
}

static void threads_share_a_cache(void)
{
    struct tenure_cache *cache = new_cache(1 << 20);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        CHECK_IS(pthread_create(&threads[i], NULL, work, cache), 0);
    for (int i = 0; i < 4; i++)
        CHECK_IS(pthread_join(threads[i], NULL), 0);
    CHECK_IS(stats_of(cache).hits + stats_of(cache).misses, 20000);
    tenure_cache_close(cache);
}

/* Where /dev/shm is missing or full, nothing can be shared by name. */
static void shared_cache_is_found_by_its_name(void)
{
    struct tenure_cache_options options = {.size = sizeof(options), .max_bytes = 8 << 20};
    struct tenure_cache *cache = NULL, *again = NULL;
    struct tenure_cache_value value;
    char name[64], path[96];
    snprintf(name, sizeof(name), "test.c.%d", (int)getpid());
    snprintf(path, sizeof(path), "/dev/shm/tenure.%s", name);
    CHECK_IS(tenure_cache_open_shared(NULL, name, NULL), -EFAULT);
    CHECK_IS(tenure_cache_open_shared(&cache, NULL, NULL), -EFAULT);
    CHECK_IS(tenure_cache_open_shared(&cache, "", NULL), -EINVAL);
    CHECK_IS(tenure_cache_open_shared(&cache, "a/b", NULL), -EINVAL);
    CHECK(cache == NULL);
    int result = tenure_cache_open_shared(&cache, name, &options);
    if (result == -ENOENT || result == -ENOSPC || result == -EACCES || result == -EROFS)
        return;
    CHECK_IS(result, 0);
    CHECK_IS(tenure_cache_open_shared(&again, name, &options), 0);
    CHECK_IS(insert(cache, 7, 5000), 0);
    CHECK_IS(insert(cache, 8, 0), 0);
    CHECK_IS(tenure_cache_insert(cache, "a", 1, "b", SIZE_MAX, 3), 0);
    CHECK_IS(stats_of(cache).refused, 1);
    /* Pressure may take what is not pinned. */
    int found = is_found(again, 7, 5000) + is_found(again, 8, 0);
    CHECK_IS(stats_of(again).hits, found);
    found = tenure_cache_get(again, "x", 1, &value);
    CHECK(found == 0 && value.pin == NULL);
    CHECK_IS(tenure_cache_remove(again, "x", 1), 0);
    tenure_cache_close(cache);
    tenure_cache_close(again);
    CHECK_IS(unlink(path), 0);
}

int main(void)
{
    values_of_all_sizes_are_found();
    shared_cache_is_found_by_its_name();
    limit_evicts_and_refuses();
    wrong_calls_are_refused_with_nothing_done();
    structures_of_other_versions_are_filled_as_far_as_they_go();
    pinned_value_outlives_its_key_and_the_cache();
    child_has_an_empty_cache();
    threads_share_a_cache();
    return 0;
}
