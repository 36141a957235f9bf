// Prints the frequency of the timestamp counter in kHz.

#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

// Reads both clocks at one moment: a thread that was preempted between them reads again.
static void read_clocks(uint64_t *ticks, uint64_t *nanoseconds) {
    struct timespec now;
    uint64_t after;
    do {
        *ticks = __rdtsc();
        clock_gettime(CLOCK_MONOTONIC, &now);
        after = __rdtsc();
    } while (after - *ticks > 100000);
    *nanoseconds = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

int main(void) {
    uint64_t ticks[2], nanoseconds[2];
    read_clocks(&ticks[0], &nanoseconds[0]);
    nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
    read_clocks(&ticks[1], &nanoseconds[1]);
    uint64_t passed = nanoseconds[1] - nanoseconds[0];
    printf("%.0f\n", (double)(ticks[1] - ticks[0]) * 1e6 / (double)passed);
    return 0;
}
