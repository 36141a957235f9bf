// tenure.hpp - owners of memory for C++17 programs, over tenure.h.
//
// Header only. A function that fails throws std::system_error with the error number; no
// destructor throws.
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

// Returns the result of a C function, or throws the error that it stands for.
inline int checked(int result, const char *what)
{
    if (result < 0)
        throw std::system_error(-result, std::generic_category(), what);
    return result;
}

// Owns private anonymous memory: the constructor maps it, and the destructor unmaps it with
// tenure_munmap(). A mapping that was moved from is empty, and its data() is nullptr.
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
    // The length that was given to the constructor, in bytes.
    std::size_t size() const noexcept { return len_; }

    // Faults all pages in; `flags` are TENURE_POPULATE_*.
    void populate(unsigned flags = TENURE_POPULATE_WRITE)
    {
        checked(tenure_populate(addr_, len_, flags), "tenure_populate");
    }

    // Locks it in memory; `mode` is TENURE_LOCK_NOW or TENURE_LOCK_ONFAULT.
    void lock(unsigned mode)
    {
        checked(tenure_mlock(addr_, len_, mode), "tenure_mlock");
    }

    // Ends its locks of the given modes.
    void unlock(unsigned modes = TENURE_LOCK_NOW | TENURE_LOCK_ONFAULT)
    {
        checked(tenure_munlock(addr_, len_, modes), "tenure_munlock");
    }

    // Lets the kernel free the contents until they are written again.
    void lazy_free()
    {
        checked(tenure_lazy_free(addr_, whole_pages()), "tenure_lazy_free");
    }

    // Replaces the contents by zeros.
    void discard()
    {
        checked(tenure_discard(addr_, whole_pages()), "tenure_discard");
    }

    // Lets the kernel purge the contents; priority 0 is purged first, 3 last.
    void mark_volatile(unsigned priority = 2)
    {
        checked(tenure_mvolatile_with(addr_, whole_pages(), priority, 0),
                "tenure_mvolatile_with");
    }

    // Ends volatility; returns whether every byte is as it was. Purged pages read as zeros.
    [[nodiscard]] bool mark_nonvolatile()
    {
        return checked(tenure_mnovolatile(addr_, whole_pages(), nullptr, 0, nullptr),
                       "tenure_mnovolatile") == 0;
    }

    // Purges it now, as the kernel would under memory pressure. It stays volatile.
    void purge()
    {
        checked(tenure_purge(addr_, whole_pages()), "tenure_purge");
    }

private:
    // The length of the mapping: the kernel maps whole pages.
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
