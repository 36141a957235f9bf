// Operators new and delete in all their forms. An argument says that the heap is on: then no
// large block is the C library's.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <malloc.h>
#include <memory>
#include <new>
#include <string>
#include <vector>

#define CHECK(holds)                                                           \
    do {                                                                       \
        if (!(holds)) {                                                        \
            std::fprintf(stderr, "line %d: does not hold: %s\n", __LINE__,     \
                         #holds);                                              \
            std::exit(1);                                                      \
        }                                                                      \
    } while (0)

#ifdef REPLACED
// A program that replaces one form counts on the other forms calling it.
static unsigned long replaced_calls;

void *operator new(std::size_t size)
{
    replaced_calls++;
    void *block = std::malloc(size);
    if (block == nullptr)
        throw std::bad_alloc();
    return block;
}

void operator delete(void *block) noexcept { std::free(block); }
void operator delete(void *block, std::size_t) noexcept { std::free(block); }
#endif

constexpr std::size_t large = 5 << 20;
static bool heap_is_on;

static std::size_t in_use_by_libc()
{
    using Info = struct mallinfo2 (*)();
    void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != nullptr);
    struct mallinfo2 figures = reinterpret_cast<Info>(dlsym(library, "mallinfo2"))();
    return figures.uordblks + figures.hblkhd;
}

static void *checked(void *block, std::size_t align, std::size_t before)
{
    CHECK(block != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(block) % align == 0);
    std::memset(block, 1, large);
    CHECK((in_use_by_libc() < before + large) == heap_is_on);
    return block;
}

static void forms()
{
    const std::size_t before = in_use_by_libc();
    constexpr std::align_val_t page{4096};
    ::operator delete(checked(::operator new(large), 16, before));
    ::operator delete(checked(::operator new(large), 16, before), large);
    ::operator delete(checked(::operator new(large, std::nothrow), 16, before), std::nothrow);
    ::operator delete[](checked(::operator new[](large), 16, before));
    ::operator delete[](checked(::operator new[](large), 16, before), large);
    ::operator delete[](checked(::operator new[](large, std::nothrow), 16, before), std::nothrow);
    ::operator delete(checked(::operator new(large, page), 4096, before), page);
    ::operator delete(checked(::operator new(large, page), 4096, before), large, page);
    ::operator delete(checked(::operator new(large, page, std::nothrow), 4096, before), page,
                      std::nothrow);
    ::operator delete[](checked(::operator new[](large, page), 4096, before), page);
    ::operator delete[](checked(::operator new[](large, page), 4096, before), large, page);
    ::operator delete[](checked(::operator new[](large, page, std::nothrow), 4096, before), page,
                        std::nothrow);
}

static void failures()
{
    volatile std::size_t too_large = SIZE_MAX / 2;
    bool thrown = false;
    try {
        ::operator delete(::operator new(too_large));
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    CHECK(thrown);
    CHECK(::operator new[](too_large, std::nothrow) == nullptr);
}

struct alignas(256) Wide {
    std::string name = std::string(100, 'n');
    virtual ~Wide() = default;
};
struct Wider : Wide {
    std::vector<int> numbers = std::vector<int>(1000, 7);
};

static void objects()
{
    std::vector<std::unique_ptr<Wide>> all;
    for (int i = 0; i < 1000; i++) {
        all.push_back(std::make_unique<Wider>());
        CHECK(reinterpret_cast<std::uintptr_t>(all.back().get()) % 256 == 0);
    }
    std::string text;
    while (text.size() < large)
        text += all[text.size() % all.size()]->name;
    CHECK(text.find_first_not_of('n') == std::string::npos);
}

int main(int count, char **)
{
    heap_is_on = count > 1;
    forms();
    failures();
    objects();
#ifdef REPLACED
    CHECK(replaced_calls > 1000);
#endif
    return 0;
}
