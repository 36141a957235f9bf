/* A cache of large entries, such as the state that a language model computes from a prompt:
 * it keeps as many as there is memory for, and the program computes the others again.
 *
 *     cc prompt_cache.c $(pkg-config --cflags --libs tenure)
 *     ./a.out [MEGABYTES [ENTRIES [ROUNDS]]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenure.h>

static struct tenure_cache *states;
static size_t state_bytes;
static unsigned computed, found;

static void check(int result, const char *what)
{
    if (result < 0) {
        fprintf(stderr, "%s: %s\n", what, strerror(-result));
        exit(1);
    }
}

/* Stands for the model. Returns a state, for free(). */
static unsigned char *compute(unsigned prompt)
{
    unsigned char *state = malloc(state_bytes);
    if (state == NULL) {
        perror("malloc");
        exit(1);
    }
    memset(state, (int)(prompt + 1), state_bytes);
    computed++;
    return state;
}

static int is_state(const unsigned char *state, unsigned prompt)
{
    for (size_t at = 0; at < state_bytes; at += 512) {
        if (state[at] != prompt + 1)
            return 0;
    }
    return 1;
}

/* Goes on from the state of a prompt. */
static void answer(unsigned prompt)
{
    struct tenure_cache_value value;
    int result = tenure_cache_get(states, &prompt, sizeof(prompt), &value);
    check(result, "tenure_cache_get");
    if (result == 1) {
        found++;
        if (value.len != state_bytes || !is_state(value.data, prompt)) {
            fprintf(stderr, "a wrong state\n");
            exit(1);
        }
        tenure_cache_unpin(&value);
        return;
    }
    unsigned char *state = compute(prompt);
    check(tenure_cache_insert(states, &prompt, sizeof(prompt), state, state_bytes, 2),
          "tenure_cache_insert");
    free(state);
}

int main(int argc, char **argv)
{
    state_bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 4) << 20;
    unsigned prompts = argc > 2 ? (unsigned)atoi(argv[2]) : 8;
    unsigned rounds = argc > 3 ? (unsigned)atoi(argv[3]) : 4;
    if (state_bytes == 0 || prompts == 0 || prompts > 250) {
        fprintf(stderr, "usage: %s [MEGABYTES [ENTRIES [ROUNDS]]]\n", argv[0]);
        return 2;
    }
    check(tenure_cache_new(&states, NULL), "tenure_cache_new");
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned prompt = 0; prompt < prompts; prompt++) {
            /* Prompts 0 and 1 are asked for between all others. */
            answer(prompt);
            answer(prompt % 2);
        }
    }
    struct tenure_cache_stats stats;
    check(tenure_cache_stats(states, &stats, sizeof(stats)), "tenure_cache_stats");
    printf("computed %u, found %u, evicted %llu, purged %llu, refused %llu, kept %llu\n",
           computed, found, (unsigned long long)stats.evictions,
           (unsigned long long)stats.purged, (unsigned long long)stats.refused,
           (unsigned long long)stats.values);
    tenure_cache_close(states);
    return found > 0 ? 0 : 1;
}
