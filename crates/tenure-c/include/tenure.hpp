// tenure.hpp - owners of memory for C++17 programs, over tenure.h.
//
// Header only. What fails throws std::system_error with the error number; nothing throws
// from a destructor.
//
// SPDX-License-Identifier: MIT OR Apache-2.0

#ifndef TENURE_HPP
#define TENURE_HPP

#include <tenure.h>

#include <cstddef>
#include <sys/mman.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace tenure {

// Returns a result, or throws what it stands for.
inline int checked(int result, const char *what)
{
    if (result < 0)
        throw std::system_error(-result, std::generic_category(), what);
    return result;
}

// Private anonymous memory that is its own: mapped when it is made, and unmapped, at once
// for the caller, when it goes. It can be moved, and then is empty.
class mapping {
public:
    mapping() noexcept = default;

    // Maps `len` bytes; `tenure_flags` are TENURE_MAP_*.
    explicit mapping(std::size_t len, unsigned tenure_flags = 0) : len_(len)
    {
        checked(tenure_mmap(&addr_, len, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0, tenure_flags),
                "tenure_mmap");
    }

    mapping(mapping &&other) noexcept
        : addr_(std::exchange(other.addr_, nullptr)), len_(std::exchange(other.len_, 0))
    {
    }

    mapping &operator=(mapping &&other) noexcept
    {
        std::swap(addr_, other.addr_);
        std::swap(len_, other.len_);
        return *this;
    }

    mapping(const mapping &) = delete;
    mapping &operator=(const mapping &) = delete;

    ~mapping()
    {
        if (addr_ != nullptr)
            tenure_munmap(addr_, whole_pages());
    }

    std::byte *data() const noexcept { return static_cast<std::byte *>(addr_); }
    // The bytes asked for.
    std::size_t size() const noexcept { return len_; }

    void populate(unsigned flags = TENURE_POPULATE_WRITE)
    {
        checked(tenure_populate(addr_, len_, flags), "tenure_populate");
    }

    void lock(unsigned mode)
    {
        checked(tenure_mlock(addr_, len_, mode), "tenure_mlock");
    }

    void unlock(unsigned modes = TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT)
    {
        checked(tenure_munlock(addr_, len_, modes), "tenure_munlock");
    }

    void lazy_free()
    {
        checked(tenure_lazy_free(addr_, whole_pages()), "tenure_lazy_free");
    }

    void discard()
    {
        checked(tenure_discard(addr_, whole_pages()), "tenure_discard");
    }

    // Lets the kernel take it; priority 0 goes first, 3 last.
    void mark_volatile(unsigned priority = 2)
    {
        checked(tenure_mvolatile_with(addr_, whole_pages(), priority, 0),
                "tenure_mvolatile_with");
    }

    // Tells whether every byte is as it was.
    [[nodiscard]] bool mark_nonvolatile()
    {
        return checked(tenure_mnovolatile(addr_, whole_pages(), nullptr, 0, nullptr),
                       "tenure_mnovolatile") == 0;
    }

    void purge()
    {
        checked(tenure_purge(addr_, whole_pages()), "tenure_purge");
    }

private:
    // What the kernel has mapped.
    std::size_t whole_pages() const noexcept
    {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        return (len_ + page - 1) / page * page;
    }

    void *addr_ = nullptr;
    std::size_t len_ = 0;
};

} // namespace tenure

#endif
