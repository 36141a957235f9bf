#include <stdio.h>
#include <tenure.h>

int main(void)
{
    printf("tenure %s\n", tenure_version());
    return 0;
}
